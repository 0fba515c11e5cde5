"""Run the tasks of one device: some children analyse and compile them, others time them.

Owns the order of work, in two modes. On a GPU, compiling and counting run during the timing, and
several run children load kernels and hold the device's lock in turn. On a CPU device (``quiet``)
nothing else runs while a task is timed, and each task gets a child of its own, because a kernel on
a CPU device can damage its process unnoticed.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path

from llmperf_common.awake_clock import awake_s
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Device
from workers.config import CollectConfig
from workers.device.interface import DeviceRef
from workers.device.nvidia.monitor import Monitor
from workers.execution.analysing import AnalysisWork
from workers.execution.compiling import CompileWork, is_buildable
from workers.execution.executor import FinishedTask
from workers.execution.extent_check import wants_ranges
from workers.execution.helper_devices import HelperDevices
from workers.execution.limits import limits_on
from workers.execution.running import RunSlot
from workers.execution.task_counting import TaskCounting
from workers.execution.task_state import TaskState
from workers.measure.launch_processor import LaunchProcessor
from workers.plan.plan import Plan, Task
from workers.sandbox.child import Child
from workers.sandbox.child_pool import ChildPool
from workers.sandbox.child_starter import ChildStarter
from workers.sandbox.scratch import check_space

_WARM_COMPILERS = 2
"""Compile children that start before the first task is known; the others start when needed."""
_WARM_COUNTERS = 8
_MOST_WAIT_S = 10.0
"""Seconds that a device with nothing else to do waits for the access ranges of a built task.
Without them a config may fault. A fault takes less than a second of the device's time, but the
kernel then loses all other configs of the same input strategy."""
_NO_CONFIG = Failure(
    code=FailureCode.UNSUPPORTED,
    stage=Stage.LAUNCH,
    detail="no launch config fits the device: its required work-group size or smallest buffers "
    "exceed the limits",
)


class DevicePipeline:
    """A ``TaskExecutor`` over real children.

    Args:
        ref: the device; every child gets its environment.
        config: limits, timing and the number of tasks to hold at once.
        scratch: an empty folder for binaries and caches.
        worker_id: the worker's name, written into every row.
        quiet: whether nothing may run during the timing, and each task has its own run child.
    """

    def __init__(
        self,
        *,
        ref: DeviceRef,
        config: CollectConfig,
        scratch: Path,
        worker_id: str,
        quiet: bool,
        launches: LaunchProcessor,
    ) -> None:
        self._ref = ref
        self._limits = limits_on(config, gpu=ref.selector.startswith("cuda"), shared=not quiet)
        self._scratch = scratch
        self._worker_id = worker_id
        self._quiet = quiet
        self._compiled: deque[TaskState] = deque()
        self._built: list[TaskState] = []
        """Built tasks whose access ranges a child may still be finding."""
        self._idle_since_s = 0.0
        """When the device last had a task or no built task waited for it."""
        self._timed: list[TaskState] = []
        """Tasks that were timed; the count of their work may still be under way."""
        self._finished: list[TaskState] = []
        self._starter = ChildStarter(scratch)
        self._plan: Plan | None = None
        self._device_id = ""
        self._monitor: Monitor | None = None
        self._note: Callable[..., None] = lambda *_, **__: None
        self._helper_devices = HelperDevices(ref, config.limits)
        self._analysers: ChildPool[TaskState] = ChildPool(
            start_child=self._analysis_child,
            name="analyse",
            work=AnalysisWork(
                timeout_s=self._limits.analysis_timeout_s, chooses=config.plan.plain_share < 1
            ),
            num_children=self._limits.num_analysis_children,
        )
        self._compile_work = CompileWork(
            scratch=scratch,
            timeout_s=self._limits.build_timeout_s,
            reads_resources=config.limits.kernel_resources == "auto"
            and ref.selector.startswith("cuda"),
        )
        self._compilers: ChildPool[TaskState] = ChildPool(
            start_child=lambda name: self._starter.start(
                "workers.execution.compile_child", name, ref, beside_timing=not quiet
            ),
            name="compile",
            work=self._compile_work,
            num_children=self._limits.num_compile_children,
        )
        self._pools = (self._analysers, self._compilers)
        self._counting = TaskCounting(
            start_child=lambda name, where: self._starter.start(
                "workers.work.child", name, where, beside_timing=not quiet
            ),
            helper_devices=self._helper_devices,
            timeout_s=self._limits.work_timeout_s,
            num_children=self._limits.num_analysis_children,
        )
        self._slot = RunSlot(
            start_child=lambda name: self._starter.start(
                "workers.measure.run_child", name, ref, is_timing=True
            ),
            limits=self._limits,
            timing=config.timing,
            child_per_task=quiet,
            lock_path=scratch / "device.lock",
            launches=launches,
        )

    def open_device(self, *, measure_peaks: bool) -> Device:
        """Open the device in a run child; raises DeviceLostError."""
        if measure_peaks and not self._quiet:
            self._helper_devices.await_known()  # the search launches kernels on the devices
            self._compilers.await_started()  # opening contexts would disturb the peaks
        return self._slot.open_device(measure_peaks=measure_peaks)

    def get_ready(self) -> None:
        """Start the children for the first tasks once the device is locked; a start takes 1 s."""
        if not self._quiet:
            self._compilers.warm_up(_WARM_COMPILERS)
            self._helper_devices.look()

    def warm_up(self) -> None:
        """Start the remaining children before there is a task, once the helper device is known.

        If they started with the first tasks, a hundred children of a host with several GPUs would
        start at once, and the devices would be idle for seconds.
        """
        if self._quiet:
            return
        self._compilers.warm_up(self._limits.num_compile_children)
        if self._helper_devices.checks_access:
            self._helper_devices.await_known()
            self._counting.warm_up(_WARM_COUNTERS)

    def use(
        self,
        plan: Plan,
        device: Device,
        *,
        note: Callable[..., None],
        monitor: Monitor | None = None,
    ) -> None:
        """Begin with the tasks of a plan.

        Args:
            plan: the plan of the tasks.
            device: the device's record; the tasks' rows refer to it.
            note: receives an event's name and fields, for the event stream.
            monitor: knows the device's clock, temperature and throttling at any moment.
        """
        self._plan, self._device_id, self._note = plan, device.device_id, note
        self._monitor = monitor
        for child in self._slot.children():  # only the one that opened the device
            self._starter.keep_cache_of(child)
        self._slot.use_device(device)

    def num_wanted(self) -> int:
        """Return how many more tasks the pipeline would take now.

        If nothing may run during the timing, a group of tasks is prepared together and then timed
        one by one. If one task at a time were prepared, all compilers but one would be idle.
        """
        if self._quiet and (self._compiled or self._slot.states):
            return 0
        return max(0, self._limits.claim_ahead - len(self.leases()))

    def submit(self, task: Task, lease: Lease) -> None:
        """Take a task; a task that fails before it needs a device is finished at once."""
        assert self._plan is not None, "use() comes first"
        state = TaskState(
            plan=self._plan,
            task=task,
            lease=lease,
            device_id=self._device_id,
            worker_id=self._worker_id,
            now_us=lambda: time.time_ns() // 1000,
        )
        if state.is_planned:
            self._begin(state)
        else:
            self._analysers.submit(state)

    def poll(self, timeout_s: float) -> list[FinishedTask]:
        """Go on with the work for at most about ``timeout_s``; return the tasks that finished.

        Raises:
            DeviceLostError: The device cannot be opened again, or children that compile or analyse
                cannot start.
            StoreError: The scratch folder is full; that may be why tasks have just failed.
        """
        self._start_work()
        by_descriptor = {child.fileno(): child for child in self._children()}
        timeout_s = 0.0 if self._finished else self._slot.longest_wait_s(timeout_s)
        for descriptor in _readable(list(by_descriptor), timeout_s):
            child = by_descriptor[descriptor]
            if child in self._slot.children():
                self._slot.handle(child)
            if child in self._counting.children():
                self._counting.handle(child)
            for pool in self._pools:
                if child in pool.children():
                    pool.handle(child)
        now_s = awake_s()
        for pool in self._pools:
            pool.check_deadlines(now_s)
        self._counting.check_deadlines(now_s)
        self._slot.check_deadlines(now_s)
        self._take_over()
        return self._drain()

    def can_build(self, task: Task) -> bool:
        """Build a task's kernel and drop the result; return whether the build succeeded.

        Raises:
            ChildStartError: No compile child can be started.
        """
        assert self._plan is not None, "use() comes first"
        return is_buildable(
            task,
            self._plan,
            start_child=lambda name: self._starter.start(
                "workers.execution.compile_child", name, self._ref
            ),
            work=CompileWork(scratch=self._scratch, timeout_s=self._limits.build_timeout_s),
        )

    def leases(self) -> list[Lease]:
        """Return the leases of all tasks that were submitted and not yet returned."""
        return [state.lease for state in self._states()]

    def abandon(self, tasks: Collection[int]) -> None:
        """Drop these tasks at once, even if they are running, because their leases are lost."""
        lost = set(tasks)
        for pool in self._pools:
            pool.drop(lambda state: state.lease.task in lost)
        for state in self._states():
            if state.lease.task in lost:
                self._counting.forget(state)
        for state in (*self._built, *self._compiled):
            if state.lease.task in lost:
                self._compile_work.forget(state)
        self._built = [s for s in self._built if s.lease.task not in lost]
        self._compiled = deque(s for s in self._compiled if s.lease.task not in lost)
        self._timed = [s for s in self._timed if s.lease.task not in lost]
        self._finished = [s for s in self._finished if s.lease.task not in lost]
        self._slot.drop(lost)

    def abandon_waiting(self) -> list[Lease]:
        """Drop the tasks not yet begun and return their leases; the task in hand goes on."""
        waiting = [*self._states_ahead(), *self._slot.waiting()]
        leases = [state.lease for state in waiting if not state.is_complete]
        self.abandon([lease.task for lease in leases])
        return leases

    def close(self) -> None:
        """End every child."""
        for pool in self._pools:
            pool.close()
        self._counting.close()
        self._slot.close()

    def _start_work(self) -> None:
        if not (self._quiet and self._slot.states):
            if self._quiet:
                self._slot.start_children(len(self._states_ahead()))
            # Counting and analysis share one limit on children. Counting comes first, because its
            # tasks have already been analysed.
            most = self._limits.num_analysis_children
            self._counting.start_waiting(most_busy=most - self._analysers.num_busy)
            self._analysers.start_waiting(most_busy=most - self._counting.num_busy)
            self._compilers.start_waiting()
        is_calm = (
            self._counting.is_idle
            and all(pool.is_idle for pool in self._pools)
            and not self._slot.is_starting
        )
        while self._slot.has_capacity and self._compiled and (is_calm or not self._quiet):
            state = self._compiled.popleft()
            self._slot.run(state, self._compile_work.binary_path(state))

    def _begin(self, state: TaskState) -> None:
        """Queue a planned task for its children; finish it at once if no config can be launched."""
        state.trace.planned_s = time.monotonic()
        if state.configs[0].global_size:
            checks = self._helper_devices.checks_access
            wants = wants_ranges(state, can_try=checks, spares=checks)
            state.awaits_ranges = wants and not state.is_complete
            self._compilers.submit(state)
            self._counting.submit(state)
        else:
            state.fail_whole(state.task.kernel.failure or _NO_CONFIG)
            self._finished.append(state)

    def _take_over(self) -> None:
        for state in self._analysers.take_finished():
            self._begin(state)
        for state in (built := self._compilers.take_finished()):
            state.trace.built_s = time.monotonic()
        self._built += built
        # If all configs of a task would leave their own memory, the task is not built.
        self._built += self._compilers.take_waiting(lambda state: state.is_complete)
        ready = [state for state in self._built if state.is_complete or not state.awaits_ranges]
        self._built = [state for state in self._built if state not in ready]
        for state in ready:
            if state.is_complete:
                self._compile_work.forget(state)
            (self._timed if state.is_complete else self._compiled).append(state)
        self._await_no_longer()
        self._compiled.extendleft(self._slot.take_returned())
        for state in self._slot.take_finished():
            self._compile_work.forget(state)
            self._timed.append(state)
        for state in [state for state in self._timed if not self._counting.awaits(state)]:
            self._counting.forget(state)
            self._timed.remove(state)
            self._finished.append(state)

    def _drain(self) -> list[FinishedTask]:
        if self._finished:
            check_space(self._scratch)
        finished, self._finished = self._finished, []
        for state in finished:
            if state.trace.holds:
                self._note("timed", task_id=state.task.task_id, **state.trace.as_event())
        return [
            FinishedTask(lease=state.lease, result=state.result(self._monitor))
            for state in finished
        ]

    def _states(self) -> list[TaskState]:
        return [*self._states_ahead(), *self._slot.states, *self._timed, *self._finished]

    def _children(self) -> list[Child]:
        return [
            *(child for pool in self._pools for child in pool.children()),
            *self._counting.children(),
            *self._slot.children(),
        ]

    def _states_ahead(self) -> list[TaskState]:
        """Return the tasks not yet on the device, each once even if two pools hold it."""
        in_pools = [state for pool in self._pools for state in pool.items()]
        ahead = [*in_pools, *self._built, *self._compiled]
        return list({id(state): state for state in ahead}.values())

    def _await_no_longer(self) -> None:
        """If the device was idle too long, let a built task run with the ranges known so far."""
        now_s = time.monotonic()
        if self._slot.states or self._compiled or not self._built:
            self._idle_since_s = now_s
        elif now_s - self._idle_since_s > _MOST_WAIT_S:
            self._counting.check_access(self._built[0])
            self._idle_since_s = now_s

    def _analysis_child(self, name: str) -> Child:
        where = self._helper_devices.analysis()
        if where == self._ref:  # each child has a context on the timed card
            self._analysers.allow(self._limits.num_compile_children)
        return self._starter.start(
            "workers.execution.analysis_child",
            name,
            where,
            beside_timing=not self._quiet,
        )


def _readable(descriptors: list[int], timeout_s: float) -> list[int]:
    if not descriptors:
        time.sleep(min(timeout_s, 0.05))
        return []
    ready, _, _ = select.select(descriptors, [], [], timeout_s)
    return ready
