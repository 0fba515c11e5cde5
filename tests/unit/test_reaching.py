"""Which configs a GPU is spared, by what smaller ones touched on a CPU device."""

from __future__ import annotations

from dataclasses import replace

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.records import (
    Access,
    Argument,
    ArgumentKind,
    LaunchArgument,
    LaunchConfig,
    Signature,
    Strategy,
)
from workers.device.interface import FRONT_ROOM_BYTES, ROOM_BYTES, ProbeRecord, Reach
from workers.reaching import ReachWork, tried_indices, unbearable

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


def record(end_bytes: int, start_bytes: int = 0) -> ProbeRecord:
    reach = Reach(position=0, start_bytes=start_bytes, end_bytes=end_bytes, site=0)
    return ProbeRecord(reaches=(reach,), turns=1, trace=0, exceeded=False, overflow=False)


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


def test_what_is_beyond_the_room_spares_it_and_all_larger_ones() -> None:
    beyond = ROOM_BYTES + 4 * max(SIZES) + 1
    assert spared((1, record(beyond))) == set(SIZES)
    assert spared((1, record(4)), (3, None), (2, record(beyond))) == {2**14, 2**20, 2**24}


def test_a_reach_below_the_start_counts_from_the_end_of_its_room_on() -> None:
    assert spared((1, record(4, start_bytes=-4)), (3, record(4, start_bytes=-1024))) == {2**24}
    assert spared((1, record(4, start_bytes=-FRONT_ROOM_BYTES))) == set()
    assert spared((1, record(4, start_bytes=-FRONT_ROOM_BYTES - 1))) == set(SIZES)


def test_a_reach_that_grows_is_carried_on() -> None:
    square = [(index, record(4 * SIZES[index] ** 2)) for index in (1, 3)]
    assert spared(*square) == {2**14, 2**20, 2**24}
    constant = [(index, record(10**6)) for index in (1, 3, 2)]
    assert spared(*constant) == set()


def test_what_is_spared_makes_the_buffers_of_the_others_smaller() -> None:
    sizes = (64, 2**12, 2**16, 2**20, 2**28)
    configs = [config(items) for items in sizes]
    seen = [(index, record(320 * sizes[index])) for index in range(3)]
    gone = {sizes[index] for index, _ in unbearable(SIGNATURE, configs, seen)}
    assert gone == {2**20, 2**28}, "2^20 had room behind the buffer of 2^28 only"


def test_row_offsets_are_not_tried() -> None:
    contents = Contents(rule=ContentsRule.PREFIX, limit=100)
    args = tuple(replace(one, contents=contents) for one in CONFIGS[0].args)
    assert tried_indices([*CONFIGS[1:], replace(CONFIGS[0], args=args)]) == ()


def test_a_device_without_other_work_does_not_wait_long() -> None:
    awaited = iter((False, True, False))
    work = ReachWork(is_awaited=lambda: next(awaited))
    patient_s, awaited_s, patient_again_s = (work.timeout_s for _ in range(3))
    assert awaited_s < patient_s == patient_again_s
