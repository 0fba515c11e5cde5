"""The run slot: one task at a time on the device, in a child that may die at any moment.

Owns the run child, its warm spare, and who is to blame for a death: the config announced last or, after its
result, the config reported last.
"""

from __future__ import annotations

import itertools
import select
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
    PeaksJob,
    RunDone,
    RunJob,
)
from workers.child import Child
from workers.config import CollectConfig
from workers.task_state import TaskState, quarantined

_START_TIMEOUT_S = 120.0
_EXIT_TIMEOUT_S = 10.0
_MAX_FAILED_STARTS = 3


class DeviceLostError(Exception):
    """The device cannot be opened any more; the message says how the last child ended."""


class _Phase(Enum):
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
        self._start_child = start_child
        self._config = config
        self._child_per_task = child_per_task
        self._names = itertools.count()
        self._child: Child | None = None
        self._spare: Child | None = None
        self._spare_ready = False
        self._phase = _Phase.STARTING
        self._index = 0
        self._report = ""
        self._failed_starts = 0
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
        for attempts_left in reversed(range(_MAX_FAILED_STARTS)):
            try:
                self._ensure_child()
                if self._device is None or self._phase is _Phase.STARTING:
                    self._device = self._await_ready()
                if measure_peaks:
                    assert self._child is not None, "_await_ready leaves a child or raises"
                    self._child.send(PeaksJob())
                    self._device = self._await_ready()
            except DeviceLostError:
                if not attempts_left:
                    raise
            else:
                return self._device
        raise AssertionError("the last attempt returns or raises")

    def use_device(self, device: Device) -> None:
        """Set the record (with peaks) that children judge times by."""
        self._device = device

    def run(self, state: TaskState, binary_path: Path) -> None:
        """Begin timing a compiled task."""
        assert self._state is None, "one task at a time"
        self._state = state
        self._binary_path = binary_path
        state.started_s = time.monotonic()
        self._ensure_child()
        if self._phase is _Phase.IDLE:
            self._send_job()

    def children(self) -> list[Child]:
        """The children to watch for messages."""
        return [child for child in (self._child, self._spare) if child is not None]

    def handle(self, child: Child) -> None:
        """Take in what ``child`` has sent."""
        messages, hung_up = child.receive()
        if child is self._spare:
            self._spare_ready = self._spare_ready or bool(messages)
            if hung_up:
                child.kill()
                self._spare = None
            return
        for message in messages:
            if self._child is not child:
                return  # an earlier message ended it
            self._take(message)
        if hung_up and self._child is child:
            self._child_died()

    def check_deadlines(self, now_s: float) -> None:
        """Kill a child that gives no answer, and end a task that takes too long."""
        child, state = self._child, self._state
        if child is None or self._phase is _Phase.IDLE:
            return
        limits = self._config.limits
        if self._phase is _Phase.STARTING:
            limit_s = _START_TIMEOUT_S
        elif self._phase is _Phase.LOADING:
            limit_s = limits.build_timeout_s
        else:
            limit_s = limits.config_timeout_s
        if now_s - child.last_heard_s > limit_s:
            self._child_died(killed_after_s=limit_s)
        elif (
            state is not None
            and state.started_s is not None
            and now_s - state.started_s > limits.task_timeout_s
        ):
            detail = f"not reached within limits.task_timeout_s ({limits.task_timeout_s:g} s)"
            state.record_rest(_launch_failure(FailureCode.OVER_TIME_BUDGET, detail))
            self._drop_child()
            self._finish()

    def take_finished(self) -> list[TaskState]:
        """Return the tasks finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def drop(self) -> None:
        """Forget the task in hand; its child is killed."""
        self._drop_child()
        self._state = None

    def close(self) -> None:
        """Kill every child."""
        self._drop_child()
        if self._spare is not None:
            self._spare.kill()
            self._spare = None

    def _take(self, message: FromChild) -> None:
        state = self._state
        if isinstance(message, ChildCrashed):
            self._report = message.traceback
        elif isinstance(message, ChildReady):
            self._failed_starts = 0
            self._phase = _Phase.IDLE
            self._start_spare()
            if state is not None:
                self._send_job()
        elif isinstance(message, ConfigStarted):
            self._phase, self._index = _Phase.IN_CONFIG, message.started_index
        elif isinstance(message, ConfigFinished):
            assert state is not None, "an outcome without a task"
            self._phase, self._index = _Phase.BETWEEN, message.finished_index
            state.record(message.finished_index, message.outcome)
            if message.sticky:
                self._drop_child()
                self._after_death()
        elif isinstance(message, LoadFailed):
            self._load_failed(message)
        else:
            assert isinstance(message, RunDone), message
            self._run_done(message)

    def _run_done(self, message: RunDone) -> None:
        state, child = self._state, self._child
        assert state is not None, "done without a task"
        assert child is not None, "done without a child"
        if message.sentinel_ns is not None:
            state.note_sentinel(message.sentinel_ns)
        self._phase = _Phase.IDLE
        if self._child_per_task:
            clean = child.close(_EXIT_TIMEOUT_S)
            self._child = None
            if not clean:
                detail = f"after its result, on exit: {child.describe_end()}"
                state.record(self._index, _launch_failure(FailureCode.DEVICE_FAULT, detail))
        self._finish()

    def _load_failed(self, message: LoadFailed) -> None:
        assert self._state is not None, "a load without a task"
        if message.sticky:
            self._drop_child()
        else:
            self._phase = _Phase.IDLE
        self._fail_unstarted(message.load_failure)

    def _child_died(self, killed_after_s: float | None = None) -> None:
        """Give the death to its owner and go on with the rest of the task."""
        child, phase, state = self._child, self._phase, self._state
        assert child is not None, "no child to die"
        self._drop_child()
        if phase is _Phase.STARTING:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise DeviceLostError(self._report or child.describe_end())
        if phase in (_Phase.STARTING, _Phase.IDLE) or state is None:
            if state is not None:
                self._ensure_child()
            return
        if phase is _Phase.LOADING:
            state.num_deaths += 1
            code = FailureCode.BUILD_TIMEOUT if killed_after_s else FailureCode.COMPILER_CRASH
            if state.num_deaths >= self._config.limits.deaths_to_quarantine:
                detail = self._death_detail(child, killed_after_s)
                self._fail_unstarted(Failure(code=code, stage=Stage.BUILD, detail=detail))
            else:
                self._ensure_child()
            return
        code = FailureCode.HANG if killed_after_s else FailureCode.DEVICE_FAULT
        if self._report:
            code = FailureCode.INTERNAL_ERROR
        detail = self._death_detail(child, killed_after_s)
        if phase is _Phase.BETWEEN:
            detail = f"after its result: {detail}"
        state.record(self._index, _launch_failure(code, detail))
        self._after_death()

    def _death_detail(self, child: Child, killed_after_s: float | None) -> str:
        if self._report:
            return self._report
        if killed_after_s is not None:
            return f"killed after {killed_after_s:g} s without an answer (limits.config_timeout_s)"
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
            self._ensure_child()
            if self._phase is _Phase.IDLE:
                self._send_job()

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

    def _send_job(self) -> None:
        state, child, device = self._state, self._child, self._device
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
            check_indices=_check_indices(state) if self._config.timing.payload_checks else (),
            timing=self._config.timing,
            sentinel=self._num_run % self._config.timing.sentinel_every_tasks == 0,
        )
        self._phase, self._report = _Phase.LOADING, ""
        if not child.send(job):
            self._child_died()

    def _ensure_child(self) -> None:
        if self._child is not None:
            return
        if self._spare is not None:
            self._child, self._spare = self._spare, None
            self._phase = _Phase.IDLE if self._spare_ready else _Phase.STARTING
            self._spare_ready = False
            if self._phase is _Phase.IDLE:
                self._start_spare()
        else:
            self._child = self._start_child(f"run-{next(self._names)}")
            self._phase = _Phase.STARTING

    def _start_spare(self) -> None:
        if not self._child_per_task and self._spare is None:
            self._spare = self._start_child(f"run-{next(self._names)}")
            self._spare_ready = False

    def _drop_child(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _await_ready(self) -> Device:
        child = self._child
        assert child is not None, "no child to wait for"
        while time.monotonic() - child.last_heard_s < _START_TIMEOUT_S:
            if not select.select([child], [], [], 1.0)[0]:
                continue
            messages, hung_up = child.receive()
            for message in messages:
                if isinstance(message, ChildReady):
                    self._phase = _Phase.IDLE
                    return message.device
                if isinstance(message, ChildCrashed):
                    self._drop_child()
                    raise DeviceLostError(message.traceback)
            if hung_up:
                self._drop_child()
                raise DeviceLostError(child.describe_end())
        self._drop_child()
        raise DeviceLostError(f"no answer from the device within {_START_TIMEOUT_S:g} s")


def _check_indices(state: TaskState) -> tuple[int, ...]:
    """The smallest and the largest config of a task: there the payload is checked."""
    by_size = sorted(
        range(len(state.configs)),
        key=lambda index: (
            state.configs[index].num_work_groups,
            state.configs[index].global_size,
            index,
        ),
    )
    return tuple(sorted({by_size[0], by_size[-1]}))


def _launch_failure(code: FailureCode, detail: str) -> Failure:
    return Failure(code=code, stage=Stage.LAUNCH, detail=detail)
