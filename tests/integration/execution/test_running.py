"""The run slot with children that die at each step: the death has an owner, and the work goes on."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.awake_clock import awake_s
from llmperf_common.failures import Failure
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy
from tests.support.collecting import REPOSITORY, wait_until, write_kernels
from tests.support.processes.stub_device import DEVICE
from tests.support.sampling import slow_but_each
from workers.config import CollectConfig, PlanConfig
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.execution.limits import limits_on
from workers.execution.run_phases import PREPARE_TIMEOUT_S
from workers.execution.running import RunSlot
from workers.execution.task_state import TaskState
from workers.measure.launch_processor import LaunchProcessor
from workers.plan.plan import Plan
from workers.sandbox.child import Child
from workers.sandbox.run_children import DeviceLostError


@contextmanager
def slot(
    folder: Path,
    where: str | dict[str, str],
    *,
    child_per_task: bool = False,
    launches: LaunchProcessor | None = None,
    **limits: float,
) -> Iterator[RunSlot]:
    """A slot whose children do what ``where`` says, or says of their lane (``run-0``), or of its first child (``run-0-0``)."""

    environment = {
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    }

    def start(name: str) -> Child:
        module = "tests.support.processes.stub_child"
        mode = where
        if isinstance(where, dict):
            mode = where.get(name, where.get(name.rpartition("-")[0], ""))
        if mode == "none":
            module = "tests.integration.no_such_module"
        return Child(module, str(mode), environment=environment, scratch=folder / name)

    made = run_slot(start, folder, child_per_task=child_per_task, launches=launches, **limits)
    try:
        made.use_device(made.open_device(measure_peaks=False))
        yield made
    finally:
        made.close()


def run_slot(
    start: Callable[[str], Child],
    folder: Path,
    *,
    child_per_task: bool = False,
    launches: LaunchProcessor | None = None,
    **limits: float,
) -> RunSlot:
    config = CollectConfig()
    if not child_per_task:
        limits.setdefault("num_run_children", 2)
    return RunSlot(
        start_child=start,
        limits=replace(limits_on(config, gpu=False, shared=not child_per_task), **limits),
        timing=config.timing,
        child_per_task=child_per_task,
        lock_path=folder / "device.lock",
        launches=launches or LaunchProcessor(),
    )


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    corpus = read_sources([write_kernels(tmp_path / "kernels", ["k0", "k1"])])
    config = CollectConfig(plan=PlanConfig(samples_per_kernel=3, strategies=(Strategy.SIMPLE,)))
    return Plan(
        kernels=corpus.kernels,
        corpus_sha256=corpus.sha256,
        device_classes=(device_class_of(DEVICE),),
        plan_config=config.plan,
        timing_config=config.timing,
    )


def run(made: RunSlot, plan: Plan, index: int, folder: Path) -> Counter[str]:
    """Run one task to its end; returns its rows' codes. The stub itself answers ``launch_error``."""
    state = begin(made, plan, index, folder)
    assert drive(made, 1) == [state]
    return codes(state)


def state_of(plan: Plan, index: int) -> TaskState:
    return TaskState(
        plan=plan, task=plan.task(index), lease=Lease(task=index, epoch=1, token=index + 1, attempt=1),
        device_id=DEVICE.device_id, worker_id="test/1", now_us=lambda: 1,
    )  # fmt: skip


def begin(made: RunSlot, plan: Plan, index: int, folder: Path) -> TaskState:
    state = state_of(plan, index)
    made.run(state, folder / f"{index}.bin")
    return state


def drive(made: RunSlot, num_tasks: int, *, skip_s: float = 0.0) -> list[TaskState]:
    """Let the slot work until so many tasks have finished; its clock is ahead by ``skip_s``."""
    deadline_s = time.monotonic() + 30
    finished: list[TaskState] = []
    while len(finished) < num_tasks:
        assert time.monotonic() < deadline_s, "the slot does not go on"
        for child in select.select(made.children(), [], [], 0.1)[0]:
            if child in made.children():
                made.handle(child)
        made.check_deadlines(awake_s() + skip_s)
        finished += made.take_finished()
    return finished


def codes(state: TaskState) -> Counter[str]:
    return Counter(
        sample.outcome.code.value
        for sample in state.result().samples
        if isinstance(sample.outcome, Failure)
    )


