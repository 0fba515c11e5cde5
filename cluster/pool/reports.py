"""The reports that an actor sends to the pool, as values.

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
    """No task of the actor's class is left, or the actor was asked to stop. Finished work is
    committed."""
    FAILED = "failed"


class FailureKind(StrEnum):
    """Why an actor has failed; each kind has its own consequence for the slot."""

    DEVICE = "device"
    """The device cannot be used, so the slot is drained."""
    NO_BUILD = "no_build"
    """No kernel can be built on the node, so the slot is drained."""
    TAKEN = "taken"
    """Another process, perhaps an actor that is about to end, has the GPU. The slot is tried again
    for a while."""
    STORE = "store"
    """The node cannot reach the dataset or the ledger, so the slot is tried again for a while."""
    FOREIGN = "foreign"
    """The dataset's name leads to another folder on this node, so the slot is drained."""
    CHANGED = "changed"
    """LLMPerf's files on the node are not the driver's, so the slot is drained."""
    INTERNAL = "internal"
    """LLMPerf has a bug. The slot is tried again, as after the death of an actor."""


class DrainCause(StrEnum):
    """Why an actor asked to be drained."""

    FAULTS = "faults"
    THROTTLING = "throttling"
    DRIFT = "drift"
    """The sentinel (a fixed kernel) takes longer than at first. This may pass, so the last slot of
    a device class is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSpec:
    """The arguments with which an actor is started.

    Args:
        slot: the actor's slot.
        location: the dataset folder, as every node names it.
        ledger: ``sqlite`` or the URL of a Redis server; ``repr`` leaves it out, because a URL may
            contain a password.
        state_folder: folder for files that must not lie on a network file system.
        config: the whole config tree.
        sentinel_baseline_ns: the sentinel's first time, if an earlier actor was drained for drift;
            one reading then shows whether the device is fast again. If it is None, the actor's own
            first readings are the baseline.
        files_sha256: hash of the driver's files (``llmperf_common.installation``), which the
            actor's must equal.
    """

    slot: ActorSlot
    location: str
    ledger: str = field(repr=False)  # a URL may contain a password
    state_folder: Path
    config: ClusterCollectConfig
    files_sha256: str
    sentinel_baseline_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorReport:
    """The state of one actor at one moment; counts cover this actor alone.

    ``statuses`` holds committed rows by status, ``collecting_s`` the seconds since the actor began
    to collect.
    """

    state: ActorState
    detail: str = ""
    kind: FailureKind | None = None
    worker_id: str = ""
    device: Device | None = None
    reason: EndReason | None = None
    drained: str = ""
    """Why the actor asked to be drained. Such an actor ends by itself."""
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
