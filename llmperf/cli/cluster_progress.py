"""How far a run over many nodes is, on stderr: twice a minute a line for all, and one for each seat."""

from __future__ import annotations

import time

from cluster.observing import lines_of
from cluster.pool import ActorPool
from llmperf.cli.console import say
from llmperf.cli.progress import done_before
from llmperf_common.failures import OK_STATUS
from llmperf_common.records import Device
from workers.plan import Plan

_LINE_INTERVAL_S = 30.0
_SEATS_SHOWN = 16


class ClusterProgress:
    """Tells what the pool does and, from time to time, how all stand."""

    def __init__(self) -> None:
        self._num_tasks = 0
        self._num_done_before = 0
        self._began_s = time.monotonic()
        self._line_after_s = 0.0

    def say(self, text: str) -> None:
        """Something that an operator should know."""
        say(text)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """The plan is made and actors begin."""
        self._num_tasks, self._num_done_before = plan.num_tasks, num_tasks_done
        self._began_s = time.monotonic()
        self._line_after_s = self._began_s + _LINE_INTERVAL_S
        names = [one.device_class for one in devices]
        there = ", ".join(f"{names.count(name)} {name}" for name in sorted(set(names)))
        before = done_before(num_tasks_done, plan.num_tasks)
        say(
            f"{len(devices)} actors ({there}): {plan.num_tasks:,} tasks{before}; plan {plan.plan_hash}"
        )

    def stands(self, pool: ActorPool) -> None:
        """How all actors are now."""
        now_s = time.monotonic()
        if now_s < self._line_after_s:
            return
        self._line_after_s = now_s + _LINE_INTERVAL_S
        elapsed_s = max(now_s - self._began_s, 1e-3)
        done_here = sum(place.num_tasks_done for place in pool.places.values())
        num_ok = pool.statuses[OK_STATUS]
        line = (
            f"{self._num_done_before + done_here:,}/{self._num_tasks:,} tasks  {num_ok:,} ok  "
            f"{num_ok / elapsed_s:.1f} ok/s"
        )
        if done_here:
            left = self._num_tasks - self._num_done_before - done_here
            line += f"  ETA {left * elapsed_s / done_here / 60:.1f} min"
        failed = {code: n for code, n in sorted(pool.statuses.items()) if code != OK_STATUS}
        if failed:
            line += "  failed " + ", ".join(f"{code} {n:,}" for code, n in failed.items())
        say(line)
        for one in lines_of(pool)[:_SEATS_SHOWN]:
            say(f"  {one}")
