"""Showing a run over many nodes: an observer that shows nothing, and a line of text for each slot."""

from __future__ import annotations

from cluster.pool.pool import ActorPool, SlotState
from llmperf_common.failures import OK_STATUS
from llmperf_common.records import Device
from workers.plan.plan import Plan


class SilentClusterObserver:
    """Hears everything and does nothing."""

    def say(self, text: str) -> None:
        """Something that an operator should know."""

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """The plan is made and actors begin."""

    def stands(self, pool: ActorPool) -> None:
        """How all actors are now."""


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
