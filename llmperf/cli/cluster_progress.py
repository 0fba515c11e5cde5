"""Progress of a cluster run on stderr: every 30 s one line for the run, and one for each slot.

At most 16 slots are shown.
"""

from __future__ import annotations

import time

from cluster.pool.pool import ActorPool
from cluster.telemetry.observing import lines_of
from llmperf.cli.console import say
from llmperf.cli.progress import done_before
from llmperf.progress import PoolProgress
from llmperf_common.records import Device
from workers.plan.plan import Plan

_LINE_INTERVAL_S = 30.0
_SEATS_SHOWN = 16


class ClusterProgress(PoolProgress):
    """Prints messages of the pool and, every 30 s, the state of the actors."""

    def __init__(self) -> None:
        super().__init__(lambda progress: say(str(progress)))
        self._line_after_s = 0.0

    def say(self, text: str) -> None:
        """Print a message for the operator."""
        say(text)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """Print the plan and the devices when the actors begin."""
        super().began(plan, devices, num_tasks_done)
        self._line_after_s = time.monotonic() + _LINE_INTERVAL_S
        names = [one.device_class for one in devices]
        there = ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
        before = done_before(num_tasks_done, plan.num_tasks)
        say(
            f"{len(devices)} actors ({there}): {plan.num_tasks:,} tasks{before}; "
            f"plan {plan.plan_hash}"
        )

    def stands(self, pool: ActorPool) -> None:
        """Print the state of the actors, at most every 30 s."""
        now_s = time.monotonic()
        if now_s < self._line_after_s:
            return
        self._line_after_s = now_s + _LINE_INTERVAL_S
        super().stands(pool)
        for one in lines_of(pool)[:_SEATS_SHOWN]:
            say(f"  {one}")
