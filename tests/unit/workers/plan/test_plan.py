"""The plan: order, ids, identity."""

from dataclasses import replace

import pytest

from llmperf_common.analysis import Analysis, Extent, Polynomial, Term
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Strategy
from tests.unit.workers.plan.test_launch_plan import (
    BUFFER,
    H200,
    SMALL_CPU,
    TWO_BUFFERS,
    argument,
    kernel,
)
from workers.config import PlanConfig, TimingConfig
from workers.plan.plan import Plan

GOOD = kernel(*TWO_BUFFERS)
FAILED = replace(
    GOOD,
    kernel_id="k9",
    signature=None,
    failure=Failure(code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail="an image"),
)
TOO_LARGE = replace(kernel(argument(0, BUFFER, size_bytes=2**41)), kernel_id="k8")


def make(**changes: object) -> Plan:
    values: dict[str, object] = {
        "kernels": (GOOD, TOO_LARGE, FAILED),
        "corpus_sha256": "c0",
        "device_classes": (H200, SMALL_CPU),
        "plan_config": PlanConfig(samples_per_kernel=5, strategies=(Strategy.SIMPLE,)),
        "timing_config": TimingConfig(),
    }
    return Plan(**(values | changes))  # type: ignore[arg-type]


def test_tasks_are_kernels_times_device_classes_in_a_fixed_order():
    plan = make()
    tasks = [plan.task(index) for index in range(plan.num_tasks)]
    assert [(one.kernel.kernel_id, one.device_class.name) for one in tasks] == [
        ("k1", "h200"), ("k8", "h200"), ("k9", "h200"), ("k1", "cpu"), ("k8", "cpu"), ("k9", "cpu"),
    ]  # fmt: skip
    assert plan.tasks_of_class("h200") == range(3)
    assert plan.tasks_of_class("cpu") == range(3, 6)
    assert len({one.task_id for one in tasks}) == 6


def test_asking_for_what_is_not_there():
    plan = make()
    for index in (-1, 6):
        with pytest.raises(IndexError, match="of 6"):
            plan.task(index)
    with pytest.raises(KeyError, match="tpu"):
        plan.tasks_of_class("tpu")


def test_a_kernel_that_cannot_be_launched_has_one_empty_config():
    plan = make()
    for index in (1, 2):
        (only,) = plan.configs(plan.task(index))
        assert (only.global_size, only.args, only.regime) == ((), (), None)
        assert only.strategies == (Strategy.SIMPLE,)
    assert [plan.num_samples(plan.task(index)) for index in range(6)] == [5, 1, 1, 5, 1, 1]
    assert len(plan.configs(plan.task(0))) == 5


def test_the_hash_covers_what_decides_a_time_and_nothing_else():
    plan = make()
    assert plan.plan_hash == make().plan_hash
    changes: list[dict[str, object]] = [
        {"corpus_sha256": "c1"},
        {"device_classes": (H200,)},
        {"device_classes": (SMALL_CPU, H200)},
        {"device_classes": (replace(H200, local_memory_bytes=1), SMALL_CPU)},
        {"plan_config": PlanConfig(samples_per_kernel=6)},
        {"plan_config": PlanConfig(samples_per_kernel=5, seed=1)},
        {"plan_config": PlanConfig(samples_per_kernel=5, sampler="uniform")},
        {"timing_config": TimingConfig(warmups=3)},
    ]
    hashes = {make(**change).plan_hash for change in changes}
    assert len(hashes) == len(changes)
    assert plan.plan_hash not in hashes


@pytest.mark.parametrize("changes", [{"kernels": (GOOD, GOOD)}, {"device_classes": (H200, H200)}])
def test_things_twice_are_refused(changes):
    with pytest.raises(ValueError, match="once"):
        make(**changes)


FOUND = Analysis(
    extents=tuple(
        Extent(
            position=position,
            form=Polynomial(constant=0, terms=(Term(factors=("global_size_0",), coefficient=1),)),
            validated=True,
        )
        for position in (0, 1)
    )
)


def test_a_plan_by_analysis_needs_one_and_counts_by_estimate_until_then():
    plan = make(plan_config=PlanConfig(samples_per_kernel=5))
    assert plan.first_strategy is Strategy.MEMORY_ANALYSIS
    assert [plan.needs_analysis(one) for one in plan.kernels] == [True, True, False]
    assert [plan.num_samples(plan.task(index)) for index in range(3)] == [5, 5, 1]
    task = plan.task(0)
    assert plan.num_samples(task, FOUND) == len(plan.configs(task, FOUND)) == 5
    assert {one.strategies for one in plan.configs(task, FOUND)} == {(Strategy.MEMORY_ANALYSIS,)}
    (only,) = plan.configs(plan.task(2))
    assert only.strategies == (Strategy.MEMORY_ANALYSIS,)


def test_a_corpus_that_was_analysed_ahead_needs_no_other_analysis():
    known = replace(GOOD, analysis=FOUND)
    plan = make(plan_config=PlanConfig(samples_per_kernel=5), kernels=(known,))
    task = plan.task(0)
    assert not plan.needs_analysis(known)
    assert plan.configs(task) == plan.configs(task, FOUND)
    assert plan.num_samples(task) == 5
    other = replace(FOUND, failure="it hung")
    assert {one.strategies for one in plan.configs(task, other)} == {(Strategy.SIMPLE,)}


def test_a_simple_plan_needs_no_analysis():
    assert not any(make().needs_analysis(one) for one in make().kernels)


def test_the_version_of_the_analysis_counts_where_a_strategy_asks_for_it(monkeypatch):
    asking = {"plan_config": PlanConfig(samples_per_kernel=5)}
    before = make().plan_hash, make(**asking).plan_hash
    monkeypatch.setattr("workers.plan.plan.ANALYSIS_VERSION", 10**6)
    after = make().plan_hash, make(**asking).plan_hash
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_golden_ids():
    plan = make()
    assert plan.plan_hash == "f4ea3afc8ccef350c5bb"
    assert plan.task(0).task_id == "eedcdd06ac361a73d7a3"


def test_the_hash_of_earlier_datasets_stays(monkeypatch):
    """The number is that of commit dc04218: nothing but the harness version, which is 2 since, keeps a dataset begun then from resuming."""
    monkeypatch.setattr("workers.plan.plan.HARNESS_VERSION", 1)
    earlier = make()
    assert earlier.plan_hash == "47dfabcf4b41c320c998"
    outside = TimingConfig(poll_hz=0, one_processor=False)
    assert make(timing_config=outside).plan_hash == earlier.plan_hash
    limited = replace(H200, max_constant_buffer_bytes=65_536)
    assert make(device_classes=(limited, SMALL_CPU)).plan_hash != earlier.plan_hash
