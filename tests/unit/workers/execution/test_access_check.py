"""Which configs a GPU is spared, by what smaller ones touched on a CPU device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from llmperf_common.analysis import Contents, ContentsRule
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
from tests.unit.workers.plan.test_launch_plan import H200, kernel
from workers.analysis.planned_access import planned_access_ranges
from workers.config import CollectConfig, PlanConfig
from workers.device.interface import (
    FRONT_PADDING_BYTES,
    PADDING_BYTES,
    AccessRange,
    DeviceFailure,
    ProbeRecord,
)
from workers.execution.access_check import AccessCheck, tried_indices, unbearable
from workers.execution.task_state import TaskState
from workers.plan.plan import Plan
from workers.sandbox.messages import AccessRanges

SIGNATURE = Signature(
    arguments=(
        Argument(
            position=0, name="a", kind=ArgumentKind.GLOBAL_BUFFER, type_name="float *", scalar_type="float",
            vector_width=1, access=Access.READ, element_bytes=4,
        ),
    ),
    dims=1, required_local_size=None, static_local_bytes=0, static_features={},
)  # fmt: skip
SOURCE = "__kernel void k(__global float *a) { a[get_global_id(0)] = 1; }"
SIZES = (2**20, 64, 2**14, 2**12, 2**10, 2**24)


def config(items: int, elements: int | None = None) -> LaunchConfig:
    given = LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=elements or items)
    return LaunchConfig(
        sample_id=f"{items}", global_size=(items,), local_size=(32,), args=(given,), regime=None,
        strategies=(Strategy.SIMPLE,), seed=1,
    )  # fmt: skip


CONFIGS = tuple(map(config, SIZES))


def record(end_bytes: int, start_bytes: int = 0) -> ProbeRecord:
    access_range = AccessRange(position=0, start_bytes=start_bytes, end_bytes=end_bytes, site=0)
    return ProbeRecord(
        access_ranges=(access_range,), turns=1, trace=0, exceeded=False, overflow=False
    )


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


def given_up(state: TaskState) -> set[int]:
    """Sizes that have an outcome before they were launched."""
    return {size for size, outcome in zip(SIZES, state.outcomes, strict=True) if outcome}


def spared(*seen: tuple[int, ProbeRecord | None]) -> set[int]:
    """Sizes that are not launched."""
    return {SIZES[index] for index, _ in unbearable(SIGNATURE, CONFIGS, seen)}


def test_the_smallest_and_two_larger_are_tried() -> None:
    assert [SIZES[index] for index in tried_indices(CONFIGS)] == [64, 2**12, 2**14]
    assert tried_indices([config(2**20)]) == ()
    assert tried_indices([]) == ()


def test_what_stays_within_is_launched() -> None:
    assert spared((1, record(64 * 4)), (3, record(2**14)), (2, record(2**16))) == set()
    assert spared((1, None), (3, None)) == set()
    assert spared() == set()


def test_what_is_beyond_the_padding_spares_it_and_all_larger_ones() -> None:
    beyond = PADDING_BYTES + 4 * max(SIZES) + 1
    assert spared((1, record(beyond))) == set(SIZES)
    assert spared((1, record(4)), (3, None), (2, record(beyond))) == {2**14, 2**20, 2**24}


def test_a_range_below_the_start_counts_from_the_end_of_its_padding_on() -> None:
    assert spared((1, record(4, start_bytes=-4)), (3, record(4, start_bytes=-1024))) == {2**24}
    assert spared((1, record(4, start_bytes=-FRONT_PADDING_BYTES))) == set()
    assert spared((1, record(4, start_bytes=-FRONT_PADDING_BYTES - 1))) == set(SIZES)


def test_a_range_that_grows_is_extrapolated() -> None:
    square = [(index, record(4 * SIZES[index] ** 2)) for index in (1, 3)]
    assert spared(*square) == {2**14, 2**20, 2**24}
    constant = [(index, record(10**6)) for index in (1, 3, 2)]
    assert spared(*constant) == set()


def test_what_is_spared_makes_the_buffers_of_the_others_smaller() -> None:
    sizes = (64, 2**12, 2**16, 2**20, 2**28)
    configs = [config(items) for items in sizes]
    seen = [(index, record(320 * sizes[index])) for index in range(3)]
    gone = {sizes[index] for index, _ in unbearable(SIGNATURE, configs, seen)}
    assert gone == {2**20, 2**28}, "2^20 had padding behind the buffer of 2^28 only"


def of(strategy: Strategy, one: LaunchConfig) -> LaunchConfig:
    return replace(one, strategies=(strategy,))


def test_each_input_strategy_is_judged_by_its_own_trials() -> None:
    simple = [of(Strategy.SIMPLE, config(items)) for items in (64, 2**12, 2**20)]
    analysed = [of(Strategy.MEMORY_ANALYSIS, config(items)) for items in (128, 2**12, 2**24)]
    configs = [*simple, *analysed]
    assert tried_indices(configs) == (0, 3, 1, 4), "the smallest and a larger one of each"
    beyond = record(PADDING_BYTES + 4 * 2**24 + 1)
    seen = [(0, record(4)), (1, beyond), (3, record(4 * 128)), (4, record(4 * 2**12))]
    assert {index for index, _ in unbearable(SIGNATURE, configs, seen)} == {1, 2}


def test_a_launch_that_was_cut_off_ends_the_trials_of_its_strategy_alone() -> None:
    cut, whole = replace(record(4), exceeded=True), record(4)
    configs = [
        of(Strategy.SIMPLE, config(64)), of(Strategy.MEMORY_ANALYSIS, config(64)),
        of(Strategy.SIMPLE, config(128)), of(Strategy.MEMORY_ANALYSIS, config(128)),
    ]  # fmt: skip
    one = replace(kernel(*SIGNATURE.arguments), source=SOURCE)
    prober = ScriptedProber(cut, whole, whole)
    found = planned_access_ranges(one, configs, prober, without_barriers=False)  # type: ignore[arg-type]
    assert list(found) == [cut, whole, None, whole]


def with_local(elements: Sequence[int], items: int = 2**12) -> LaunchConfig:
    one = config(items)
    more = [
        LaunchArgument(position=1 + place, kind=ArgumentKind.LOCAL_BUFFER, elements=count)
        for place, count in enumerate(elements)
    ]
    return replace(one, args=(*one.args, *more))


def reaching(*ends: int) -> ProbeRecord:
    """A launch whose local arguments reached so many bytes."""
    ranges = [
        AccessRange(position=1 + place, start_bytes=0, end_bytes=end, site=0)
        for place, end in enumerate(ends)
    ]
    return replace(record(4), access_ranges=tuple(ranges))


def test_a_config_that_leaves_its_local_memory_is_spared() -> None:
    argument = SIGNATURE.arguments[0]
    names = {1: "tile", 2: "sums"}
    local = [
        replace(argument, position=position, name=name, kind=ArgumentKind.LOCAL_BUFFER)
        for position, name in names.items()
    ]
    signature = replace(SIGNATURE, arguments=(argument, *local))
    configs = [with_local((64, 64)), with_local((64, 64), 2**20)]
    within = [(0, reaching(64 * 4, 64 * 4))]
    into_the_next = [(0, reaching(2 * 64 * 4, 64 * 4))]
    beyond_both = [(0, reaching(64 * 4, 2 * 64 * 4))]
    assert not list(unbearable(signature, configs, within))
    assert not list(unbearable(signature, configs, into_the_next))
    found = dict(unbearable(signature, configs, beyond_both))
    assert set(found) == {0, 1}
    assert "'sums'" in found[1]
    below = [(0, replace(reaching(0, 0), access_ranges=(
        AccessRange(position=1, start_bytes=-8, end_bytes=4, site=0),)))]  # fmt: skip
    assert set(dict(unbearable(signature, configs, below))) == {0, 1}
    own_array = replace(signature, static_local_bytes=16)
    assert not list(unbearable(own_array, configs, below)), "it lies in the kernel's own array"


LOCAL_ONLY = replace(
    SIGNATURE.arguments[0], position=1, name="tile", kind=ArgumentKind.LOCAL_BUFFER
)
WITH_LOCAL = replace(SIGNATURE, arguments=(SIGNATURE.arguments[0], LOCAL_ONLY))


def local_spared(sizes: Sequence[int], *seen: tuple[int, ProbeRecord]) -> set[int]:
    configs = [with_local((size,), 2**12 << place) for place, size in enumerate(sizes)]
    return {index for index, _ in unbearable(WITH_LOCAL, configs, seen)}


def test_a_tried_config_is_judged_by_the_local_memory_that_it_used_itself() -> None:
    beyond, within = (0, reaching(4096)), (1, reaching(4096))
    assert local_spared((64, 1024), beyond, within) == {0}


def test_another_config_has_to_be_too_small_by_both_readings() -> None:
    bytes_4096 = (0, reaching(4096))
    assert local_spared((64, 64, 1024, 2**14), bytes_4096) == {0, 1}, "1,024 elements hold them"
    twice = (0, reaching(2 * 256 * 4))
    assert local_spared((256, 64, 2**9, 2**10), twice) == {0, 1}
    assert local_spared((0, 1), (0, reaching(128))) == set(), "the least size is one element"
    assert local_spared((0, 1), (0, reaching(256))) == {0, 1}


def test_trials_of_equal_local_size_are_preferred() -> None:
    configs = [with_local((64,)), with_local((64,), 2**13), with_local((64,), 2**14)]
    configs[0] = replace(configs[0], local_size=(256,))
    seen = [(0, reaching(1024)), (1, reaching(256))]
    assert {index for index, _ in unbearable(WITH_LOCAL, configs, seen)} == {0}
    assert {index for index, _ in unbearable(WITH_LOCAL, configs, seen[:1])} == {0, 1, 2}


def test_a_config_of_two_strategies_is_tried_for_both_and_judges_both() -> None:
    both = replace(config(64), strategies=(Strategy.SIMPLE, Strategy.MEMORY_ANALYSIS))
    analysed = of(Strategy.MEMORY_ANALYSIS, config(2**20))
    configs = [both, of(Strategy.SIMPLE, config(2**20)), analysed, of(Strategy.DECOUPLED, both)]
    assert tried_indices(configs) == (0, 3)
    assert tried_indices(configs[:3]) == (0,)
    beyond = record(PADDING_BYTES + 4 * 2**20 + 1)
    assert {index for index, _ in unbearable(SIGNATURE, configs, [(0, beyond)])} == {0, 1, 2}


def test_a_failed_launch_ends_the_trials_of_its_strategies_alone() -> None:
    configs = [of(Strategy.SIMPLE, config(64)), of(Strategy.MEMORY_ANALYSIS, config(64))]
    one = replace(kernel(*SIGNATURE.arguments), source=SOURCE)
    failure = Failure(code=FailureCode.LAUNCH_ERROR, stage=Stage.PROBE, detail="no memory")
    failed = DeviceFailure(failure)
    prober = ScriptedProber(failed, record(4))
    found = planned_access_ranges(one, configs, prober, without_barriers=False)  # type: ignore[arg-type]
    assert list(found) == [None, record(4)]
    lost = DeviceFailure(failure, sticky=True)
    with pytest.raises(DeviceFailure, match="no memory"):
        list(planned_access_ranges(one, configs, ScriptedProber(lost), without_barriers=False))  # type: ignore[arg-type]


def test_row_offsets_are_not_tried() -> None:
    contents = Contents(rule=ContentsRule.PREFIX, limit=100)
    args = tuple(replace(one, contents=contents) for one in CONFIGS[0].args)
    offsets = of(Strategy.MEMORY_ANALYSIS, replace(config(32), args=args))
    assert tried_indices([offsets]) == ()
    assert tried_indices([*CONFIGS, offsets]) == tried_indices(CONFIGS)


def test_nothing_is_judged_before_the_last_answer() -> None:
    state = planned_state()
    work = AccessCheck()
    work.job(state)
    beyond = record(PADDING_BYTES + 4 * max(SIZES) + 1)
    assert not work.take(state, AccessRanges(records=(record(4),), is_last=False))
    assert not work.take(state, AccessRanges(records=(record(4), beyond), is_last=False))
    assert not any(state.outcomes)
    assert work.take(state, AccessRanges(records=(record(4), beyond)))
    assert given_up(state) == {size for size in SIZES if size >= 2**12}


BEYOND = (record(4), record(2**40))
LARGE = {size for size in SIZES if size >= 2**12}


def tell(state: TaskState, work: AccessCheck, *records: ProbeRecord) -> None:
    work.job(state)
    assert not work.take(state, AccessRanges(records=records, is_last=False))


def test_what_was_known_before_it_hung_counts() -> None:
    state, work = planned_state(), AccessCheck()
    tell(state, work, *BEYOND)
    work.timed_out(state, 5.0)
    assert given_up(state) == LARGE


def test_what_was_known_before_an_error_of_ours_counts() -> None:
    state, work = planned_state(), AccessCheck()
    tell(state, work, *BEYOND)
    assert not work.died(state, "exit code 1", "KeyError", 1.0)
    assert given_up(state) == LARGE


def test_a_second_child_adds_to_what_the_first_told() -> None:
    state, work = planned_state(), AccessCheck()
    tell(state, work, *BEYOND)
    assert work.died(state, "SIGSEGV", "", 1.0)
    assert given_up(state) == set(), "it is tried again"
    tell(state, work, record(4))
    assert not work.died(state, "SIGSEGV", "", 1.0)
    assert given_up(state) == LARGE


def test_an_empty_answer_takes_nothing_back() -> None:
    state, work = planned_state(), AccessCheck()
    tell(state, work, *BEYOND)
    assert work.died(state, "SIGSEGV", "", 1.0)
    work.job(state)
    assert work.take(state, AccessRanges(records=()))
    assert given_up(state) == LARGE


class ScriptedProber:
    """Gives one record after the other, or raises it, whatever is launched."""

    def __init__(self, *records: ProbeRecord | DeviceFailure | None) -> None:
        self._records = iter(records)
        self.num_launched = 0

    def run(self, *_: object) -> tuple[ProbeRecord | None]:
        self.num_launched += 1
        record = next(self._records)
        if isinstance(record, DeviceFailure):
            raise record
        return (record,)


def access_ranges_of(prober: ScriptedProber, source: str) -> list[ProbeRecord | None]:
    one = replace(kernel(*SIGNATURE.arguments), source=source)
    found = planned_access_ranges(one, CONFIGS[:3], prober, without_barriers=False)  # type: ignore[arg-type]
    return list(found)


def test_nothing_is_launched_after_a_launch_that_was_cut_off() -> None:
    whole, cut = record(4), replace(record(4), exceeded=True)
    for records, num_launched in (
        ((whole, whole, whole), 3),
        ((whole, cut, whole), 2),
        ((None, whole), 1),
    ):
        prober = ScriptedProber(*records)
        told = [*records[:num_launched], None, None, None][:3]
        assert access_ranges_of(prober, SOURCE) == told
        assert prober.num_launched == num_launched


def test_of_what_cannot_be_instrumented_nothing_is_told() -> None:
    assert access_ranges_of(ScriptedProber(), SOURCE.replace("k(", "another(")) == []


def test_a_device_without_other_work_does_not_wait_long() -> None:
    awaited = iter((False, True, False))
    work = AccessCheck(is_awaited=lambda: next(awaited))
    patient_s, awaited_s, patient_again_s = (work.timeout_s for _ in range(3))
    assert awaited_s < patient_s == patient_again_s
