"""Progress of ``collect`` as values, for ``progress=`` of the Python API and the command's display.

Owns the counting, on one device and on a cluster, and the line of text. Prints nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from cluster.telemetry.observing import SilentClusterObserver
from llmperf_common.config import ConfigError
from llmperf_common.failures import OK_STATUS
from llmperf_common.records import Device, TaskResult
from workers.collect.observers import SilentObserver, statuses_of

if TYPE_CHECKING:
    from cluster.collect import ClusterObserver
    from cluster.pool.pool import ActorPool
    from llmperf_common.ledger.protocol import Lease
    from workers.collect.device_worker import RunStart
    from workers.collect.loop_interfaces import LoopObserver
    from workers.plan.plan import Plan, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectProgress:
    """Progress of ``collect``.

    Attributes:
        num_tasks: tasks of the plan; a task is one kernel on one device class.
        num_tasks_done: tasks with a result, including those of earlier starts of the same run.
        num_ok: timed launch configs, including those of earlier starts; on a cluster only those of
            this start.
        failures_by_code: failed launch configs by failure code, over the same starts as ``num_ok``.
        ok_per_s: timed launch configs per second since this start.
        eta_s: remaining seconds at the rate of this start; None before the first finished task.
        kernel: the kernel whose task was started last; empty on a cluster.
    """

    num_tasks: int
    num_tasks_done: int
    num_ok: int
    failures_by_code: dict[str, int]
    ok_per_s: float
    eta_s: float | None
    kernel: str

    def __str__(self) -> str:
        """Return one line: tasks, rows, rate, time left, failures."""
        parts = [
            f"{self.num_tasks_done:,}/{self.num_tasks:,} tasks",
            f"{self.num_ok:,} ok",
            f"{self.ok_per_s:.1f} ok/s",
        ]
        if self.eta_s is not None:
            long = self.eta_s >= 120
            parts.append(f"ETA {self.eta_s / 60:.0f} min" if long else f"ETA {self.eta_s:.0f} s")
        if self.failures_by_code:
            counts = (f"{code} {count:,}" for code, count in self.failures_by_code.items())
            parts.append("failed " + ", ".join(counts))
        return "  ".join(parts)


ProgressOption = bool | Callable[[CollectProgress], object] | None
"""None and False show nothing; True shows the command's display; a function is called with each
``CollectProgress``."""

LineProgress = bool | Callable[[str], object] | None
"""None and False show nothing; True writes lines to stderr; a function is called with each line
(training, prediction)."""

_ShownT = TypeVar("_ShownT")


def show_of(
    progress: bool | Callable[[_ShownT], object] | None, as_command: Callable[[_ShownT], object]
) -> Callable[[_ShownT], object]:
    """Return the function to show progress: ``as_command`` for True, a silent one for None, False.

    If ``progress`` is a function, it is returned.

    Raises:
        ConfigError: ``progress`` is neither True, False, None nor a function.
    """
    if progress is True:
        return as_command
    if not progress:
        return _silent
    if not callable(progress):
        raise ConfigError(f"progress={progress!r}: give True, False, None or a function")
    return progress


def _silent(_shown: object) -> None:
    """Show nothing."""


class _Counts:
    """The number of tasks of a run, and the time at which this start began."""

    def __init__(self, num_tasks: int, num_done_before: int) -> None:
        self._num_tasks = num_tasks
        self._num_done_before = num_done_before
        self._began_s = time.monotonic()

    def progress(
        self, num_done_here: int, num_ok_here: int, statuses: Counter[str], kernel: str = ""
    ) -> CollectProgress:
        """Return the progress; ``statuses`` is the number of rows by status."""
        elapsed_s = max(time.monotonic() - self._began_s, 1e-3)
        num_done = self._num_done_before + num_done_here
        num_left = self._num_tasks - num_done
        return CollectProgress(
            num_tasks=self._num_tasks,
            num_tasks_done=num_done,
            num_ok=statuses[OK_STATUS],
            failures_by_code={code: n for code, n in sorted(statuses.items()) if code != OK_STATUS},
            ok_per_s=num_ok_here / elapsed_s,
            eta_s=num_left * elapsed_s / num_done_here if num_done_here else None,
            kernel=kernel,
        )


class DeviceProgress(SilentObserver):
    """Reports the progress of one device at the start, and whenever a task begins or ends."""

    def __init__(self, start: RunStart, show: Callable[[CollectProgress], object]) -> None:
        self._show = show
        self._counts = _Counts(start.plan.num_tasks, start.num_tasks_done)
        self._statuses = Counter(start.statuses)
        self._num_done_here = 0
        self._num_ok_here = 0
        self._kernel = ""
        self._tell()

    def claimed(self, task: Task, lease: Lease) -> None:
        """Report that a task was leased."""
        del lease
        self._kernel = task.kernel.name
        self._tell()

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """Report that a task has its result, which is not yet committed."""
        del lease
        counts = statuses_of([result])
        self._statuses += counts
        self._num_ok_here += counts[OK_STATUS]
        self._num_done_here += 1
        self._tell()

    def _tell(self) -> None:
        self._show(
            self._counts.progress(
                self._num_done_here, self._num_ok_here, self._statuses, self._kernel
            )
        )


class PoolProgress(SilentClusterObserver):
    """Reports the common progress of all actors of a cluster, several times a second."""

    def __init__(self, show: Callable[[CollectProgress], object]) -> None:
        self._show = show
        self._counts = _Counts(0, 0)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """Take the plan when the actors begin."""
        del devices
        self._counts = _Counts(plan.num_tasks, num_tasks_done)

    def stands(self, pool: ActorPool) -> None:
        """Report the present state of all actors."""
        num_done_here = sum(place.num_tasks_done for place in pool.slots.values())
        statuses = pool.statuses
        self._show(self._counts.progress(num_done_here, statuses[OK_STATUS], statuses))


@contextlib.contextmanager
def observers(
    progress: ProgressOption,
) -> Iterator[Callable[[RunStart], LoopObserver]]:
    """Yield a function that makes the observer of a collect loop; close its display at the end."""
    show = show_of(progress, _silent)  # for True, ``observe`` below makes a display
    with contextlib.ExitStack() as stack:

        def observe(start: RunStart) -> LoopObserver:
            if progress is True:
                from llmperf.cli.progress import ProgressDisplay  # noqa: PLC0415

                return stack.enter_context(contextlib.closing(ProgressDisplay(start)))
            return DeviceProgress(start, show) if progress else SilentObserver()

        yield observe


def cluster_observer(
    progress: ProgressOption,
) -> ClusterObserver:
    """Return the observer of a run on a cluster."""
    if progress is True:
        from llmperf.cli.cluster_progress import ClusterProgress  # noqa: PLC0415

        return ClusterProgress()
    return PoolProgress(show_of(progress, _silent)) if progress else SilentClusterObserver()
