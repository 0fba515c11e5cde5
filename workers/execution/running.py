"""The run slot: the tasks on one device, each in a lane whose child may die at any moment.

A lane is a run child with its task (``run_lane.py``). Decides which lane takes the next task. On a
GPU several lanes load programs side by side and hold the device's lock in turn, so the device
seldom waits for a load or, after a fault, for a new context. On a CPU device one lane at a time has
a task, and each task gets a new child. The children of the next few tasks start together while no
task is timed.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from llmperf_common.records import Device
from workers.config import TimingConfig
from workers.execution.limits import Limits
from workers.execution.run_lane import RunLane
from workers.execution.task_state import TaskState
from workers.measure.launch_processor import LaunchProcessor
from workers.sandbox.child import Child
from workers.sandbox.run_children import ENDING_POLL_S, ChildStartError

_logger = logging.getLogger(__name__)

_MOST_AT_WORK = 4
"""Maximum number of started children with a task. Each of them may allocate buffers
(``_AHEAD_SHARE`` in ``opencl/buffers.py``). The other started children replace dead children."""


class RunSlot:
    """Times tasks; single-threaded; its owner drives it by polling.

    Args:
        start_child: starts a run child whose scratch folder has the given name.
        limits: what a kernel may cost, and the number of lanes.
        timing: how configs are timed.
        child_per_task: whether to end the child after each task and count a bad exit as a failure.
        lock_path: the file that the lanes lock; not used with ``child_per_task``, where one lane at
            a time has a task.
        launches: the processor from which all launches are issued.
    """

    def __init__(
        self,
        *,
        start_child: Callable[[str], Child],
        limits: Limits,
        timing: TimingConfig,
        child_per_task: bool,
        lock_path: Path,
        launches: LaunchProcessor,
    ) -> None:
        self._lanes = [
            RunLane(
                start_child=start_child,
                name=f"run-{number}",
                limits=limits,
                timing=timing,
                child_per_task=child_per_task,
                lock_path=None if child_per_task or limits.num_run_children == 1 else lock_path,
                launches=launches,
            )
            for number in range(limits.num_run_children)
        ]
        self._child_per_task = child_per_task
        self._timing = timing
        self._num_run = 0
        self._returned: list[TaskState] = []

    @property
    def states(self) -> list[TaskState]:
        """The tasks in hand."""
        return [lane.state for lane in self._lanes if lane.state is not None]

    @property
    def has_capacity(self) -> bool:
        """Whether a lane may take a task now."""
        if self._child_per_task:
            return not self.states
        free = [lane for lane in self._lanes if lane.state is None]
        if any(lane.child.is_ready for lane in free):
            busy = [lane for lane in self._lanes if lane.state is not None and lane.child.is_ready]
            return len(busy) < _MOST_AT_WORK
        return bool(free) and len(self.states) < _MOST_AT_WORK

    @property
    def is_starting(self) -> bool:
        """Whether a child without a task is starting."""
        return any(lane.state is None and lane.is_starting for lane in self._lanes)

    @property
    def is_ending(self) -> bool:
        """Whether a killed child has not ended yet; after its end, ``check_deadlines`` goes on."""
        return any(lane.is_ending for lane in self._lanes)

    def longest_wait_s(self, timeout_s: float) -> float:
        """Return how long the owner may wait for messages, at most ``timeout_s`` seconds."""
        return min(timeout_s, ENDING_POLL_S) if self.is_ending else timeout_s

    def open_device(self, *, measure_peaks: bool) -> Device:
        """Start a child, wait for it, and return the device (with its peaks if asked for).

        Raises:
            DeviceLostError: The child ends or does not answer.
        """
        first = self._lanes[0]
        if first.device is None:
            first.device = first.child.open_device()
        if measure_peaks:
            first.device = first.child.measure_peaks()
        return first.device

    def use_device(self, device: Device) -> None:
        """Set the device's record, with peaks, for the checks of times; tasks may come now."""
        for lane in self._lanes:
            lane.use_device(device)
            if not self._child_per_task:
                lane.warm_up()

    def start_children(self, num_tasks: int) -> None:
        """Start children for the next ``num_tasks`` tasks, once all earlier children are used up.

        They start together, and no task is timed meanwhile. If one of them dies before its task, it
        is not replaced while others are left: where memory is short, the others suffice.

        Raises:
            StoreError: The scratch folder is full or gone.
        """
        if not self.children():
            for lane in self._lanes[:num_tasks]:
                lane.warm_up()

    def run(self, state: TaskState, binary_path: Path) -> None:
        """Begin a compiled task; there must be capacity. Raises DeviceLostError."""
        self._hear_idle()
        free = [lane for lane in self._lanes if lane.state is None]
        # Prefer a lane whose child is ready, because in any other lane the task would wait.
        lane = next((lane for lane in free if lane.child.is_ready), free[0])
        sentinel = self._num_run % self._timing.sentinel_every_tasks == 0
        self._num_run += 1
        lane.run(state, binary_path, sentinel=sentinel)

    def children(self) -> list[Child]:
        """The children to watch for messages."""
        return [lane.child.current for lane in self._lanes if lane.child.current is not None]

    def _hear_idle(self) -> None:
        """Process what children without a task have sent; one of them may have died unnoticed."""
        idle = [lane.child.current for lane in self._lanes if lane.state is None]
        for child in select.select([one for one in idle if one is not None], [], [], 0)[0]:
            self.handle(child)

    def handle(self, child: Child) -> None:
        """Process the messages of ``child``.

        Raises:
            DeviceLostError: The device cannot be used any more.
        """
        for lane in list(self._lanes):
            if lane.child.current is child:
                self._drive(lane, lane.hear)

    def check_deadlines(self, now_s: float) -> None:
        """Kill silent children; end tasks that take too long. Raises DeviceLostError."""
        for lane in list(self._lanes):
            self._drive(lane, partial(lane.check_deadlines, now_s))

    def take_returned(self) -> list[TaskState]:
        """Return the tasks that had not begun when their lanes were closed."""
        returned, self._returned = self._returned, []
        return returned

    def waiting(self) -> list[TaskState]:
        """Return the tasks in hand that are loading or wait for the device lock."""
        return [lane.state for lane in self._lanes if lane.state is not None and not lane.has_begun]

    def _drive(self, lane: RunLane, action: Callable[[], None]) -> None:
        """Let a lane act; close it if its child cannot start but another lane's child is ready."""
        try:
            action()
            if not self._child_per_task:
                lane.warm_up()
        except ChildStartError as error:
            if not any(other.child.is_ready for other in self._lanes if other is not lane):
                raise
            _logger.warning("collection on the device continues with one process fewer: %s", error)
            self._lanes.remove(lane)
            state = lane.take_back()
            if state is not None:
                self._returned.append(state)

    def take_finished(self) -> list[TaskState]:
        """Return the tasks finished since the last call."""
        return [state for lane in self._lanes for state in lane.take_finished()]

    def drop(self, tasks: Collection[int]) -> None:
        """Drop these tasks (numbers in the plan) and kill their children."""
        for lane in self._lanes:
            if lane.state is not None and lane.state.lease.task in tasks:
                lane.take_back()

    def close(self) -> None:
        """Kill every child."""
        for lane in self._lanes:
            lane.close()
