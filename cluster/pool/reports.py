"""What an actor reports: values that cross between processes.

Owns the actor's states: from ``STARTING`` to ``ENDED`` or ``FAILED``, never back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cluster.config import ClusterCollectConfig
from cluster.pool.slots import ActorSlot
from llmperf_common.records import Device
from workers.collect.loop_interfaces import EndReason


class ActorState(StrEnum):
    """The state of an actor."""

    STARTING = "starting"
    """The actor looks for its device and opens it."""
    OPEN = "open"
    """The actor has its device and waits for the plan."""
    COLLECTING = "collecting"
    ENDED = "ended"
    """The actor's class has no task left, or it was asked to stop; finished work is committed."""
    FAILED = "failed"


class FailureKind(StrEnum):
    """Why an actor has failed; each kind has its own consequence for the slot."""

    DEVICE = "device"
    """The device cannot be used: the slot is drained."""
    NO_BUILD = "no_build"
    """No kernel can be built on the node: the slot is drained."""
    TAKEN = "taken"
    """Another process, perhaps an ending actor, has the GPU: the slot is tried again a while."""
    STORE = "store"
    """The node cannot reach the dataset or the ledger: the slot is tried again for a while."""
    FOREIGN = "foreign"
    """The dataset's name means another folder on this node: the slot is drained."""
    INTERNAL = "internal"
    """A bug of LLMPerf: the slot is tried again, as after a death."""


class DrainCause(StrEnum):
    """Why an actor asked to be drained."""

    FAULTS = "faults"
    THROTTLING = "throttling"
    DRIFT = "drift"
    """The sentinel takes longer than at first. It may pass: the last slot of a class is retried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """What an actor is started with.

    Args:
        slot: the actor's slot.
        location: the dataset folder, as every node names it.
        ledger: ``sqlite`` or a Redis URL; left out of ``repr``, as a URL may contain a password.
        state_folder: for files that must not lie on a network.
        config: the whole tree.
        sentinel_baseline_ns: the sentinel's first time, if an earlier actor was drained for drift;
            one reading then shows whether the device is fast again. None: the actor's own first
            readings are the baseline.
    """

    slot: ActorSlot
    location: str
    ledger: str = field(repr=False)  # a URL contains a password
    state_folder: Path
    config: ClusterCollectConfig
    sentinel_baseline_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """The state of one actor at one moment; counts are of this actor alone.

    ``statuses``: committed rows by status; ``collecting_s``: seconds since it began to collect.
    """

    state: ActorState
    detail: str = ""
    kind: FailureKind | None = None
    worker_id: str = ""
    device: Device | None = None
    reason: EndReason | None = None
    drained: str = ""
    """Why the actor asked to be drained; it then ends by itself."""
    drain_cause: DrainCause | None = None
    sentinel_baseline_ns: float | None = None
    is_steady: bool = False
    """Whether one of this actor's sentinel readings was within the limit of the baseline."""
    statuses: dict[str, int] = field(default_factory=dict)
    num_tasks_done: int = 0
    num_tasks_in_hand: int = 0
    collecting_s: float = 0.0
    temperature_c: float | None = None
    busy_share: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether the state is final."""
        return self.state in (ActorState.ENDED, ActorState.FAILED)
