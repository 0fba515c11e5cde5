"""What an actor tells of itself: values that cross between processes.

Owns the actor's states. They go one way, from ``STARTING`` to ``ENDED`` or ``FAILED``; an actor is used once.
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
    """How far an actor is."""

    STARTING = "starting"
    """It looks for its device and opens it."""
    OPEN = "open"
    """It has its device and waits for the plan."""
    COLLECTING = "collecting"
    ENDED = "ended"
    """Its class has no task left, or it was asked to stop; everything finished is committed."""
    FAILED = "failed"


class FailureKind(StrEnum):
    """Why an actor has failed, as far as its pool does different things about it."""

    DEVICE = "device"
    """The device cannot be used: its slot is drained."""
    NO_BUILD = "no_build"
    """No kernel can be built there: its slot is drained."""
    TAKEN = "taken"
    """Another process has the GPU, perhaps an actor that is just ending: tried again."""
    STORE = "store"
    """The dataset cannot be written or read, or the ledger not reached, from this node: tried again for a while."""
    FOREIGN = "foreign"
    """The dataset folder of this node is another one: its slot is drained."""
    INTERNAL = "internal"
    """A mistake of ours: tried again like a death."""


class DrainCause(StrEnum):
    """What an actor asked to be drained for."""

    FAULTS = "faults"
    THROTTLING = "throttling"
    DRIFT = "drift"
    """The sentinel takes longer than at first. It may pass: the last slot that collects of a class is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """What an actor is made with.

    Args:
        slot: where it sits.
        location: the dataset folder, as every node names it.
        ledger: ``sqlite`` or a Redis URL; no text of this value has it.
        state_folder: for what must not lie on a network.
        config: the whole tree.
        sentinel_baseline_ns: what the sentinel took at first, where an earlier actor was drained for drift: this one's
            first reading says whether the device is as fast again. None: this actor's own first readings are the baseline.
    """

    slot: ActorSlot
    location: str
    ledger: str = field(repr=False)  # its URL has a password
    state_folder: Path
    config: ClusterCollectConfig
    sentinel_baseline_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """One actor at one moment; counts are of this actor alone.

    ``statuses`` are committed rows by status, ``collecting_s`` seconds since it began to collect.
    """

    state: ActorState
    detail: str = ""
    kind: FailureKind | None = None
    worker_id: str = ""
    device: Device | None = None
    reason: EndReason | None = None
    drained: str = ""
    """Why it asked to be drained; it then ends by itself."""
    drain_cause: DrainCause | None = None
    sentinel_baseline_ns: float | None = None
    is_steady: bool = False
    """Whether a reading of the sentinel lay within the limit of a baseline since this actor began."""
    statuses: dict[str, int] = field(default_factory=dict)
    num_tasks_done: int = 0
    num_tasks_in_hand: int = 0
    collecting_s: float = 0.0
    temperature_c: float | None = None
    busy_share: float | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in (ActorState.ENDED, ActorState.FAILED)
