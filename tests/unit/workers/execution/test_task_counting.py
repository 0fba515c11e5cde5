"""Counting beside the way of tasks to the device: what is awaited, and what becomes of it where nothing can be counted."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy
from tests.support.collecting import write_kernels
from tests.unit.common.store.upkeep.test_work_columns import WORK
from tests.unit.workers.execution.test_task_state import DEVICE
from tests.unit.workers.sandbox.test_child_pool import FakeChild
from workers.config import CollectConfig, PlanConfig
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.device.interface import AccessRange, DeviceRef
from workers.execution.helper_devices import NO_CPU_DEVICE, HelperDevices
from workers.execution.task_counting import TaskCounting
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan
from workers.sandbox.child import Child
from workers.sandbox.messages import CompilerReady, Counted, CountJob

CPU = DeviceRef(selector="cpu", platform="p", name="n")
BROKEN = Failure(code=FailureCode.BUILD_ERROR, stage=Stage.BUILD, detail="no")


class StubHelpers:
    """Knows where work is counted, once the test says so."""

    launches_virtually = True

    def __init__(self, where: DeviceRef | str | None = CPU, *, counts_work: bool = True) -> None:
        self.where = where
        self.counts_work = counts_work

    def counting(self) -> DeviceRef | str | None:
        return self.where

    def missing_without(self) -> str:
        return "columns `work` stay empty"


class Started(FakeChild):
    """A child that may have ended before it was ready."""

    def __init__(self, *, is_gone: bool = False) -> None:
        super().__init__()
        self.is_gone = is_gone

    def receive(self) -> tuple[list[object], bool]:  # type: ignore[override]
        said, _ = super().receive()
        return list(said), self.is_gone

    def describe_end(self) -> str:
        return "exit status 1"


class Kept:
    """A ``TaskCounting`` with the children that it has started."""

    def __init__(self, helper_devices: StubHelpers, *, is_gone: bool = False) -> None:
        self.children: list[Started] = []

        def start(_name: str, where: DeviceRef) -> Child:
            assert where == CPU
            self.children.append(Started(is_gone=is_gone))
            return cast("Child", self.children[-1])

        self.counting = TaskCounting(
            start_child=start,
            helper_devices=cast("HelperDevices", helper_devices),
            timeout_s=5.0,
            num_children=4,
        )

    def hear(self, number: int, *said: object) -> None:
        self.children[number].says = list(said)  # type: ignore[arg-type]
        self.counting.handle(cast("Child", self.children[number]))


@pytest.fixture
def states(tmp_path: Path) -> list[TaskState]:
    """Planned tasks of three kernels."""
    corpus = read_sources([write_kernels(tmp_path, ["a", "b", "c"])])
    config = CollectConfig(plan=PlanConfig(samples_per_kernel=2, strategies=(Strategy.SIMPLE,)))
    plan = Plan(
        kernels=corpus.kernels,
        corpus_sha256=corpus.sha256,
        device_classes=(device_class_of(DEVICE),),
        plan_config=config.plan,
        timing_config=config.timing,
    )
    return [
        TaskState(
            plan=plan, task=plan.task(number), device_id="d", worker_id="w", now_us=lambda: 1,
            lease=Lease(task=number, epoch=1, token=1, attempt=1),
        )
        for number in range(3)
    ]  # fmt: skip


def test_a_count_is_awaited_and_then_in_the_rows(states: list[TaskState]) -> None:
    kept = Kept(StubHelpers())
    first = states[0]
    kept.counting.submit(first)
    kept.counting.start_waiting(most_busy=4)
    kept.hear(0, CompilerReady())
    assert kept.counting.awaits(first)
    kept.hear(0, Counted(outcomes=(WORK,), is_last=False))
    assert kept.counting.awaits(first)
    kept.hear(0, Counted(outcomes=(WORK,), first=1))
    assert not kept.counting.awaits(first)
    assert first.works == (WORK, WORK)
    first.record_rest(BROKEN)
    assert [sample.work for sample in first.result().samples] == [WORK, WORK]


BEYOND = (AccessRange(position=0, start_bytes=0, end_bytes=2**40, site=0),)


def test_ranges_of_a_task_that_awaits_them_give_up_its_configs(states: list[TaskState]) -> None:
    kept = Kept(StubHelpers())
    first, second = states[:2]
    first.awaits_ranges = True
    for state in (first, second):
        kept.counting.submit(state)
    kept.counting.start_waiting(most_busy=4)
    for number, state in enumerate((first, second)):
        kept.hear(number, CompilerReady())
        assert state.awaits_ranges is (state is first)
        told = Counted(outcomes=(WORK, WORK), ranges=(BEYOND, BEYOND), covered=(True, True))
        kept.hear(number, told)
    assert not first.awaits_ranges
    assert first.is_complete, "no config is launched"
    assert second.open_indices == (0, 1)


def test_an_idle_device_goes_on_with_the_ranges_known_so_far(states: list[TaskState]) -> None:
    kept = Kept(StubHelpers())
    first = states[0]
    first.awaits_ranges = True
    kept.counting.submit(first)
    kept.counting.start_waiting(most_busy=4)
    part = Counted(outcomes=(WORK,), ranges=(BEYOND,), covered=(True,), is_last=False)
    kept.hear(0, CompilerReady(), part)
    kept.counting.check_access(first)
    assert not first.awaits_ranges
    assert not all(one is None for one in first.outcomes)
    given_up = list(first.outcomes)
    kept.hear(0, Counted(outcomes=(WORK,), ranges=(BEYOND,), first=1))
    assert first.outcomes == given_up, "later ranges come too late"
    assert first.works == (WORK, WORK)


def test_where_work_is_not_counted_only_ranges_are_found(states: list[TaskState]) -> None:
    kept = Kept(StubHelpers(counts_work=False))
    first, second = states[:2]
    first.awaits_ranges = True
    for state in (first, second):
        kept.counting.submit(state)
    assert kept.counting.awaits(first)
    assert not kept.counting.awaits(second)
    kept.counting.start_waiting(most_busy=4)
    kept.hear(0, CompilerReady())
    (job,) = kept.children[0].jobs
    assert isinstance(job, CountJob)
    assert job.only_ranges
    kept.hear(0, Counted(outcomes=(WORK, WORK), ranges=((), ())))
    assert first.works == ()
    assert not first.awaits_ranges


def test_ranges_alone_do_not_hold_a_task_that_no_longer_awaits_them(
    states: list[TaskState],
) -> None:
    kept = Kept(StubHelpers(counts_work=False))
    first = states[0]
    first.awaits_ranges = True
    kept.counting.submit(first)
    kept.counting.check_access(first)
    assert not kept.counting.awaits(first)
    assert kept.counting.is_idle
    assert first.needs_padding


def test_without_a_cpu_device_no_ranges_are_awaited_and_buffers_get_padding(
    states: list[TaskState],
) -> None:
    kept = Kept(StubHelpers(NO_CPU_DEVICE))
    first = states[0]
    first.awaits_ranges, first.needs_padding = True, False
    kept.counting.submit(first)
    kept.counting.start_waiting(most_busy=4)
    assert not first.awaits_ranges
    assert first.needs_padding


def test_no_more_children_work_than_are_free(states: list[TaskState]) -> None:
    kept = Kept(StubHelpers())
    for state in states:
        kept.counting.submit(state)
    kept.counting.start_waiting(most_busy=0)
    assert kept.children == []
    kept.counting.start_waiting(most_busy=2)
    assert len(kept.children) == kept.counting.num_busy == 2
    assert not kept.counting.is_idle


def test_nothing_is_begun_before_it_is_known_where(states: list[TaskState]) -> None:
    helper_devices = StubHelpers(None)
    kept = Kept(helper_devices)
    kept.counting.submit(states[0])
    kept.counting.start_waiting(most_busy=4)
    assert kept.children == []
    assert kept.counting.awaits(states[0])
    helper_devices.where = NO_CPU_DEVICE
    kept.counting.start_waiting(most_busy=4)
    assert not kept.counting.awaits(states[0])
    assert kept.counting.is_idle
    assert [one.detail for one in states[0].works] == [NO_CPU_DEVICE] * 2  # type: ignore[union-attr]


def test_a_task_that_fails_as_a_whole_is_not_kept_waiting(states: list[TaskState]) -> None:
    kept = Kept(StubHelpers())
    first, second = states[:2]
    for state in (first, second):
        kept.counting.submit(state)
    kept.counting.start_waiting(most_busy=1)
    kept.hear(0, CompilerReady())
    for state in (first, second):
        state.fail_whole(BROKEN)
        assert not kept.counting.awaits(state)
        kept.counting.forget(state)
    kept.hear(0, Counted(outcomes=(WORK, WORK)))  # of configs that are no more
    assert first.works == ()
    assert kept.counting.is_idle, "the one that waited is gone, too"
    assert [sample.work for sample in first.result().samples] == [None]


def test_children_that_cannot_start_end_the_counting_and_not_the_run(
    states: list[TaskState], caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(StubHelpers(), is_gone=True)
    kept.counting.submit(states[0])
    kept.counting.submit(states[1])
    for number in range(3):
        kept.counting.start_waiting(most_busy=1)
        kept.hear(number)
    assert "from here on columns `work` stay empty" in caplog.text
    kept.counting.start_waiting(most_busy=1)
    kept.counting.submit(states[2])
    kept.counting.start_waiting(most_busy=1)
    assert len(kept.children) == 3, "no more are started"
    for state in states:
        assert not kept.counting.awaits(state)
        assert all("cannot start" in one.detail for one in state.works)  # type: ignore[union-attr]
    assert kept.counting.is_idle
