"""Help to show a run over many nodes: an observer that shows nothing, and one line per slot."""

from __future__ import annotations

from cluster.pool.pool import ActorPool
from cluster.pool.slot_records import SlotState
from llmperf_common.failures import OK_STATUS
from llmperf_common.records import Device
from workers.plan.plan import Plan


class SilentClusterObserver:
    """Ignores every call."""

    def say(self, text: str) -> None:
        """Ignore a message for the operator."""

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """Ignore the start of the run."""

    def stands(self, pool: ActorPool) -> None:
        """Ignore the state of the actors."""


def lines_of(pool: ActorPool) -> list[str]:
    """Return a line for each slot: state, rows, rate, temperature."""
    lines = []
    for record in pool.slots.values():
        told = record.report
        parts = [f"{record.slot.name:<24}", record.state.value]
        if told is not None and record.state is SlotState.RUNNING:
            parts[1] = told.state.value
            parts.append(f"{record.statuses[OK_STATUS]:,} ok")
            if told.collecting_s:
                parts.append(f"{told.statuses.get(OK_STATUS, 0) / told.collecting_s:.1f} ok/s")
            parts.append(f"{told.num_tasks_in_hand} tasks in hand")
            if told.busy_share is not None:
                parts.append(f"{told.busy_share:.0%} busy")
            if told.temperature_c is not None:
                parts.append(f"{told.temperature_c:.0f} C")
        elif record.why:
            parts.append(record.why.splitlines()[0])
        lines.append("  ".join(parts))
    return lines
