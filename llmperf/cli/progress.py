"""Progress of a collect on stderr: a live bar on a terminal, else a line a minute; and Ctrl-C.

Always with rate, ETA and failures by code.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from llmperf.cli.console import is_quiet, say
from llmperf_common.failures import OK_STATUS
from llmperf_common.records import TaskResult
from workers.observers import SilentObserver, statuses_of

if TYPE_CHECKING:
    from llmperf_common.ledger.protocol import Lease
    from workers.device_worker import Control, RunStart
    from workers.plan import Task

_LINE_INTERVAL_S = 60.0
_MAX_SKIPPED_SHOWN = 5


class ProgressObserver(SilentObserver):
    """Shows how far a run is, from what its loop tells."""

    def __init__(self, start: RunStart) -> None:
        self._statuses = Counter(start.statuses)
        self._num_tasks = start.plan.num_tasks
        self._num_done = start.num_tasks_done
        self._num_done_at_start = start.num_tasks_done
        self._num_ok_here = 0
        self._started_s = time.monotonic()
        self._line_after_s = self._started_s + _LINE_INTERVAL_S
        self._kernel = ""
        self._bar: Progress | None = None
        say(
            f"{start.device.name} ({start.device.platform}): {self._num_tasks:,} kernels"
            f"{done_before(self._num_done, self._num_tasks)}; plan {start.plan.plan_hash}"
        )
        for path, reason in start.skipped[:_MAX_SKIPPED_SHOWN]:
            say(f"skipped {path}: {reason}")
        if len(start.skipped) > _MAX_SKIPPED_SHOWN:
            say(f"skipped {len(start.skipped) - _MAX_SKIPPED_SHOWN:,} more files")
        if sys.stderr.isatty() and not is_quiet():
            self._bar = Progress(
                BarColumn(bar_width=30),
                TextColumn("{task.description}"),
                console=Console(stderr=True),
            )
            self._row = self._bar.add_task("", total=self._num_tasks, completed=self._num_done)
            self._bar.start()

    def claimed(self, task: Task, lease: Lease) -> None:
        """A task was leased."""
        del lease
        self._kernel = task.kernel.name
        self._show()

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result, not yet durable."""
        del lease
        counts = statuses_of([result])
        self._statuses += counts
        self._num_ok_here += counts[OK_STATUS]
        self._num_done += 1
        self._show()

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost."""
        if tasks:
            say(f"{len(tasks)} tasks given up: {why}")

    def close(self) -> None:
        """Take the bar down."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(
                self._row, completed=self._num_done, description=f"{self._line()}  {self._kernel}"
            )
        elif time.monotonic() >= self._line_after_s:
            self._line_after_s = time.monotonic() + _LINE_INTERVAL_S
            say(self._line())

    def _line(self) -> str:
        elapsed_s = max(time.monotonic() - self._started_s, 1e-3)
        failed = {code: n for code, n in sorted(self._statuses.items()) if code != OK_STATUS}
        parts = [
            f"{self._num_done:,}/{self._num_tasks:,} tasks",
            f"{self._statuses[OK_STATUS]:,} ok",
            f"{self._num_ok_here / elapsed_s:.1f} ok/s",
        ]
        done_here = self._num_done - self._num_done_at_start
        if done_here:
            eta_s = (self._num_tasks - self._num_done) * elapsed_s / done_here
            parts.append(f"ETA {eta_s / 60:.0f} min" if eta_s >= 120 else f"ETA {eta_s:.0f} s")
        if failed:
            parts.append("failed " + ", ".join(f"{code} {n:,}" for code, n in failed.items()))
        return "  ".join(parts)


def done_before(num_done: int, num_tasks: int) -> str:
    """Return what an earlier start of a run has left to do, to be put behind the number of tasks.

    >>> [done_before(num, 3) for num in (0, 1, 3)]
    ['', ', 1 done before', ', complete before this start: nothing to do']
    """
    if num_done >= num_tasks:
        return ", complete before this start: nothing to do"
    return f", {num_done:,} done before" if num_done else ""


@contextlib.contextmanager
def interrupts_to(control: Control) -> Iterator[None]:
    """Pass Ctrl-C and SIGTERM on to ``control``: once to finish the task in hand, twice to drop it."""

    def handle(number: int, frame: FrameType | None) -> None:
        del number, frame
        if not control.is_collecting:
            raise KeyboardInterrupt  # nothing is in hand yet: parsing, probing, opening the device
        control.interrupt()
        if control.num_interrupts == 1:
            say("stopping after the task in hand; Ctrl-C again drops it")

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
