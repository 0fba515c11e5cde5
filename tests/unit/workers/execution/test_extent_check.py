"""What validated extents say of launch configs, and what a trial on a CPU device adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.analysis import Analysis, Extent, Polynomial, Term
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    LaunchArgument,
    LaunchConfig,
    Signature,
    Strategy,
)
from tests.support.factories.dataset_factory import make_device
from tests.unit.workers.plan.test_launch_plan import H200, kernel
from workers.config import CollectConfig, PlanConfig
from workers.device.interface import PADDING_BYTES, AccessRange
from workers.execution.access_check import Ranges, spare_unbearable
from workers.execution.extent_check import judge_by_extents, wants_ranges
from workers.execution.run_jobs import run_job
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan


def pointer(position: int, kind: ArgumentKind = ArgumentKind.GLOBAL_BUFFER) -> Argument:
    return Argument(
        position=position, name=f"p{position}", kind=kind, type_name="float *", scalar_type="float", vector_width=1,
        access=Access.READ, element_bytes=4,
    )  # fmt: skip


COUNT = Argument(
    position=1, name="n", kind=ArgumentKind.SCALAR, type_name="int", scalar_type="int", vector_width=1,
    access=Access.NONE, element_bytes=4,
)  # fmt: skip


def signature(*arguments: Argument) -> Signature:
    return Signature(
        arguments=arguments,
        dims=1,
        required_local_size=None,
        static_local_bytes=0,
        static_features={},
    )


BUFFER_AND_COUNT = signature(pointer(0), COUNT)


def times(coefficient: int, *factors: str) -> Polynomial:
    return Polynomial(constant=0, terms=(Term(factors=factors, coefficient=coefficient),))


def analysis(
    form: Polynomial, *, cap: Polynomial | None = None, validated: bool = True
) -> Analysis:
    return Analysis(extents=(Extent(position=0, form=form, cap=cap, validated=validated),))


def config(items: int, elements: int, n: int | None = None) -> LaunchConfig:
    given = (
        LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=elements),
        LaunchArgument(position=1, kind=ArgumentKind.SCALAR, value=items if n is None else n),
    )
    return LaunchConfig(
        sample_id=f"{items}", global_size=(items,), local_size=(32,), args=given, regime=None,
        strategies=(Strategy.SIMPLE,), seed=1,
    )  # fmt: skip


ONE_EACH = analysis(times(1, "global_size_0"))
SQUARE = analysis(times(1, "global_size_0", "n"))
CONFIGS = (config(64, 64), config(2**20, 2**20))


def test_buffers_as_large_as_their_extents_need_no_padding() -> None:
    judged = judge_by_extents(BUFFER_AND_COUNT, ONE_EACH, CONFIGS)
    assert judged is not None
    assert (judged.needs_padding, judged.beyond) == (False, ())


def test_an_extent_in_the_padding_needs_it() -> None:
    judged = judge_by_extents(BUFFER_AND_COUNT, SQUARE, (config(64, 64),))
    assert judged is not None
    assert (judged.needs_padding, judged.beyond) == (True, ())


def test_one_config_that_leaves_its_own_elements_is_enough_to_need_padding() -> None:
    """The first has room in the allocation of the second, which may not be allocated."""
    judged = judge_by_extents(BUFFER_AND_COUNT, ONE_EACH, (config(64, 63), config(128, 128)))
    assert judged is not None
    assert judged.needs_padding


def test_what_leaves_the_padding_too_is_given_up_and_the_others_need_none() -> None:
    configs = (config(64, 64, n=1), config(2**20, 2**20))
    judged = judge_by_extents(BUFFER_AND_COUNT, SQUARE, configs)
    assert judged is not None
    ((index, why),) = judged.beyond
    assert index == 1
    assert "beyond the end of argument 'p0'" in why
    assert not judged.needs_padding


@pytest.mark.parametrize("more", [0, 4])
def test_the_padding_begins_behind_the_largest_allocated_buffer(more: int) -> None:
    elements = (PADDING_BYTES + more) // 4 + 2**20
    configs = (config(64, 64, n=elements), config(128, 2**20, n=1))
    judged = judge_by_extents(BUFFER_AND_COUNT, analysis(times(1, "n")), configs)
    assert judged is not None
    assert [index for index, _ in judged.beyond] == [0] * bool(more)


def test_a_guard_limits_the_extent() -> None:
    guarded = analysis(times(4, "global_size_0"), cap=times(1, "n"))
    judged = judge_by_extents(BUFFER_AND_COUNT, guarded, (config(64, 64),))
    assert judged is not None
    assert not judged.needs_padding


def test_local_memory_is_judged_as_well() -> None:
    two = signature(pointer(0), COUNT, pointer(2, ArgumentKind.LOCAL_BUFFER))
    known = replace(
        ONE_EACH,
        extents=(
            *ONE_EACH.extents,
            Extent(position=2, form=times(8, "local_size_0"), validated=True),
        ),
    )
    small = LaunchArgument(position=2, kind=ArgumentKind.LOCAL_BUFFER, elements=32)
    enough = replace(small, elements=256)
    configs = tuple(
        replace(one, args=(*one.args, given))
        for one, given in zip(CONFIGS, (small, enough), strict=True)
    )
    judged = judge_by_extents(two, known, configs)
    assert judged is not None
    ((index, why),) = judged.beyond
    assert (index, why) == (0, "it accesses memory outside its local memory through argument 'p2'")


@pytest.mark.parametrize(
    "unknown",
    [
        None,
        Analysis(extents=()),
        analysis(times(1, "global_size_0"), validated=False),
        replace(ONE_EACH, failure="a probe hung"),
        analysis(times(1, "lane")),
    ],
    ids=["no analysis", "no extent", "not validated", "failed", "no such size"],
)
def test_what_extents_do_not_settle_is_left_to_a_trial(unknown: Analysis | None) -> None:
    assert judge_by_extents(BUFFER_AND_COUNT, unknown, CONFIGS) is None


def state_of(known: Analysis | None, configs: Sequence[LaunchConfig]) -> TaskState:
    one = kernel(*BUFFER_AND_COUNT.arguments)
    plan = Plan(
        kernels=(one,), corpus_sha256="c", device_classes=(H200,), plan_config=PlanConfig(strategies=(Strategy.SIMPLE,)),
        timing_config=CollectConfig().timing,
    )  # fmt: skip
    state = TaskState(
        plan=plan, task=plan.task(0), lease=Lease(task=0, epoch=1, token=1, attempt=1),
        device_id="d", worker_id="w", now_us=lambda: 1,
    )  # fmt: skip
    state.configs = tuple(configs)
    state.outcomes = [None] * len(configs)
    state.launch_ns = [None] * len(configs)
    state._windows_s = [None] * len(configs)
    state.analysis = known
    return state


def has_padding(state: TaskState) -> bool:
    job = run_job(
        state, device=make_device(), binary_path=Path("k.bin"), timing=CollectConfig().timing, sentinel=False,
        lock_path=None, budget_s=None, processor=None,
    )  # fmt: skip
    return job.has_padding


def tell(state: TaskState, *ranges: Ranges | None) -> None:
    """The access ranges of the first configs; None: the launch did not end."""
    known = {index: one for index, one in enumerate(ranges) if one is not None}
    spare_unbearable(state, known, set(known))


def to(end_bytes: int, start_bytes: int = 0) -> Ranges:
    return (AccessRange(position=0, start_bytes=start_bytes, end_bytes=end_bytes, site=0),)


def test_a_simple_config_is_tried_although_extents_say_that_it_is_safe() -> None:
    """A validated extent does not exclude an index that overflows in a large launch."""
    state = state_of(ONE_EACH, (config(64, 64),))
    assert wants_ranges(state, can_try=True, spares=True)
    assert not has_padding(state)
    tell(state, to(4 * 64))
    assert state.open_indices == (0,)
    assert not has_padding(state)


@pytest.mark.parametrize(
    "told",
    [(to(4 * 64 + 1),), (to(4, -4),), (None,), ()],
    ids=["end", "start", "cut off", "no answer"],
)
def test_a_launch_that_does_not_agree_demands_padding(told: tuple[Ranges | None, ...]) -> None:
    state = state_of(ONE_EACH, (config(64, 64),))
    assert wants_ranges(state, can_try=True, spares=True)
    tell(state, *told)
    assert state.open_indices == (0,)
    assert has_padding(state)


def test_a_trial_gives_up_what_extents_allow() -> None:
    state = state_of(ONE_EACH, (config(64, 64),))
    assert wants_ranges(state, can_try=True, spares=True)
    tell(state, to(4, -(2**33)))
    assert state.open_indices == ()


def test_without_another_device_simple_configs_keep_their_padding() -> None:
    state = state_of(ONE_EACH, CONFIGS)
    assert not wants_ranges(state, can_try=False, spares=True)
    assert has_padding(state)


def test_configs_that_follow_the_extents_need_neither_trial_nor_padding() -> None:
    configs = [replace(one, strategies=(Strategy.MEMORY_ANALYSIS,)) for one in CONFIGS]
    state = state_of(ONE_EACH, configs)
    assert not wants_ranges(state, can_try=True, spares=True)
    assert not has_padding(state)
    assert state.open_indices == (0, 1)


@pytest.mark.parametrize("can_try", [True, False])
def test_a_task_that_is_not_settled_keeps_its_padding(can_try: bool) -> None:
    state = state_of(None, CONFIGS)
    assert wants_ranges(state, can_try=can_try, spares=True) is can_try
    assert has_padding(state)


@pytest.mark.parametrize("spares", [True, False])
def test_configs_are_given_up_only_where_that_is_wanted(spares: bool) -> None:
    state = state_of(SQUARE, (config(64, 64, n=1), config(2**20, 2**20)))
    wants_ranges(state, can_try=spares, spares=spares)
    assert state.open_indices == ((0,) if spares else (0, 1))
    assert has_padding(state) is not spares
    if spares:
        outcome = state.outcomes[1]
        assert outcome is not None
        failure = outcome[0]
        assert isinstance(failure, Failure)
        assert (failure.code, failure.stage) == (FailureCode.QUARANTINED, Stage.PROBE)
        assert "by its memory analysis" in failure.detail
