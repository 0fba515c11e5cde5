"""Compile children in their pool: what a death costs a task, whether the build's or of looking for resources."""

from __future__ import annotations

import itertools
import json
import logging
import os
import select
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from llmperf_common.awake_clock import awake_s
from llmperf_common.failures import Failure
from llmperf_common.ids import sha256_hex
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy
from tests.support.collecting import write_kernels
from tests.support.processes.stub_device import DEVICE
from workers.config import CollectConfig, PlanConfig
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.device.interface import DeviceRef
from workers.discovery.find import choose
from workers.execution.analysing import AnalysisWork
from workers.execution.compiling import CompileWork
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan
from workers.sandbox.child import Child
from workers.sandbox.child_pool import ChildPool

pytestmark = pytest.mark.opencl

REPOSITORY = Path(__file__).parents[3]
STUB, ABSENT = "tests.support.processes.stub_compile_child", "tests.integration.no_such_module"


@pytest.fixture
def states(tmp_path: Path) -> list[TaskState]:
    corpus = read_sources([write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(5)])])
    config = CollectConfig(plan=PlanConfig(samples_per_kernel=3, strategies=(Strategy.SIMPLE,)))
    plan = Plan(
        kernels=corpus.kernels, corpus_sha256=corpus.sha256, device_classes=(device_class_of(DEVICE),),
        plan_config=config.plan, timing_config=config.timing,
    )  # fmt: skip
    return [
        TaskState(
            plan=plan, task=plan.task(index), lease=Lease(task=index, epoch=1, token=index + 1, attempt=1),
            device_id=DEVICE.device_id, worker_id="test/1", now_us=lambda: 1,
        )
        for index in range(len(corpus.kernels))
    ]  # fmt: skip


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def pool_of(
    scratch: Path, work: CompileWork, modules: Iterable[str], *, where: str = "", num_children: int
) -> ChildPool[TaskState]:
    """Return a pool whose n-th child is the n-th of ``modules``."""
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    following = iter(modules)
    return ChildPool(
        start_child=lambda name: Child(next(following), where, environment={"PYTHONPATH": path}, scratch=scratch / name),
        name="compile", work=work, num_children=num_children,
    )  # fmt: skip


def compile_all(
    states: list[TaskState],
    scratch: Path,
    where: str,
    *,
    module: str = STUB,
    timeout_s: float = 60,
    reads_resources: bool = True,
) -> CompileWork:
    work = CompileWork(scratch=scratch, timeout_s=timeout_s, reads_resources=reads_resources)
    pool = pool_of(scratch, work, itertools.repeat(module), where=where, num_children=1)
    try:
        for state in states:
            pool.submit(state)
        finished: list[TaskState] = []
        deadline_s = time.monotonic() + 60
        while len(finished) < len(states):
            assert time.monotonic() < deadline_s, "the pool does not go on"
            pool.start_waiting()
            for child in select.select(pool.children(), [], [], 0.1)[0]:
                if child in pool.children():
                    pool.handle(child)
            pool.check_deadlines(awake_s())
            finished += pool.take_finished()
    finally:
        pool.close()
    return work


def codes(states: list[TaskState]) -> list[str]:
    """Return each task's failure, or ``built``."""
    found = []
    for state in states:
        outcome = state.outcomes[0][0] if state.outcomes[0] else None
        found.append(outcome.code.value if isinstance(outcome, Failure) else "built")
    return found