def test_a_task_and_the_next(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "") as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}
        assert run(made, plan, 1, tmp_path) == {"launch_error": 3}


def test_a_death_while_loading_is_tried_again(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "first load") as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}


def test_a_kernel_that_always_dies_loading_is_one_row(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "load") as made:
        assert run(made, plan, 0, tmp_path) == {"compiler_crash": 1}
        assert run(made, plan, 1, tmp_path) == {"compiler_crash": 1}


@pytest.mark.parametrize("child_per_task", [False, True])
def test_a_death_on_release_fails_the_last_config(
    tmp_path: Path, plan: Plan, child_per_task: bool
) -> None:
    with slot(tmp_path, "release", child_per_task=child_per_task) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 2, "device_fault": 1}


def test_a_death_on_exit_counts_where_each_task_has_its_child(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "exit", child_per_task=True) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 2, "device_fault": 1}
        assert run(made, plan, 1, tmp_path) == {"launch_error": 2, "device_fault": 1}


@pytest.mark.parametrize(
    "at", slow_but_each(2, ["load", "held", "config", "result", "last", "exit"])
)
def test_who_is_killed_by_somebody_else_costs_no_kernel_anything(
    tmp_path: Path, plan: Plan, at: str
) -> None:
    with slot(tmp_path, {"run-0-0": f"killed {at}"}, child_per_task=at == "exit") as made:
        state = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert codes(state) == {"launch_error": 3}
        assert state.num_deaths == 0
        assert run(made, plan, 1, tmp_path) == {"launch_error": 3}


def test_every_config_may_be_killed_once(tmp_path: Path, plan: Plan) -> None:
    wheres = ["killed config", "killed result"] * 3
    with slot(tmp_path, {f"run-0-{n}": where for n, where in enumerate(wheres)}) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}


def test_killed_twice_at_one_config_it_is_the_kernel(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "killed config", deaths_to_quarantine=2) as made:
        state = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert codes(state) == {"device_fault": 2, "quarantined": 1}
        assert state.num_deaths == 2
        outcomes = [one.outcome for one in state.result().samples]
        details = [one.detail for one in outcomes if isinstance(one, Failure)][:2]
        assert all("SIGKILL that was not its parent's" in text for text in details)


def test_a_task_is_excused_a_few_kills_only(plan: Plan) -> None:
    state = state_of(plan, 0)
    excused = [state.excuse_kill(place) for place in [*range(3), "load", *range(3, 9), 0]]
    assert excused == [True] * 8 + [False] * 3


@pytest.mark.parametrize(("at", "most"), [("wait", 3), ("killed wait", 5)])
def test_children_that_die_in_the_queue_again_and_again_end_the_device(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, at: str, most: int
) -> None:
    monkeypatch.setattr("workers.execution.run_lane.MOST_KILLS", 5)
    with slot(tmp_path, at) as made:
        begin(made, plan, 0, tmp_path)
        why = "does not answer" if at == "wait" else "another process kills its children"
        with pytest.raises(DeviceLostError, match=why):
            drive(made, 1)
    assert len(list(tmp_path.glob("run-0-*"))) == most


@pytest.mark.parametrize(("at", "code"), [("load", "compiler_crash"), ("held", "device_fault")])
def test_a_kernel_whose_children_are_always_killed_is_one_row(
    tmp_path: Path, plan: Plan, at: str, code: str
) -> None:
    with slot(tmp_path, f"killed {at}") as made:
        assert run(made, plan, 0, tmp_path) == {code: 1}


@pytest.mark.parametrize("child_per_task", [False, True])
@pytest.mark.parametrize(
    ("how", "code"), [("garbled", "device_fault"), ("raises", "internal_error")]
)
def test_who_hangs_up_and_lives_is_to_blame(
    tmp_path: Path, plan: Plan, how: str, code: str, child_per_task: bool
) -> None:
    with slot(tmp_path, f"{how} last", child_per_task=child_per_task) as made:
        state = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert codes(state) == {"launch_error": 2, code: 1}
        assert state.num_deaths == 1
        outcomes = [one.outcome for one in state.result().samples]
        told = [one.detail for one in outcomes if isinstance(one, Failure)]
        reason = {"garbled": "unreadable message", "raises": "a mistake of ours"}[how]
        assert any(reason in text for text in told)


