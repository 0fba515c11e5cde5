"""The interface to nodes and actors; ``ray/runtime.py`` implements it with Ray, tests fake it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cluster.pool.reports import ActorReport, ActorSpec
from cluster.pool.slots import ClusterNode
from llmperf_common.errors import Exit, LlmperfError
from workers.corpus.read import Corpus


class ClusterAddressError(LlmperfError, ValueError):
    """The named Ray cluster cannot be joined."""

    exit_code = Exit.USAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorGone:
    """The actor's process or node is dead; the actor's leases will expire."""

    why: str


class Actor(Protocol):
    """The pool's handle on one actor; no method waits."""

    def poll(self) -> ActorReport | ActorGone | None:
        """Return the actor's last report; None if no report came since the last call."""
        ...

    def begin(self, corpus: Corpus, run_id: str) -> None:
        """Let the actor collect the run of this id."""
        ...

    def stop(self, *, drop: bool) -> None:
        """Ask the actor to finish the tasks on the device and end; with ``drop``, to drop them."""
        ...

    def kill(self) -> None:
        """End the actor's process at once."""
        ...


class Runtime(Protocol):
    """A cluster."""

    def nodes(self) -> tuple[ClusterNode, ...]:
        """Return the living nodes."""
        ...

    def start(self, spec: ActorSpec) -> Actor:
        """Start an actor on the slot of ``spec``."""
        ...
