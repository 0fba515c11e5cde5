"""What a pool needs of a cluster: nodes and actors. Ray gives it in earnest (``ray/runtime.py``), tests in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.pool.reports import ActorReport, ActorSpec
from cluster.pool.slots import ClusterNode
from llmperf_common.errors import Exit, LlmperfError
from workers.corpus.read import Corpus


class ClusterAddressError(LlmperfError, ValueError):
    """The Ray cluster that was named cannot be joined."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorGone:
    """The actor's process or node is dead; what it had leased is free again when its leases run out."""

    why: str


class Actor(Protocol):
    """The pool's hold on one actor; no method waits."""

    def poll(self) -> ActorReport | ActorGone | None:
        """Return what the actor last told, None if nothing since the last call."""
        ...

    def begin(self, corpus: Corpus, run_id: str) -> None:
        """Let it collect the run of this id."""
        ...

    def stop(self, *, drop: bool) -> None:
        """Ask it to finish what has the device and end; ``drop``: not even that."""
        ...

    def kill(self) -> None:
        """End its process, whatever it does."""
        ...


class Runtime(Protocol):
    """A cluster."""

    def nodes(self) -> tuple[ClusterNode, ...]:
        """Return the living nodes."""
        ...

    def start(self, spec: ActorSpec) -> Actor:
        """Start an actor on its slot."""
        ...
