"""The run slot: one task at a time on the device, in a child that may die at any moment.

Owns the task's way through its configs and who is to blame for a death: the config announced last or, after
its result, the config reported last. The children themselves: ``run_children.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Device
from workers.channel import (
    ChildCrashed,
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    FromChild,
    LoadFailed,
    RunDone,
    RunJob,
)
from workers.child import Child
from workers.config import CollectConfig
from workers.run_children import START_TIMEOUT_S, RunChildren
from workers.task_state import TaskState, quarantined


class _Phase(Enum):
    """What the current child is at; ``STARTING`` and ``IDLE``: no job of ours."""

    STARTING = auto()
    IDLE = auto()
    LOADING = auto()
    IN_CONFIG = auto()
    BETWEEN = auto()


class RunSlot:
    """Times one task at a time; single-threaded, driven by its owner's polling.

    Args:
        start_child: starts a run child whose scratch folder has the given name.
        config: limits and timing.
        child_per_task: end the child after each task and count a bad exit as a failure; no spare then.
    """

    def __init__(
        self,
        *,
        start_child: Callable[[str], Child],
        config: CollectConfig,
        child_per_task: bool,
    ) -> None:
        self._children = RunChildren(start_child, keep_spare=not child_per_task)
        self._config = config
        self._child_per_task = child_per_task
        self._phase = _Phase.STARTING
        self._index = 0
        self._report = ""
        self._state: TaskState | None = None
        self._binary_path = Path()
        self._finished: list[TaskState] = []
        self._num_run = 0
        self._device: Device | None = None

    @property
    def state(self) -> TaskState | None:
        """The task being timed."""
        return self._state

    def open_device(self, *, measure_peaks: bool) -> Device:
        """Start a child, wait for it, and return the device (with peaks if asked).

        Raises:
            DeviceLostError: The child ends or gives no answer.
        """
        if self._device is None:
            self._device = self._children.open_device()
        if measure_peaks:
            self._device = self._children.measure_peaks()
        return self._device

    def use_device(self, device: Device) -> None:
        """Set the record (with peaks) that children judge times by; tasks may come now."""
        self._device = device
        if self._children.is_ready:
            self._phase = _Phase.IDLE
        self._children.start_spare()

    def run(self, state: TaskState, binary_path: Path) -> None:
        """Begin timing a compiled task."""
        assert self._state is None, "one task at a time"
        self._state = state
        self._binary_path = binary_path
        state.started_s = time.monotonic()
        self._go_on()

    def children(self) -> list[Child]:
        """The children to watch for messages."""
        return self._children.all()

    def handle(self, child: Child) -> None:
        """Take in what ``child`` has sent."""
        if self._children.hear_spare(child):
            return
        messages, hung_up = child.receive()
        for message in messages:
            if self._children.current is not child:
                return  # an earlier message ended it
            self._take(message)
        if hung_up and self._children.current is child:
            self._child_died(child)

    def check_deadlines(self, now_s: float) -> None:
        """Kill a child that gives no answer, and end a task that takes too long."""
        child, state, limits = self._children.current, self._state, self._config.limits
        if child is None or self._phase is _Phase.IDLE:
            return
        if self._phase is _Phase.STARTING:
            limit_s = START_TIMEOUT_S
        elif self._phase is _Phase.LOADING:
            limit_s = limits.build_timeout_s
        else:
            limit_s = limits.config_timeout_s
        if now_s - child.last_heard_s > limit_s:
            self._child_died(child, killed_after_s=limit_s)
        elif (
            state is not None
            and state.started_s is not None
            and now_s - state.started_s > limits.task_timeout_s
        ):
            detail = f"not reached within limits.task_timeout_s ({limits.task_timeout_s:g} s)"
            state.record_rest(_launch_failure(FailureCode.OVER_TIME_BUDGET, detail))
            self._children.drop()
            self._finish()

    def take_finished(self) -> list[TaskState]:
        """Return the tasks finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def drop(self) -> None:
        """Forget the task in hand; its child is killed."""
        self._children.drop()
        self._state = None

    def close(self) -> None:
        """Kill every child."""
        self._children.close()

    def _take(self, message: FromChild) -> None:
        state = self._state
        if isinstance(message, ChildCrashed):
            starting = (
                self._phase is _Phase.STARTING
            )  # then it is a device's trouble, told to the user
            self._report = message.summary if starting else message.traceback
        elif isinstance(message, ChildReady):
            self._children.note_ready()
            self._phase = _Phase.IDLE
            if state is not None:
                self._send_job()
        elif isinstance(message, ConfigStarted):
            self._phase, self._index = _Phase.IN_CONFIG, message.started_index
        elif isinstance(message, ConfigFinished):
            assert state is not None, "an outcome without a task"
            self._phase, self._index = _Phase.BETWEEN, message.finished_index
            state.record(message.finished_index, message.outcome)
            if message.sticky:
                self._children.drop()
                self._after_death()
        elif isinstance(message, LoadFailed):
            self._load_failed(message)
        else:
            assert isinstance(message, RunDone), message
            self._run_done(message)

    def _run_done(self, message: RunDone) -> None:
        state = self._state
        assert state is not None, "done without a task"
        if message.sentinel_ns is not None:
            state.note_sentinel(message.sentinel_ns)
        self._phase = _Phase.IDLE
        if self._child_per_task:
            bad_end = self._children.end_current()
            if bad_end is not None:
                detail = f"after its result, on exit: {bad_end}"
                state.record(self._index, _launch_failure(FailureCode.DEVICE_FAULT, detail))
        self._finish()

    def _load_failed(self, message: LoadFailed) -> None:
        if message.sticky:
            self._children.drop()
        else:
            self._phase = _Phase.IDLE
        self._fail_unstarted(message.load_failure)

    def _child_died(self, child: Child, killed_after_s: float | None = None) -> None:
        """Give the death to its owner and go on with the rest of the task."""
        phase, state = self._phase, self._state
        if phase is _Phase.STARTING:
            self._children.drop_failed_start(self._report)
        else:
            self._children.drop()
        if state is None:
            return
        if phase in (_Phase.STARTING, _Phase.IDLE):
            self._go_on()
        elif phase is _Phase.LOADING:
            code = FailureCode.BUILD_TIMEOUT if killed_after_s else FailureCode.COMPILER_CRASH
            self._died_loading(state, code, self._death_detail(child, killed_after_s))
        else:
            self._died_in_config(state, child, phase, killed_after_s)

    def _died_loading(self, state: TaskState, code: FailureCode, detail: str) -> None:
        state.num_deaths += 1
        code = FailureCode.INTERNAL_ERROR if self._report else code
        if state.num_deaths >= self._config.limits.deaths_to_quarantine:
            self._fail_unstarted(Failure(code=code, stage=Stage.BUILD, detail=detail))
        else:
            self._go_on()

    def _died_in_config(
        self, state: TaskState, child: Child, phase: _Phase, killed_after_s: float | None
    ) -> None:
        code = FailureCode.HANG if killed_after_s else FailureCode.DEVICE_FAULT
        code = FailureCode.INTERNAL_ERROR if self._report else code
        detail = self._death_detail(child, killed_after_s)
        if phase is _Phase.BETWEEN:
            detail = f"after its result: {detail}"
        state.record(self._index, _launch_failure(code, detail))
        self._after_death()

    def _death_detail(self, child: Child, killed_after_s: float | None) -> str:
        if self._report:
            return self._report
        if killed_after_s is not None:
            which = "build" if self._phase is _Phase.LOADING else "config"
            return f"killed after {killed_after_s:g} s without an answer (limits.{which}_timeout_s)"
        return child.describe_end()

    def _after_death(self) -> None:
        """Quarantine the kernel or go on with its other configs in a fresh child."""
        state = self._state
        assert state is not None, "a death without a task"
        state.num_deaths += 1
        if state.is_complete:
            self._finish()
        elif state.num_deaths >= self._config.limits.deaths_to_quarantine:
            state.record_rest(quarantined(state.num_deaths))
            self._finish()
        else:
            self._go_on()

    def _fail_unstarted(self, failure: Failure) -> None:
        """The kernel cannot be loaded: its one row, or the rest of its rows."""
        state = self._state
        assert state is not None, "a load without a task"
        if state.next_index == 0:
            state.fail_whole(failure)
        else:
            state.record_rest(failure)
        self._finish()

    def _finish(self) -> None:
        assert self._state is not None, "nothing to finish"
        self._finished.append(self._state)
        self._state = None
        self._num_run += 1

    def _go_on(self) -> None:
        """Send the task's open configs to a child, now or when one is ready."""
        if self._children.ensure():
            self._send_job()
        else:
            self._phase = _Phase.STARTING

    def _send_job(self) -> None:
        state, child, device = self._state, self._children.current, self._device
        assert state is not None, "nothing to run"
        assert child is not None, "nobody to run it"
        assert device is not None, "open_device() comes first"
        first = state.next_index
        job = RunJob(
            kernel=state.task.kernel,
            device=device,
            binary_path=str(self._binary_path),
            options=state.build.options if state.build else "",
            configs=state.configs[first:],
            first_index=first,
            check_indices=state.check_indices if self._config.timing.payload_checks else (),
            timing=self._config.timing,
            sentinel=self._num_run % self._config.timing.sentinel_every_tasks == 0,
        )
        self._phase, self._report = _Phase.LOADING, ""
        if not child.send(job):
            self._child_died(child)


def _launch_failure(code: FailureCode, detail: str) -> Failure:
    return Failure(code=code, stage=Stage.LAUNCH, detail=detail)