@pytest.mark.parametrize(
    ("how", "code"), [("garbled", "device_fault"), ("raises", "internal_error")]
)
def test_who_hangs_up_in_a_config_and_lives_is_to_blame(
    tmp_path: Path, plan: Plan, how: str, code: str
) -> None:
    with slot(tmp_path, f"{how} config", deaths_to_quarantine=2) as made:
        state = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert codes(state) == {code: 2, "quarantined": 1}
        assert len(list(tmp_path.glob("run-0-*"))) <= 3, "two, and one on its way"


def test_an_idle_child_that_is_killed_costs_the_next_task_nothing(
    tmp_path: Path, plan: Plan
) -> None:
    with slot(tmp_path, "", child_per_task=False) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}
        for child in made.children():
            os.kill(child.pid, signal.SIGKILL)
        state = begin(made, plan, 1, tmp_path)
        drive(made, 1)
        assert codes(state) == {"launch_error": 3}
        assert state.num_deaths == 0


def test_a_processor_that_others_use_is_given_up(
    tmp_path: Path, plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    launches = LaunchProcessor()
    launches.number = min(os.sched_getaffinity(0))
    with slot(tmp_path, "crowded", launches=launches) as made:
        for number in range(6):
            run(made, plan, number % 2, tmp_path)
            if number < 2:
                assert launches.number is not None, "two holds tell little"
    assert launches.number is None
    assert "another process uses processor" in caplog.text


def test_lanes_hold_the_device_one_after_another(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "slow") as made:
        states = [begin(made, plan, index, tmp_path) for index in (0, 1)]
        drive(made, 2)
        (first,), (second,) = (state.trace.holds for state in states)
        assert first[1] <= second[0] or second[1] <= first[0]
        assert [codes(state) for state in states] == [{"launch_error": 3}] * 2


def test_who_stands_on_the_device_without_beginning_is_killed_and_no_kernel_blamed(
    tmp_path: Path, plan: Plan
) -> None:
    with slot(tmp_path, {"run-0-0": "stand"}) as made:
        states = [begin(made, plan, index, tmp_path) for index in (0, 1)]
        drive(made, 2, skip_s=PREPARE_TIMEOUT_S - 1.0)
        assert [codes(state) for state in states] == [{"launch_error": 3}] * 2
        assert sum(len(state.sentinel) for state in states) >= 1, "a sentinel has run after it"


@pytest.mark.parametrize(
    ("where", "config_timeout_s", "after_s"), [("spins config", 20, 0.3), ("sleeps config", 3, 3)]
)
def test_a_silent_config_that_waits_for_its_launch_is_killed_sooner(
    tmp_path: Path, plan: Plan, where: str, config_timeout_s: float, after_s: float
) -> None:
    """NVIDIA's driver spins while it waits for a launch, and sleeps while it waits for its lock."""
    with slot(tmp_path, where, spin_timeout_s=0.3, config_timeout_s=config_timeout_s) as made:
        state = begin(made, plan, 0, tmp_path)
        assert drive(made, 1) == [state]
    assert codes(state)["hang"] >= 1
    outcome = state.result().samples[0].outcome
    assert isinstance(outcome, Failure)
    assert f"killed after {after_s} s without an answer" in outcome.detail
    assert "limits.config_timeout_s" in outcome.detail


def test_an_exit_code_of_0_in_the_middle_of_a_config_is_a_fault(tmp_path: Path, plan: Plan) -> None:
    """A kernel on a CPU device may end its process and say that all is well."""
    with slot(tmp_path, "leaves config") as made:
        state = begin(made, plan, 0, tmp_path)
        assert drive(made, 1) == [state]
    assert codes(state) == {"device_fault": 2, "quarantined": 1}
    outcomes = [one.outcome for one in state.result().samples]
    details = [one.detail for one in outcomes if isinstance(one, Failure)][:2]
    assert all("child process ended with exit code 0" in text for text in details)


def test_a_device_that_never_answers_is_lost(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "stand") as made:
        begin(made, plan, 0, tmp_path)
        with pytest.raises(DeviceLostError, match="does not answer"):
            drive(made, 1, skip_s=PREPARE_TIMEOUT_S - 1.0)


@pytest.mark.parametrize(
    ("where", "limits", "skip_s"),
    [
        ("stand", {}, PREPARE_TIMEOUT_S - 1.0),
        ("crash held", {}, 0.0),
        ("killed held", {}, 0.0),
        ("crash config", {}, 0.0),
        ("crash last", {}, 0.0),
        ("sticky", {}, 0.0),
        ("lost load", {}, 0.0),
        ("slow", {"task_timeout_s": 0.2}, 0.0),
    ],
)
def test_the_card_is_looked_at_whenever_a_child_that_had_it_has_ended(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, where: str, limits: dict[str, float], skip_s: float
) -> None:  # fmt: skip
    monkeypatch.setattr(
        "workers.sandbox.run_children.problems_of", lambda _device: ("it needs a reset",)
    )
    with slot(tmp_path, where, **limits) as made:
        begin(made, plan, 0, tmp_path)
        with pytest.raises(DeviceLostError, match="needs a reset"):
            drive(made, 1, skip_s=skip_s)


@pytest.mark.parametrize("where", ["first load", "killed load"])
def test_and_not_after_one_that_never_came_to_it(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(
        "workers.sandbox.run_children.problems_of", lambda _device: ("it needs a reset",)
    )
    with slot(tmp_path, {"run-0-0": where, "run-1-0": where}) as made:
        assert run(made, plan, 0, tmp_path) == {"launch_error": 3}


def test_a_death_in_the_queue_is_nobodys_fault(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, {"run-0-0": "wait", "run-0-1": "wait"}) as made:
        state = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert codes(state) == {"launch_error": 3}
        assert state.num_deaths == 0


def test_a_lost_context_keeps_the_device_lock_until_it_is_gone(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, {"run-0-0": "sticky"}, faults_to_end_strategy=1) as made:
        faulty = begin(made, plan, 0, tmp_path)
        other = begin(made, plan, 1, tmp_path)
        drive(made, 2)
        faulty, other = sorted((faulty, other), key=lambda one: "device_fault" not in codes(one))
        assert codes(faulty) == {"device_fault": 1, "quarantined": 2}
        assert len(faulty.trace.holds) == 1
        third = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert other.sentinel or third.sentinel, "the next on the device times the sentinel first"


def test_a_lane_that_cannot_start_is_closed_where_another_works(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, {f"run-{number}": "none" for number in range(1, 4)}) as made:
        for index in (0, 1, 0):
            state = begin(made, plan, index, tmp_path)
            finished: list[TaskState] = []
            while not finished:
                try:
                    finished = drive_once(made)
                finally:
                    for returned in made.take_returned():
                        made.run(returned, tmp_path / "again.bin")
            assert finished == [state]
            assert codes(state) == {"launch_error": 3}
        wait_until(lambda: bool(drive_once(made)) or len(made.children()) == 1)


def drive_once(made: RunSlot) -> list[TaskState]:
    for child in select.select(made.children(), [], [], 0.1)[0]:
        if child in made.children():
            made.handle(child)
    made.check_deadlines(awake_s())
    return made.take_finished()


def test_a_task_is_charged_for_its_own_holds_only(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, {"run-0": "slow", "run-1": "slow"}, task_timeout_s=0.8) as made:
        states = [begin(made, plan, index, tmp_path) for index in (0, 1)]
        drive(made, 2)
        assert [codes(state) for state in states] == [{"launch_error": 3}] * 2


def test_a_task_that_takes_too_long_ends(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, "slow", task_timeout_s=0.2) as made:
        state = begin(made, plan, 0, tmp_path)
        drive(made, 1)
        assert codes(state) == {"over_time_budget": 3}


def test_what_waits_for_the_device_lock_has_not_begun(tmp_path: Path, plan: Plan) -> None:
    with slot(tmp_path, {"run-0": "stand", "run-1": "stand"}) as made:
        states = [begin(made, plan, index, tmp_path) for index in (0, 1)]
        assert len(made.waiting()) == 2
        deadline_s = time.monotonic() + 20
        while len(made.waiting()) == 2:
            assert time.monotonic() < deadline_s
            drive_once(made)
        (waiting,) = made.waiting()
        assert waiting in states
        made.drop({waiting.lease.task})
        assert made.states == [state for state in states if state is not waiting]


def test_a_device_that_cannot_be_opened_is_lost_with_the_childs_words(tmp_path: Path) -> None:
    def start(name: str) -> Child:
        return Child(
            "tests.integration.no_such_module", "", environment={}, scratch=tmp_path / name
        )

    made = run_slot(start, tmp_path)
    with pytest.raises(DeviceLostError, match="no_such_module"):
        made.open_device(measure_peaks=False)
    assert made.children() == []


def test_other_lanes_go_on_while_a_killed_child_takes_long_to_end(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's driver takes up to two seconds to end a lost context; here the end is not yet seen."""
    gone: list[Child] = []
    has_gone = Child.has_gone
    monkeypatch.setattr(
        Child, "has_gone", lambda child, wait_s=0.0: child in gone and has_gone(child, wait_s)
    )
    with slot(tmp_path, {"run-0-0": "sticky"}) as made:
        lost = begin(made, plan, 0, tmp_path)
        child = made.children()[0]
        while not made.is_ending:
            drive_once(made)
        assert child not in made.children()
        other = begin(made, plan, 1, tmp_path)
        assert drive(made, 1) == [other]
        assert codes(other) == {"launch_error": 3}
        assert made.states == [lost]
        gone.append(child)
        assert drive(made, 1) == [lost]
        assert codes(lost) == {"device_fault": 1, "launch_error": 2}
        assert not made.is_ending


def test_lanes_beyond_the_fourth_replace_those_whose_children_start(
    tmp_path: Path, plan: Plan
) -> None:
    with slot(tmp_path, {"run-0": "sticky", "run-1": "slow"}, num_run_children=6) as made:
        wait_until(lambda: drive_once(made) == [] and all_ready(made))
        for _ in range(4):
            assert made.has_capacity
            begin(made, plan, 0, tmp_path)
        assert not made.has_capacity
        while all_ready(made):
            drive_once(made)
        assert made.has_capacity


def all_ready(made: RunSlot) -> bool:
    return all(lane.child.is_ready for lane in made._lanes)


def test_with_a_child_per_task_children_start_together_and_work_one_at_a_time(
    tmp_path: Path, plan: Plan
) -> None:
    with slot(tmp_path, "slow", child_per_task=True, num_run_children=4) as made:
        made.start_children(3)  # the child that has opened the device serves the first task
        assert len(made.children()) == 1
        first = begin(made, plan, 0, tmp_path)
        assert not made.has_capacity
        assert drive(made, 1) == [first]
        assert made.has_capacity
        made.start_children(3)
        assert len(made.children()) == 3
        assert made.is_starting
        wait_until(lambda: drive_once(made) == [] and not made.is_starting)
        began_with = {child.pid for child in made.children()}
        second = begin(made, plan, 1, tmp_path)
        assert not made.has_capacity
        assert drive(made, 1) == [second]
        made.start_children(2)  # two children are left
        assert not made.is_starting
        assert {child.pid for child in made.children()} < began_with
        assert len(made.children()) == 2


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_child_that_dies_before_its_task_costs_no_task_anything(
    tmp_path: Path, plan: Plan, is_heard: bool
) -> None:
    with slot(tmp_path, "", child_per_task=True, num_run_children=2) as made:
        run(made, plan, 0, tmp_path)
        made.start_children(2)
        wait_until(lambda: drive_once(made) == [] and not made.is_starting)
        doomed, other = made.children()
        os.kill(doomed.pid, signal.SIGKILL)
        os.waitid(os.P_PID, doomed.pid, os.WEXITED | os.WNOWAIT)
        if is_heard:
            wait_until(lambda: drive_once(made) == [] and doomed not in made.children())
            made.start_children(2)  # starts nothing while a child is left
            assert made.children() == [other]
        state = begin(made, plan, 1, tmp_path)
        assert drive(made, 1) == [state]
        assert codes(state) == {"launch_error": 3}
        assert state.num_deaths == 0
        made.start_children(2)
        assert len(made.children()) == 2


def test_closing_waits_for_a_child_that_takes_long_to_end(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "has_gone", lambda *_: False)
    with slot(tmp_path, {"run-0-0": "sticky"}) as made:
        begin(made, plan, 0, tmp_path)
        child = made.children()[0]
        wait_until(lambda: drive_once(made) == [] and made.is_ending)
        was_running = not child.has_ended
    assert was_running
    assert child.has_ended
