"""Count what the launches of tasks execute, while the tasks are built and timed.

Decides which counts are awaited, and puts them into the tasks. A count never decides whether or how
a config is timed. A kernel that cannot be counted gets a reason instead. ``workers/work`` does the
counting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from llmperf_common.failures import Failure, FailureCode, Stage
from workers.device.interface import DeviceRef
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
        """Queue a planned task for counting, if tasks are counted at all."""
        if self._helper_devices.counts_work:
            item = CountedKernel(kernel=state.task.kernel, configs=state.configs)
            self._open[state.lease.task] = (state, item)
            self._pool.submit(item)

    def awaits(self, state: TaskState) -> bool:
        """Whether a task's count is not finished; False for a task that has failed as a whole."""
        _, item = self._open.get(state.lease.task, (None, None))
        return item is not None and item.configs is state.configs

    def start_waiting(self, *, most_busy: int) -> None:
        """Hand waiting tasks to at most ``most_busy`` children, once the device is known."""
        where = self._helper_devices.counting() if self._helper_devices.counts_work else None
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
            _logger.warning("columns `work` stay empty from here on: %s", error)
            self._why_off = f"the children that count cannot start: {error}"
            self._pool.close()

    def _take_counted(self) -> None:
        finished = {id(item) for item in self._pool.take_finished()}
        for task, (state, item) in list(self._open.items()):
            if id(item) in finished:
                del self._open[task]
                if item.configs is state.configs:
                    state.works = item.outcomes

    def _give_up(self) -> None:
        """Give every waiting task the reason instead of a count."""
        failure = Failure(code=FailureCode.UNSUPPORTED, stage=Stage.PROBE, detail=self._why_off)
        self._pool.take_waiting(lambda _item: True)
        for state, item in self._open.values():
            if item.configs is state.configs:
                state.works = (failure,) * len(state.configs)
        self._open.clear()
