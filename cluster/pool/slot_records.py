"""The pool's record of a slot: its state, its actor, and how much earlier actors did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.pool.drift_pause import DriftPause
from cluster.pool.reports import ActorReport, ActorState, FailureKind
from cluster.pool.runtime import Actor
from cluster.pool.slots import ActorSlot
from llmperf_common.records import Device


class SlotState(StrEnum):
    """The state of a slot."""

    WAITING = "waiting"
    """An actor starts at ``start_at_s``, or Ray was asked for an actor that has not answered
    yet."""
    RUNNING = "running"
    """The slot's actor has answered."""
    PAUSED = "paused"
    """The device is too slow, and no other slot of its class collects. An actor is started again at
    ``start_at_s``."""
    DONE = "done"
    DRAINED = "drained"
    """The slot is given up for this run; ``SlotRecord.why`` has the reason."""
    GONE = "gone"
    """The slot's node is dead."""


@dataclass(slots=True, kw_only=True)
class SlotRecord:
    """One slot: its present actor, and the numbers of rows and tasks of its earlier actors."""

    slot: ActorSlot
    state: SlotState = SlotState.WAITING
    why: str = ""
    start_at_s: float = 0.0
    actor: Actor | None = None
    report: ActorReport | None = None
    has_begun: bool = False
    heard_s: float = 0.0
    """Time of the present actor's last report; meaningless before its first report."""
    is_overdue: bool = False
    """Whether the operator was told that the present actor has not answered for a long time."""
    deaths_in_a_row: int = 0
    failing: FailureKind | None = None
    """Why the last actors of this slot failed before they finished a task. ``failing_since_s`` is
    the time of the first such failure."""
    failing_since_s: float = 0.0
    pause_s: float = 0.0
    drift: DriftPause = field(default_factory=DriftPause)
    device: Device | None = None
    """The device that the last actor of this slot has opened."""
    earlier: Counter[str] = field(default_factory=Counter)
    """Number of rows by status of the earlier actors of this slot."""
    num_tasks_earlier: int = 0

    @property
    def is_active(self) -> bool:
        """Whether an actor runs on this slot or will be started."""
        return self.state in (SlotState.WAITING, SlotState.RUNNING, SlotState.PAUSED)

    @property
    def is_collecting(self) -> bool:
        """Whether the actor collects or waits for the run, and has not asked to be drained."""
        told = self.report
        return (
            self.state is SlotState.RUNNING
            and told is not None
            and told.state in (ActorState.OPEN, ActorState.COLLECTING)
            and not told.drained
        )

    @property
    def is_unheard(self) -> bool:
        """Whether Ray was asked for an actor that has not answered. Such an actor has no task."""
        return self.state is SlotState.WAITING and self.actor is not None

    @property
    def num_tasks_done(self) -> int:
        """The number of tasks committed from this slot."""
        return self.num_tasks_earlier + (self.report.num_tasks_done if self.report else 0)

    @property
    def statuses(self) -> Counter[str]:
        """Committed rows of this slot by status."""
        return self.earlier + Counter(self.report.statuses if self.report else {})


def is_same_class(one: SlotRecord, other: SlotRecord) -> bool:
    """Whether the last actors of both slots have opened devices of the same device class."""
    if one.device is None or other.device is None:
        return False
    return one.device.device_class == other.device.device_class
