"""Progress of ``llmperf collect`` on stderr, and its reaction to Ctrl-C.

A terminal shows a live bar; otherwise a line is printed every minute. Both show the rate, the ETA
and the failures by code.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from llmperf.cli.console import is_quiet, say
from llmperf.progress import CollectProgress, DeviceProgress
from llmperf_common.files.visible import visible

if TYPE_CHECKING:
    from workers.collect.device_worker import Control, RunStart

_LINE_INTERVAL_S = 60.0
_MAX_SKIPPED_SHOWN = 5


class ProgressDisplay(DeviceProgress):
    """Displays the progress that the collect loop of one device reports."""

    def __init__(self, start: RunStart) -> None:
        self._line_after_s = time.monotonic() + _LINE_INTERVAL_S
        self._bar: Progress | None = None
        num_tasks, num_done = start.plan.num_tasks, start.num_tasks_done
        say(
            f"{start.device.name} ({start.device.platform}): {num_tasks:,} kernels"
            f"{done_before(num_done, num_tasks)}; plan {start.plan.plan_hash}"
        )
        for path, reason in start.skipped[:_MAX_SKIPPED_SHOWN]:
            say(f"skipped {path}: {reason}")
        if len(start.skipped) > _MAX_SKIPPED_SHOWN:
            say(f"skipped {len(start.skipped) - _MAX_SKIPPED_SHOWN:,} more files")
        if sys.stderr.isatty() and not is_quiet():
            self._bar = Progress(
                BarColumn(bar_width=30),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True),
            )
            self._row = self._bar.add_task("", total=num_tasks, completed=num_done)
            self._bar.start()
        super().__init__(start, self._display)

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Print that the collector lost the leases of tasks, and so gave the tasks up."""
        if tasks:
            say(f"{len(tasks)} tasks given up: {why}")

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _display(self, progress: CollectProgress) -> None:
        if self._bar is not None:
            self._bar.update(
                self._row,
                completed=progress.num_tasks_done,
                description=visible(f"{progress}  {progress.kernel}"),
            )
        elif time.monotonic() >= self._line_after_s:
            self._line_after_s = time.monotonic() + _LINE_INTERVAL_S
            say(str(progress))


def done_before(num_done: int, num_tasks: int) -> str:
    """Return text about tasks that earlier starts of a run finished, to append to a number.

    >>> [done_before(num, 3) for num in (0, 1, 3)]
    ['', ', 1 done before', ', complete before this start: nothing to do']
    """
    if num_done >= num_tasks:
        return ", complete before this start: nothing to do"
    return f", {num_done:,} done before" if num_done else ""


@contextlib.contextmanager
def interrupts_to(control: Control) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, stop ``control`` after the current task; on a second one, at once.

    A terminal that closes (SIGHUP) also stops it after the current task, unless the signal is
    ignored, as it is below ``nohup``.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if not control.is_collecting:
            raise KeyboardInterrupt  # no task has begun: kernels are still parsed or probed
        if number == signal.SIGHUP and control.num_interrupts:
            return  # when a terminal closes, both the system and the shell may send SIGHUP
        control.interrupt()
        if control.num_interrupts == 1:
            say("stopping after the current task; press Ctrl-C again to drop that task")

    handled = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    previous = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
