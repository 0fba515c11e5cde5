"""Count what the launches of tasks execute, and find the bytes that they access.

Decides which counts are awaited, and puts them into the tasks. A count never decides whether or how
a config is timed, but its access ranges may (``access_check.py``). A kernel that cannot be counted
gets a reason instead. ``workers/work`` does the counting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from llmperf_common.failures import Failure, FailureCode, Stage
from workers.device.interface import DeviceRef
from workers.execution.access_check import spare_unbearable
from workers.execution.helper_devices import HelperDevices
from workers.execution.task_state import TaskState
from workers.sandbox.child import Child
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.run_children import ChildStartError
from workers.work.children import COUNT_CPU_S, CountedKernel, CountWork

_logger = logging.getLogger(__name__)


class TaskCounting:
    """Counts in killable children what the launches of tasks execute; its owner polls it.

    Args:
        start_child: starts a counting child on a device; its scratch folder has the given name.
        helper_devices: knows the counting device, or why there is none.
        timeout_s: seconds for all configs of a task.
        num_children: maximum number of children at once.
    """

    def __init__(
        self,
        *,
        start_child: Callable[[str, DeviceRef], Child],
        helper_devices: HelperDevices,
        timeout_s: float,
        num_children: int,
    ) -> None:
        self._start_child = start_child
        self._helper_devices = helper_devices
        self._num_children = num_children
        self._open: dict[int, tuple[TaskState, CountedKernel]] = {}
        """The tasks and their counts, by the task's index in the plan."""
        self._why_off = ""
        self._pool: ChildPool[CountedKernel] = ChildPool(
            start_child=self._start,
            name="count",
            work=CountWork(timeout_s, min(timeout_s, COUNT_CPU_S)),
            num_children=num_children,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no task waits and no child is at work."""
        return self._pool.is_idle

    @property
    def num_busy(self) -> int:
        """The number of children at work."""
        return self._pool.num_busy

    def submit(self, state: TaskState) -> None:
        """Queue a planned task, if tasks are counted or its access ranges are wanted."""
        counts = self._helper_devices.counts_work
        if counts or state.awaits_ranges:
            item = CountedKernel(
                kernel=state.task.kernel, configs=state.configs, only_ranges=not counts
            )
            self._open[state.lease.task] = (state, item)
            self._pool.submit(item)

    def awaits(self, state: TaskState) -> bool:
        """Whether a task's count is not finished; False for a task that has failed as a whole."""
        _, item = self._open.get(state.lease.task, (None, None))
        return item is not None and item.configs is state.configs

    def warm_up(self, num_children: int) -> None:
        """Start children before there is a task, if the device is known."""
        if isinstance(self._helper_devices.counting(), DeviceRef):
            self._guarded(lambda: self._pool.warm_up(num_children))

    def check_access(self, state: TaskState) -> None:
        """Give up the configs that a GPU would not tolerate, by the access ranges known so far."""
        state.awaits_ranges = False
        _, item = self._open.get(state.lease.task, (None, None))
        if item is not None and item.configs is state.configs:
            _check_access(state, item)
            if item.only_ranges:
                self.forget(state)

    def start_waiting(self, *, most_busy: int) -> None:
        """Hand waiting tasks to at most ``most_busy`` children, once the device is known."""
        is_needed = self._helper_devices.launches_virtually
        where = self._helper_devices.counting() if is_needed else None
        if isinstance(where, str):
            self._why_off = where
        if self._why_off:
            self._give_up()
        elif where is not None:
            self._guarded(lambda: self._pool.start_waiting(most_busy=most_busy))

    def children(self) -> list[Child]:
        """The children to watch for messages."""
        return self._pool.children()

    def handle(self, child: Child) -> None:
        """Process the messages of ``child``."""
        self._guarded(lambda: self._pool.handle(child))
        self._take_counted()

    def check_deadlines(self, now_s: float) -> None:
        """Kill the children that take too long."""
        self._guarded(lambda: self._pool.check_deadlines(now_s))
        self._take_counted()

    def forget(self, state: TaskState) -> None:
        """Drop the count of a finished or lost task; a child at work on it may finish."""
        _, item = self._open.pop(state.lease.task, (None, None))
        if item is not None:
            self._pool.take_waiting(lambda one: one is item)

    def close(self) -> None:
        """End every child."""
        self._pool.close()

    def _start(self, name: str) -> Child:
        where = self._helper_devices.counting()
        assert isinstance(where, DeviceRef), "children are started where the device is known"
        return self._start_child(name, where)

    def _guarded(self, step: Callable[[], None]) -> None:
        """Do a step of the pool; if children cannot start, end the counting but not the run."""
        try:
            step()
        except ChildStartError as error:
            missing = self._helper_devices.missing_without()
            _logger.warning("from here on %s: %s", missing, error)
            self._why_off = f"the children that count cannot start: {error}"
            self._pool.close()

    def _take_counted(self) -> None:
        finished = {id(item) for item in self._pool.take_finished()}
        for task, (state, item) in list(self._open.items()):
            if id(item) in finished:
                del self._open[task]
                if item.configs is not state.configs:
                    continue
                if not item.only_ranges:
                    state.works = item.outcomes
                if state.awaits_ranges:
                    state.awaits_ranges = False
                    _check_access(state, item)

    def _give_up(self) -> None:
        """Give every waiting task the reason why it is not counted."""
        failure = Failure(code=FailureCode.UNSUPPORTED, stage=Stage.PROBE, detail=self._why_off)
        self._pool.take_waiting(lambda _item: True)
        for state, item in self._open.values():
            if item.configs is not state.configs:
                continue
            if state.awaits_ranges:
                state.awaits_ranges = False
                _check_access(state, item)
            if not item.only_ranges:
                state.works = (failure,) * len(state.configs)
        self._open.clear()


def _check_access(state: TaskState, item: CountedKernel) -> None:
    """Give up configs by the access ranges in ``item``."""
    state.trace.checked_s = time.monotonic()
    spare_unbearable(state, item.ranges, item.covered)