@pytest.mark.parametrize("where", ["resources", "hang", "bug"])
def test_a_death_of_the_second_compiler_fails_no_kernel(
    where: str, states: list[TaskState], scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compile_all(states, scratch, where, timeout_s=2)
    assert codes(states) == ["built"] * 5
    for state in states:
        assert state.build is not None
        assert state.build.binary_sha256 == sha256_hex(b"built")
        assert state.build.seconds == 0.5
    # Three children died of it; then no other is asked any more.
    assert [state.num_compile_attempts for state in states] == [2, 2, 2, 1, 1]
    reason = {"resources": "SIGSEGV", "hang": "SIGALRM", "bug": "a mistake of ours"}[where]
    told = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sum(reason in message for message in told) == 3
    assert sum("registers are not read" in message for message in told) == 1
    assert not any("killed by another process" in message for message in told)


def test_deaths_with_a_success_between_them_do_not_end_the_reading(
    states: list[TaskState], scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compile_all(states, scratch, f"all but {states[2].task.kernel.name}")
    assert [state.num_compile_attempts for state in states] == [2, 2, 1, 2, 2]
    builds = [state.build for state in states]
    assert [one.resources is not None for one in builds if one] == [
        False,
        False,
        True,
        False,
        False,
    ]
    assert not any("registers are not read" in one.getMessage() for one in caplog.records)


def test_a_death_of_the_second_compiler_does_not_count_as_the_builds(
    states: list[TaskState], scratch: Path
) -> None:
    compile_all(states[:1], scratch, "both")
    assert codes(states[:1]) == ["compiler_crash"]
    assert states[0].num_compile_attempts == 3


def test_a_build_that_dies_is_tried_twice(states: list[TaskState], scratch: Path) -> None:
    compile_all(states[:2], scratch, "build")
    assert codes(states[:2]) == ["compiler_crash"] * 2
    assert [state.num_compile_attempts for state in states[:2]] == [2, 2]


def test_a_build_whose_child_another_process_kills_is_done_once_more_as_the_first_time(
    states: list[TaskState], scratch: Path
) -> None:
    compile_all(states[:1], scratch, "killed once")
    assert codes(states[:1]) == ["built"]
    assert states[0].num_compile_attempts == 1
    assert states[0].build is not None
    assert states[0].build.resources is not None, "registers were asked for again"


def test_a_build_whose_children_are_always_killed_is_one_row(
    states: list[TaskState], scratch: Path
) -> None:
    compile_all(states[:1], scratch, "killed")
    assert codes(states[:1]) == ["compiler_crash"]
    assert states[0].num_compile_attempts == 2, "and one that did not count"


def test_every_work_takes_one_attempt_back(states: list[TaskState], scratch: Path) -> None:
    works = {
        "num_compile_attempts": CompileWork(scratch=scratch, timeout_s=1),
        "num_analysis_attempts": AnalysisWork(timeout_s=1),
    }
    for count, work in works.items():
        attempts, excuses = [], []
        for _ in range(3):
            work.job(states[0])
            excuses.append(work.excuses_kill(states[0]))
            attempts.append(getattr(states[0], count))
        assert excuses == [True, False, False], count
        assert attempts == [0, 1, 2], count


def test_nothing_is_asked_where_it_is_switched_off(states: list[TaskState], scratch: Path) -> None:
    compile_all(states[:1], scratch, "resources", reads_resources=False)
    assert codes(states[:1]) == ["built"]
    assert states[0].num_compile_attempts == 1


def test_a_device_without_cuda_builds_and_says_why_nothing_is_known(
    states: list[TaskState], scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef)
    with caplog.at_level(logging.INFO):
        compile_all(
            states[:2], scratch, json.dumps(asdict(ref)), module="workers.execution.compile_child"
        )
    assert codes(states[:2]) == ["built"] * 2
    assert all(state.build and state.build.resources is None for state in states[:2])
    (told,) = [
        one.getMessage() for one in caplog.records if "registers not known" in one.getMessage()
    ]
    assert "CUDA" in told or "pycuda" in told


def test_children_started_ahead_that_end_cost_no_task_anything(
    states: list[TaskState], scratch: Path
) -> None:
    work = CompileWork(scratch=scratch, timeout_s=60)
    pool = pool_of(scratch, work, [ABSENT, ABSENT, STUB, STUB], num_children=2)
    try:
        pool.warm_up(5)
        assert len(pool.children()) == 2, "no more than the pool may have"
        for child in list(pool.children()):
            assert select.select([child], [], [], 30)[0], "it has ended"
        pool.submit(states[0])
        pool.start_waiting()
        assert states[0].num_compile_attempts == 0, "its child is not ready yet"
        finished: list[TaskState] = []
        deadline_s = time.monotonic() + 60
        while not finished and time.monotonic() < deadline_s:
            for child in select.select(pool.children(), [], [], 0.1)[0]:
                pool.handle(child)
            finished = pool.take_finished()
    finally:
        pool.close()
    assert codes(finished) == ["built"]
    assert states[0].num_compile_attempts == 1


def test_who_waits_for_the_first_children_hears_when_they_are_ready(
    states: list[TaskState], scratch: Path
) -> None:
    pool = pool_of(
        scratch, CompileWork(scratch=scratch, timeout_s=60), [ABSENT, STUB], num_children=2
    )
    try:
        pool.warm_up(2)
        pool.await_started()
        (ready,) = pool.children()
        pool.submit(states[0])
        pool.start_waiting()
        assert pool.children() == [ready], "it takes the task"
        pool.allow(1)
        pool.submit(states[1])
        pool.start_waiting()
        assert pool.children() == [ready], "there may be no second one"
    finally:
        pool.close()
