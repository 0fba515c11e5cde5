"""A task on its way: which configs are given up when others fault."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Strategy, Timing
from tests.support.collecting import wait_until, write_kernels
from tests.support.factories.dataset_factory import make_timing
from tests.support.processes.stub_device import DEVICE
from workers.analysis.unknown import unknown_analysis
from workers.config import CollectConfig, PlanConfig
from workers.corpus.read import read_sources
from workers.device.device_class import device_class_of
from workers.device.nvidia.monitor import ClockReason, Monitor, Reading
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan

PLAIN = replace(make_timing(), sm_clock_mhz=None, temperature_c=None, throttled=None)
FAULT = Failure(code=FailureCode.DEVICE_FAULT, stage=Stage.LAUNCH, detail="a fault")


@pytest.fixture
def state(tmp_path: Path) -> TaskState:
    """One kernel with configs of two strategies."""
    corpus = read_sources([write_kernels(tmp_path, ["k"])])
    config = CollectConfig(
        plan=PlanConfig(samples_per_kernel=8, strategies=(Strategy.SIMPLE, Strategy.DECOUPLED))
    )
    plan = Plan(
        kernels=corpus.kernels,
        corpus_sha256=corpus.sha256,
        device_classes=(device_class_of(DEVICE),),
        plan_config=config.plan,
        timing_config=config.timing,
    )
    made = TaskState(
        plan=plan, task=plan.task(0), lease=Lease(task=0, epoch=1, token=1, attempt=1),
        device_id="d", worker_id="w", now_us=lambda: 1,
    )  # fmt: skip
    made.plan_by(unknown_analysis(plan.task(0).kernel, "a test"))
    made.configs = tuple(
        replace(one, strategies=(Strategy.DECOUPLED,) if number % 2 else one.strategies)
        for number, one in enumerate(made.configs)
    )
    return made


def codes(state: TaskState) -> Counter[str]:
    return Counter(
        recorded[0].code.value
        for recorded in state.outcomes
        if recorded is not None and isinstance(recorded[0], Failure)
    )


def test_a_fault_ends_its_strategy_and_no_other(state: TaskState) -> None:
    of_simple = [i for i, one in enumerate(state.configs) if one.strategies == (Strategy.SIMPLE,)]
    others = [i for i in range(len(state.configs)) if i not in of_simple]
    assert of_simple
    assert others
    state.record(of_simple[0], FAULT)
    state.give_up_strategies_of(of_simple[0], 1)
    assert codes(state) == {"device_fault": 1, "quarantined": len(of_simple) - 1}
    assert state.open_indices == tuple(others)


def test_as_many_faults_as_it_takes(state: TaskState) -> None:
    first, second, *_ = (
        i for i, one in enumerate(state.configs) if one.strategies == (Strategy.SIMPLE,)
    )
    for index, quarantined in ((first, False), (second, True)):
        state.record(index, FAULT)
        state.give_up_strategies_of(index, 2)
        assert ("quarantined" in codes(state)) is quarantined


def test_only_device_faults_are_faults(state: TaskState) -> None:
    state.record(0, FAULT)
    state.record(1, Failure(code=FailureCode.HANG, stage=Stage.LAUNCH, detail="hung"))
    assert state.is_fault(0)
    assert not state.is_fault(1)
    assert not state.is_fault(2)


class Steady:
    """A source that always answers the same."""

    def read(self, at_s: float) -> Reading:
        return Reading(
            at_s=at_s, sm_clock_mhz=1900.0, temperature_c=50.0, reasons=ClockReason.SOFTWARE_THERMAL
        )

    def close(self) -> None:
        pass


def test_timings_carry_what_the_device_was_like(state: TaskState) -> None:
    with Monitor(Steady(), poll_hz=100.0) as monitor:
        wait_until(lambda: monitor.latest() is not None)
        now_s = time.monotonic()
        state.record(0, PLAIN, window_s=(now_s - 0.01, now_s))
        state.record(1, PLAIN, window_s=(now_s - 100.0, now_s - 99.0))
        state.record(2, PLAIN)
        state.record_rest(FAULT)
        seen, before, unknown, *failed = state.result(monitor).samples
    assert isinstance(seen.outcome, Timing)
    assert (seen.outcome.sm_clock_mhz, seen.outcome.temperature_c) == (1900.0, 50.0)
    assert seen.outcome.throttled
    for one in (before, unknown):
        assert one.outcome == PLAIN
    assert {one.outcome for one in failed} == {FAULT}
    assert state.result().samples[0].outcome == PLAIN


def test_the_payload_is_checked_at_the_ends_and_somewhere_between(state: TaskState) -> None:
    groups = [one.num_work_groups for one in state.configs]
    chosen = state.check_indices
    assert len(set(chosen)) == 3
    ends = {min(groups), max(groups)}
    assert {groups[index] for index in chosen} >= ends
    assert state.check_indices == chosen, "another attempt checks the same"
