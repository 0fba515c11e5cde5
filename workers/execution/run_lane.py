"""A lane: one run child and its task. Records the child's results and decides what a death costs.

Decides to which config a death is charged: the one that the child announced last or, after a
result, the one whose result it reported last. The first kill by another process is not charged.
``run_children.py`` owns the child, and ``measure/device_lock.py`` the device's lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from llmperf_common.failures import CensorReason, Failure, FailureCode
from llmperf_common.records import Device
from workers.config import TimingConfig
from workers.execution.death_rules import DEATH_RULES, Charged, DeathRule, Excuse, is_given_up
from workers.execution.limits import Limits
from workers.execution.run_jobs import launch_failure, out_of_time, run_job
from workers.execution.run_phases import ON_DEVICE, Patience, Phase, SilenceWatch
from workers.execution.task_state import TaskState
from workers.measure.launch_processor import LaunchProcessor
from workers.measure.run_order import HUNG_NS, OUT_OF_BUDGET
from workers.sandbox.child import Child
from workers.sandbox.messages import (
    ChildCrashed,
    ChildReady,
    ConfigFinished,
    ConfigStarted,
    FromChild,
    HoldBegan,
    LoadFailed,
    LockTaken,
    RunDone,
    RunLoaded,
)
from workers.sandbox.run_children import MOST_KILLS, DeviceLostError, EndingChild, RunChild

_logger = logging.getLogger(__name__)

_MAX_FAILED_HOLDS = 3
"""The device is lost if so many children in a row die with its lock before their first launch."""


class RunLane:
    """Times one task at a time; its owner drives it by polling.

    Args:
        start_child: starts a run child whose scratch folder has the given name.
        name: prefix of the names of its children's scratch folders.
        limits: what a kernel may cost.
        timing: how configs are timed.
        child_per_task: whether to end the child after each task and count a bad exit as a failure.
        lock_path: the device's lock file; None if the device has no other lane.
        launches: the processor from which all lanes issue launches.
    """

    def __init__(
        self,
        *,
        start_child: Callable[[str], Child],
        name: str,
        limits: Limits,
        timing: TimingConfig,
        child_per_task: bool,
        lock_path: Path | None,
        launches: LaunchProcessor,
    ) -> None:
        self.child = RunChild(start_child, name=name)
        self.state: TaskState | None = None  # the task in hand
        self.device: Device | None = None
        """The device's record; children check times against its peaks."""
        self._limits = limits
        self._timing = timing
        self._silence = SilenceWatch(limits, timing)
        self._child_per_task = child_per_task
        self._lock_path = lock_path
        self._launches = launches
        self._phase = Phase.STARTING
        self._index: int | None = None
        self._failed_holds = 0
        self._report = ""
        self._binary_path = Path()
        self._sentinel = False
        self._finished: list[TaskState] = []
        self._ending: EndingChild | None = None

    def use_device(self, device: Device) -> None:
        """Set the device's record, with peaks, for the checks of times; tasks may come now."""
        self.device = device
        if self.child.is_ready:
            self._phase = Phase.IDLE

    def warm_up(self) -> None:
        """Start a child before there is a task for it."""
        if self.state is None and not self.child.ensure():
            self._phase = Phase.STARTING

    def run(self, state: TaskState, binary_path: Path, *, sentinel: bool) -> None:
        """Begin a compiled task; ``sentinel``: also time the sentinel kernel."""
        assert self.state is None, "one task at a time"
        self.state = state
        self._binary_path = binary_path
        self._sentinel = sentinel
        self._go_on()

    def hear(self) -> None:
        """Process the child's messages."""
        child = self.child.current
        assert child is not None, "no child to hear"
        messages, hung_up = child.receive()
        for message in messages:
            if self.child.current is not child:
                return  # an earlier message ended the child
            self._take(message)
        if hung_up and self.child.current is child:
            self._died()

    def check_deadlines(self, now_s: float) -> None:
        """Kill a silent child; end a task that takes too long."""
        self._follow_ending()
        child, state, limit_s = self.child.current, self.state, self._limits.task_timeout_s
        exceeded = None if child is None else self._silence.exceeded(child, self._phase, now_s)
        if exceeded is not None:
            self._died(exceeded)
        elif child is not None and state is not None and state.trace.held_s(now_s) > limit_s:
            detail = f"not reached within limits.task_timeout_s ({limit_s:g} s)"
            state.record_rest(out_of_time(detail))
            self._end_on_device(self._finish)

    @property
    def is_starting(self) -> bool:
        """Whether a child has been started and has not opened the device yet."""
        return self.child.current is not None and not self.child.is_ready

    @property
    def is_ending(self) -> bool:
        """Whether a killed child may still hold the device."""
        return self._ending is not None

    @property
    def has_begun(self) -> bool:
        """Whether the task in hand holds the device lock or has held it."""
        state = self.state
        return state is not None and (
            state.has_outcomes or self._phase not in (Phase.STARTING, Phase.LOADING, Phase.WAITING)
        )

    def take_back(self) -> TaskState | None:
        """Return the task in hand to the owner and kill its child."""
        state, self.state = self.state, None
        self.close()
        return state

    def close(self) -> None:
        """Kill the lane's child and wait for its end."""
        if self._ending is not None:
            self._ending.child.kill()
            self._ending = None
        self.child.drop()

    def take_finished(self) -> list[TaskState]:
        """Return the tasks finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    @property
    def _in_hand(self) -> TaskState:
        assert self.state is not None, "no task in hand"
        return self.state

    def _take(self, message: FromChild) -> None:
        state = self.state
        if isinstance(message, ChildCrashed):
            # A crash at the start becomes a DeviceLostError, whose summary the user sees.
            self._report = message.summary if self._phase is Phase.STARTING else message.traceback
        elif isinstance(message, ChildReady):
            self.child.note_ready()
            self._phase = Phase.IDLE
            if state is not None:
                self._send_job()
        elif isinstance(message, RunLoaded):
            assert state is not None, "loaded without a task"
            self._phase, state.trace.loaded_s = Phase.WAITING, message.loaded_s
        elif isinstance(message, LockTaken):
            self._phase = Phase.PREPARING
        elif isinstance(message, HoldBegan):
            self._hold_began(message)
        elif isinstance(message, ConfigStarted):
            self._phase, self._index = Phase.IN_CONFIG, message.started_index
        elif isinstance(message, ConfigFinished):
            self._config_finished(message)
        elif isinstance(message, LoadFailed):
            self._load_failed(message)
        else:
            assert isinstance(message, RunDone), message
            self._run_done(message)

    def _hold_began(self, message: HoldBegan) -> None:
        self._phase, self._failed_holds = Phase.HOLDING, 0
        self._in_hand.trace.begin_hold(message.began_s)
        if message.sentinel_ns is not None:
            self._in_hand.note_sentinel(message.sentinel_ns)

    def _config_finished(self, message: ConfigFinished) -> None:
        state = self._in_hand
        index, launch_ns, window_s = message.finished_index, message.launch_ns, None
        if message.began_s is not None:  # None: the config was given up without a launch
            assert message.ended_s is not None, "what began has ended"
            self._phase, self._index = Phase.BETWEEN, index
            window_s = (message.began_s, message.ended_s)
            state.trace.note_config(message.outcome, *window_s, launch_ns=launch_ns)
        state.record(index, message.outcome, launch_ns=launch_ns, window_s=window_s)
        if message.sticky:
            self._index = index
            self._end_on_device(self._after_fault)

    def _run_done(self, message: RunDone) -> None:
        state = self._in_hand
        if message.sentinel_ns is not None:
            state.note_sentinel(message.sentinel_ns)
        if (began_s := state.trace.hold_began_s) is not None:
            self._launches.note_hold(message.ended_s - began_s, message.kept_waiting_s)
        state.trace.end_hold(message.ended_s)
        state.trace.buffers_s += message.buffers_s
        self._phase = Phase.IDLE
        if self._child_per_task:
            bad_end = self.child.end_current()
            if bad_end is not None and self._index is not None:
                detail = f"after the result was sent: {bad_end}"
                state.record(self._index, launch_failure(FailureCode.DEVICE_FAULT, detail))
        self._finish()

    def _load_failed(self, message: LoadFailed) -> None:
        if message.sticky:
            self._end_on_device(partial(self._fail_unstarted, message.load_failure))
        else:
            self._phase = Phase.IDLE
            self._fail_unstarted(message.load_failure)

    def _died(self, used_up: Patience | None = None) -> None:
        """Charge the death by the rule of its phase, then continue with the open configs."""
        child, phase = self.child.current, self._phase
        assert child is not None, "no child that died"
        charge = partial(self._charge_death, child, phase, used_up)
        if phase in ON_DEVICE:
            self._end_on_device(charge)
            return
        if phase is Phase.STARTING:
            self.child.drop_failed_start(self._report)
        else:
            self.child.drop()
        if self.state is not None:
            charge()

    def _charge_death(self, child: Child, phase: Phase, used_up: Patience | None) -> None:
        """Apply the rule of the phase in which a child died; the child has ended."""
        rule = DEATH_RULES[phase]
        detail = self._report or (used_up.describe() if used_up else child.describe_end())
        if rule.charged is Charged.NOTHING:
            self._go_on()
        elif rule.charged is Charged.DEVICE:
            self._hold_failed(detail, by_another=child.was_killed_by_another)
        elif self._is_excused(child, rule):
            name = self._in_hand.task.kernel.name
            _logger.warning("%s: killed by another process; retrying once: %s", name, detail)
            self._in_hand.trace.end_hold(time.monotonic())
            self._go_on_or_finish()
        else:
            after = "after the result was sent: " if phase is Phase.BETWEEN else ""
            causes = {"is_silence": used_up is not None, "has_traceback": bool(self._report)}
            failure = rule.failure(after + detail, **causes)
            if rule.charged is Charged.KERNEL:
                self._died_unstarted(failure)
            else:
                self._died_in_config(failure, used_up)

    def _is_excused(self, child: Child, rule: DeathRule) -> bool:
        """Whether a SIGKILL by another process caused the death and the rule excuses it."""
        if not child.was_killed_by_another or self._report:
            return False
        if rule.excuse is Excuse.ONCE:
            at = self._index if rule.charged is Charged.CONFIG else "load"
            assert at is not None, "a config was announced"
            return self._in_hand.excuse_kill(at)
        return rule.excuse is Excuse.ALWAYS

    def _hold_failed(self, why: str, *, by_another: bool) -> None:
        """Charge the device: try in a new child, or raise DeviceLostError after too many deaths."""
        self._failed_holds += 1
        if self._failed_holds >= (MOST_KILLS if by_another else _MAX_FAILED_HOLDS):
            cause = "another process kills its children"
            raise DeviceLostError(f"{cause if by_another else 'the device does not answer'}: {why}")
        self._go_on()

    def _died_unstarted(self, failure: Failure) -> None:
        """Charge the kernel: try in a new child, or fail the kernel after too many deaths."""
        self._in_hand.trace.end_hold(time.monotonic())
        if self._in_hand.is_complete:
            self._finish()
            return
        self._in_hand.num_deaths += 1
        if is_given_up(self._in_hand.num_deaths, self._limits):
            self._fail_unstarted(failure)
        else:
            self._go_on_or_finish()

    def _died_in_config(self, failure: Failure, used_up: Patience | None) -> None:
        """Record the config's failure; give up its kernel if it has ended too many children."""
        assert self._index is not None, "a config was announced"
        if used_up:
            self._in_hand.trace.charge_hang(used_up.limit_s)
        if failure.code is FailureCode.HANG:
            failure = replace(failure, censored=CensorReason.HUNG)
        self._in_hand.record(self._index, failure, launch_ns=HUNG_NS if used_up else None)
        self._after_fault()

    def _after_fault(self) -> None:
        """Give up the kernel or its strategies if needed; time the open configs in a new child."""
        state, index = self._in_hand, self._index
        assert index is not None, "some config's fault"
        state.trace.end_hold(time.monotonic())
        state.num_deaths += 1
        if is_given_up(state.num_deaths, self._limits):
            state.give_up_kernel()
        elif state.is_fault(index):
            state.give_up_strategies_of(index, self._limits.faults_to_end_strategy)
        state.give_up_hopeless()
        self._go_on_or_finish()

    def _end_on_device(self, then: Callable[[], None]) -> None:
        """Kill a child that may hold the device; after its end, check the card and do ``then``."""
        assert self.device is not None, "use_device() comes first"
        self._ending = EndingChild(child=self.child.begin_drop(), device=self.device, then=then)
        self._follow_ending()

    def _follow_ending(self) -> None:
        """If the killed child has ended, go on; raises DeviceLostError if the card is unsound."""
        ending = self._ending
        if ending is not None and ending.has_ended():
            self._ending = None
            ending.then()

    def _fail_unstarted(self, failure: Failure) -> None:
        """Record that the kernel cannot be loaded, for its open configs or as its only row."""
        state = self._in_hand
        (state.record_rest if state.has_outcomes else state.fail_whole)(failure)
        self._finish()

    def _finish(self) -> None:
        self._in_hand.trace.end_hold(time.monotonic())
        self._finished.append(self._in_hand)
        self.state = None

    def _go_on_or_finish(self) -> None:
        """Send the open configs to a child, or finish if none is open or no time is left."""
        if self._budget_left_s(self._in_hand) == 0.0:
            self._in_hand.record_rest(out_of_time(OUT_OF_BUDGET))
        if self._in_hand.is_complete:
            self._finish()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Send the open configs to a child now, or as soon as one is ready."""
        if self.child.ensure():
            self._send_job()
        else:
            self._phase = Phase.STARTING

    def _send_job(self) -> None:
        state, child = self._in_hand, self.child.current
        assert child is not None, "no child to run it"
        assert self.device is not None, "use_device() comes first"
        job = run_job(
            state,
            device=self.device,
            binary_path=self._binary_path,
            timing=self._timing,
            sentinel=self._sentinel,
            lock_path=self._lock_path,
            budget_s=self._budget_left_s(state),
            processor=self._launches.number,
        )
        self._phase, self._report, self._index = Phase.LOADING, "", None
        state.trace.processor = job.processor
        state.task_budget_s = self._limits.task_budget_s
        state.one_processor = state.one_processor is not False and job.processor is not None
        state.trace.sent_s = time.monotonic()
        if not child.send(job):
            self._died()

    def _budget_left_s(self, state: TaskState) -> float | None:
        budget_s = self._limits.task_budget_s
        return None if budget_s is None else max(0.0, budget_s - state.trace.charged_s)
