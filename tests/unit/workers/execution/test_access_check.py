"""Which configs a GPU is spared, by the accesses of their virtual launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from tests.unit.workers.plan.test_launch_plan import H200, kernel
from workers.config import CollectConfig, PlanConfig
from workers.device.interface import FRONT_PADDING_BYTES, PADDING_BYTES, AccessRange
from workers.execution.access_check import Ranges, spare_unbearable, unbearable
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan

SIGNATURE = Signature(
    arguments=(
        Argument(
            position=0, name="a", kind=ArgumentKind.GLOBAL_BUFFER, type_name="float *", scalar_type="float",
            vector_width=1, access=Access.READ, element_bytes=4,
        ),
    ),
    dims=1, required_local_size=None, static_local_bytes=0, static_features={},
)  # fmt: skip
SIZES = (2**20, 64, 2**14, 2**12, 2**10, 2**24)


def config(items: int, elements: int | None = None) -> LaunchConfig:
    given = LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=elements or items)
    return LaunchConfig(
        sample_id=f"{items}", global_size=(items,), local_size=(32,), args=(given,), regime=None,
        strategies=(Strategy.SIMPLE,), seed=1,
    )  # fmt: skip


CONFIGS = tuple(map(config, SIZES))


def to(end_bytes: int, start_bytes: int = 0) -> Ranges:
    """The ranges of a launch that accesses one buffer."""
    return (AccessRange(position=0, start_bytes=start_bytes, end_bytes=end_bytes, site=0),)


def planned_state() -> TaskState:
    """A task whose configs are ``CONFIGS``."""
    timed = CollectConfig()
    one = kernel(*SIGNATURE.arguments)
    plan = Plan(
        kernels=(one,), corpus_sha256="c", device_classes=(H200,), plan_config=PlanConfig(strategies=(Strategy.SIMPLE,)),
        timing_config=timed.timing,
    )  # fmt: skip
    state = TaskState(
        plan=plan, task=plan.task(0), lease=Lease(task=0, epoch=1, token=1, attempt=1),
        device_id="d", worker_id="w", now_us=lambda: 1,
    )  # fmt: skip
    state.configs = CONFIGS
    state.outcomes = [None] * len(CONFIGS)
    return state


def indices(
    configs: Sequence[LaunchConfig],
    ranges: Mapping[int, Ranges],
    *,
    but: Sequence[int] = (),
    signature: Signature = SIGNATURE,
) -> set[int]:
    """Configs that are not launched. Every launch with ranges has ended, except those in ``but``."""
    complete = set(ranges) - set(but)
    return {index for index, _ in unbearable(signature, configs, ranges, complete)}


def spared(ranges: Mapping[int, Ranges], *, but: Sequence[int] = ()) -> set[int]:
    """Sizes of ``CONFIGS`` that are not launched."""
    return {SIZES[index] for index in indices(CONFIGS, ranges, but=but)}


BEYOND = to(PADDING_BYTES + 4 * max(SIZES) + 1)


def test_what_stays_within_is_launched() -> None:
    assert spared({index: to(4 * size) for index, size in enumerate(SIZES)}) == set()
    assert spared({}) == set()
    assert spared({0: (), 1: ()}) == set()


def test_a_launch_that_has_ended_is_judged_by_its_own_accesses_alone() -> None:
    """With decoupled inputs a small launch may have larger buffers than a large one."""
    within = {index: to(4) for index in range(len(SIZES))}
    assert spared(within | {1: BEYOND}) == {64}
    assert spared(within | {5: BEYOND}) == {2**24}


def test_a_launch_without_accesses_is_judged_by_those_that_are_smaller() -> None:
    assert spared({1: BEYOND}) == set(SIZES)
    assert spared({1: to(4), 2: BEYOND}) == {2**14, 2**20, 2**24}


def test_what_a_launch_accessed_before_it_was_cut_off_counts_for_it_alone() -> None:
    assert spared({1: to(4), 2: BEYOND}, but=[2]) == {2**14}
    assert spared({1: BEYOND, 2: to(4)}, but=[2]) == set(SIZES)


def test_a_range_below_the_start_counts_from_the_end_of_its_padding_on() -> None:
    assert spared({1: to(4, start_bytes=-4), 3: to(4, start_bytes=-1024)}) == {2**24}
    assert spared({1: to(4, start_bytes=-FRONT_PADDING_BYTES)}) == set()
    assert spared({1: to(4, start_bytes=-FRONT_PADDING_BYTES - 1)}) == set(SIZES)


def test_a_range_that_grows_is_extrapolated() -> None:
    square = {index: to(4 * SIZES[index] ** 2) for index in (1, 3)}
    assert spared(square) == {2**14, 2**20, 2**24}
    assert spared(square | {0: to(8)}, but=[0]) == {2**14, 2**20, 2**24}, "it was cut off early"
    constant = {index: to(10**6) for index in (1, 3, 2)}
    assert spared(constant) == set()
    saturated = {1: to(2**12), 4: to(2**16), 3: to(2**16), 2: to(2**16)}
    assert spared(saturated) == set(), "it has grown no further since 2^10"


def test_what_is_spared_makes_the_buffers_of_the_others_smaller() -> None:
    sizes = (64, 2**12, 2**16, 2**20, 2**28)
    configs = [config(items) for items in sizes]
    gone = indices(configs, {index: to(320 * sizes[index]) for index in range(3)})
    assert gone == {3, 4}, "2^20 had padding behind the buffer of 2^28 only"


def of(strategy: Strategy, one: LaunchConfig) -> LaunchConfig:
    return replace(one, strategies=(strategy,))


def test_each_input_strategy_is_judged_by_its_own_launches() -> None:
    simple = [of(Strategy.SIMPLE, config(items)) for items in (64, 2**12, 2**20)]
    analysed = [of(Strategy.MEMORY_ANALYSIS, config(items)) for items in (128, 2**12, 2**24)]
    ranges = {0: to(4), 1: BEYOND, 3: to(4 * 128), 4: to(4 * 2**12)}
    assert indices([*simple, *analysed], ranges) == {1, 2}


def test_a_config_of_two_strategies_judges_both() -> None:
    both = replace(config(64), strategies=(Strategy.SIMPLE, Strategy.MEMORY_ANALYSIS))
    analysed = of(Strategy.MEMORY_ANALYSIS, config(2**20))
    configs = [both, of(Strategy.SIMPLE, config(2**20)), analysed, of(Strategy.DECOUPLED, both)]
    assert indices(configs, {0: BEYOND}) == {0, 1, 2}


def with_local(elements: Sequence[int], items: int = 2**12) -> LaunchConfig:
    one = config(items)
    more = [
        LaunchArgument(position=1 + place, kind=ArgumentKind.LOCAL_BUFFER, elements=count)
        for place, count in enumerate(elements)
    ]
    return replace(one, args=(*one.args, *more))


def reaching(*ends: int) -> Ranges:
    """The ranges of a launch whose local arguments reached so many bytes."""
    return tuple(
        AccessRange(position=1 + place, start_bytes=0, end_bytes=end, site=0)
        for place, end in enumerate(ends)
    )


def test_a_config_that_leaves_its_local_memory_is_spared() -> None:
    argument = SIGNATURE.arguments[0]
    names = {1: "tile", 2: "sums"}
    local = [
        replace(argument, position=position, name=name, kind=ArgumentKind.LOCAL_BUFFER)
        for position, name in names.items()
    ]
    signature = replace(SIGNATURE, arguments=(argument, *local))
    configs = [with_local((64, 64)), with_local((64, 64), 2**20)]
    within = {0: reaching(64 * 4, 64 * 4)}
    into_the_next = {0: reaching(2 * 64 * 4, 64 * 4)}
    beyond_both = {0: reaching(64 * 4, 2 * 64 * 4)}
    assert indices(configs, within, signature=signature) == set()
    assert indices(configs, into_the_next, signature=signature) == set()
    found = dict(unbearable(signature, configs, beyond_both, {0}))
    assert set(found) == {0, 1}
    assert "'sums'" in found[1]
    below = {0: (AccessRange(position=1, start_bytes=-8, end_bytes=4, site=0),)}
    assert indices(configs, below, signature=signature) == {0, 1}
    own_array = replace(signature, static_local_bytes=16)
    assert indices(configs, below, signature=own_array) == set(), "it lies in the kernel's array"


LOCAL_ONLY = replace(
    SIGNATURE.arguments[0], position=1, name="tile", kind=ArgumentKind.LOCAL_BUFFER
)
WITH_LOCAL = replace(SIGNATURE, arguments=(SIGNATURE.arguments[0], LOCAL_ONLY))


def local_spared(sizes: Sequence[int], ranges: Mapping[int, Ranges]) -> set[int]:
    configs = [with_local((size,), 2**12 << place) for place, size in enumerate(sizes)]
    return indices(configs, ranges, signature=WITH_LOCAL)


def test_a_launched_config_is_judged_by_the_local_memory_that_it_used_itself() -> None:
    assert local_spared((64, 1024), {0: reaching(4096), 1: reaching(4096)}) == {0}


def test_another_config_has_to_be_too_small_by_both_readings() -> None:
    bytes_4096 = {0: reaching(4096)}
    assert local_spared((64, 64, 1024, 2**14), bytes_4096) == {0, 1}, "1,024 elements hold them"
    twice = {0: reaching(2 * 256 * 4)}
    assert local_spared((256, 64, 2**9, 2**10), twice) == {0, 1}
    assert local_spared((0, 1), {0: reaching(128)}) == set(), "the least size is one element"
    assert local_spared((0, 1), {0: reaching(256)}) == {0, 1}


def test_launches_of_equal_local_size_are_preferred() -> None:
    configs = [with_local((64,)), with_local((64,), 2**13), with_local((64,), 2**14)]
    configs[0] = replace(configs[0], local_size=(256,))
    ranges = {0: reaching(1024), 1: reaching(256)}
    assert indices(configs, ranges, signature=WITH_LOCAL) == {0}
    assert indices(configs, {0: reaching(1024)}, signature=WITH_LOCAL) == {0, 1, 2}


def test_a_task_keeps_only_what_a_gpu_tolerates() -> None:
    state = planned_state()
    spare_unbearable(state, {1: to(4), 3: BEYOND}, {1, 3})
    given_up = {size for size, outcome in zip(SIZES, state.outcomes, strict=True) if outcome}
    assert given_up == {2**12, 2**14, 2**20, 2**24}


def test_padding_is_needed_unless_every_launch_has_ended_within_its_buffers() -> None:
    within = {index: to(4 * size) for index, size in enumerate(SIZES)}
    for ranges, complete, needs_padding in (
        (within, set(within), False),
        (within, set(within) - {0}, True),
        (within | {1: to(4 * 64 + 1)}, set(within), True),
        (within | {1: to(4, start_bytes=-4)}, set(within), True),
        ({}, set(), True),
    ):
        state = planned_state()
        state.needs_padding = False
        spare_unbearable(state, ranges, complete)
        assert state.needs_padding is needs_padding
