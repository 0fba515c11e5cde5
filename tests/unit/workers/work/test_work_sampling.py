"""Which units of a launch run, and what is concluded from them."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.records import LaunchConfig, Strategy
from workers.plan.mixing import mix32
from workers.work.counted_copy import NUM_TURNS, CountedBlock, CountedCopy, CountedSite
from workers.work.estimate import estimate
from workers.work.launch import VirtualLaunch
from workers.work.opencl_virtual import RawCounts, VirtualKernel
from workers.work.reuse import touched_bytes
from workers.work.sampling.cuts import boxes, find_cuts, sampled
from workers.work.sampling.runs import KernelBudget, UnitRuns
from workers.work.sampling.sample import Sample, UnitCounts
from workers.work.sampling.strips import hints
from workers.work.sampling.units import WARP, Box, Place, Unit, grid_of

sides = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@given(sides=sides, lanes=st.integers(1, 300), by_groups=st.booleans())
def test_the_units_are_the_work_items_each_once(
    sides: list[int], lanes: int, by_groups: bool
) -> None:
    grid = grid_of(sides[:2], lanes, by_groups=by_groups)
    seen = Counter()
    for place in grid.places():
        unit = grid.unit(place)
        for lane in range(unit.first_lane, unit.first_lane + unit.num_lanes):
            seen[unit.group, lane] += 1
    groups = int(np.prod(sides[:2]))
    assert set(seen.values()) == {1}
    assert grid.lanes_of(list(grid.places())) == groups * lanes
    assert set(seen) == set(itertools.product(range(groups), range(lanes)))


@given(sides=sides, lanes=st.integers(1, 300), by_groups=st.booleans(), data=st.data())
def test_parts_cover_the_grid_and_know_their_work_items(
    sides: list[int], lanes: int, by_groups: bool, data: st.DataObject
) -> None:
    grid = grid_of(sides, lanes, by_groups=by_groups)
    some = [st.lists(st.integers(1, max(1, side - 1)), max_size=2) for side in grid.sides]
    cuts = tuple(tuple(data.draw(one)) for one in some)
    parts = boxes(grid, [cuts], most=30)
    assert sum(part.num_units for part in parts) == grid.num_units
    assert sum(grid.num_items(part) for part in parts) == int(np.prod(sides)) * lanes


@given(
    side=st.integers(2, 5000),
    share=st.floats(0, 1),
    hints=st.lists(st.integers(-3, 6000), max_size=4),
)
def test_a_guard_is_found_where_it_is(side: int, share: float, hints: list[int]) -> None:
    cut = max(1, int(share * side))
    grid = grid_of((side,), 32, by_groups=True)
    (found,) = find_cuts(grid, lambda place: place[0] < cut, [hints])
    assert found == ((cut,) if cut < side else ())


def test_a_right_hint_costs_two_units() -> None:
    asked: set[Place] = set()

    def key_of(place: Place) -> bool:
        asked.add(place)
        return place[0] < 40 and place[1] < 93

    grid = grid_of((128, 128), 256, by_groups=True)
    of_axes = hints(grid, (16, 16), (628, 1476))
    assert find_cuts(grid, key_of, of_axes) == ((40,), (93,), ())
    assert len(asked) == 3 + 2 + 1 + 2 + 2  # the ends, two hints of the first axis, the second axis


def test_two_guards_are_found_and_none_is_where_there_is_none() -> None:
    grid = grid_of((200, 300), 32, by_groups=True)
    found = find_cuts(grid, lambda place: place[0] < 77 and place[1] < 5)
    assert found == ((77,), (5,), ())
    assert find_cuts(grid, lambda _place: True) == ((), (), ())


def test_a_guard_is_found_behind_a_border_that_does_nothing() -> None:
    grid = grid_of((200, 300), 32, by_groups=True)
    found = find_cuts(grid, lambda place: 0 < place[0] < 77 and 0 < place[1] < 5)
    assert found == ((77,), (5,), ())


def test_a_search_that_ends_early_says_between_which_units_the_cut_is() -> None:
    asked: list[Place] = []

    def key_of(place: Place) -> bool | None:
        asked.append(place)
        return None if len(asked) > 6 else place[0] < 137

    ((low, high),) = find_cuts(grid_of((1024,), 32, by_groups=True), key_of)
    assert low <= 137 <= high < 1023


@given(parts=st.lists(st.integers(1, 60), min_size=1, max_size=4), most=st.integers(1, 80))
def test_no_place_is_drawn_twice_and_none_is_missing(parts: list[int], most: int) -> None:
    grid = grid_of((sum(parts),), 32, by_groups=True)
    whole = boxes(grid)
    places = sampled(whole, most, (1,))
    assert len(set(places)) == len(places) == min(most, grid.num_units)


@given(
    low=st.lists(st.integers(0, 1000), min_size=1, max_size=3),
    sides=st.lists(st.integers(1, 2**30), min_size=3, max_size=3),
    number=st.integers(1, 200),
)
def test_places_that_are_computed_together_are_those_of_the_sequence(
    low: list[int], sides: list[int], number: int
) -> None:
    box = Box(low=tuple(low), high=tuple(a + b for a, b in zip(low, sides, strict=False)))
    steps = iter((2**0.5, 3**0.5, 5**0.5))
    expected = list(box.low)
    order = 0
    for axis, (start, end) in enumerate(zip(box.low, box.high, strict=True)):
        if end - start > 1:
            jitter = (mix32(4 * (number - 1) + order + 1) / 2**32 - 0.5) / 64
            expected[axis] += int((0.5 + (number - 1) * next(steps) + jitter) % 1.0 * (end - start))
            order += 1
    assert next(itertools.islice(box.samples(), number - 1, None)) == tuple(expected)


def test_a_sample_does_not_agree_with_a_period_of_the_kernel() -> None:
    places = sampled(boxes(grid_of((1 << 20,), 32, by_groups=False)), 1024, (1,))
    for period in (2, 3, 4, 8, 16, 32):
        of_first = period * sum(place[0] % period == 0 for place in places) / len(places)
        assert of_first == pytest.approx(1, abs=0.25), period


COPY = CountedCopy(
    source="",
    blocks=(
        CountedBlock(tally={"int_ops": 1}, is_turn=False),
        CountedBlock(tally={"fp32_ops": 2, "global_stores": 1}, is_turn=True),
    ),
    sites=(),
    positions=(),
    is_grouped=False,
    by_groups=False,
)


def unit(turns: list[int]) -> UnitCounts:
    rows = np.array([[1, one] for one in turns], dtype=np.uint32)
    return UnitCounts(rows=rows, seen=np.zeros((1, 1, 40), np.uint32), met=met_at({}))


def met_at(counts: dict[int, int]) -> npt.NDArray[np.uint64]:
    return np.array(list(counts.items()), dtype=np.uint64).reshape(-1, 2)


def sample_of(*units: UnitCounts, weights: list[float], is_exact: bool = False) -> Sample:
    strata = np.zeros(len(units), dtype=np.int64)
    return Sample(
        counts=units,
        places=tuple((number,) for number in range(len(units))),
        weights=np.array(weights),
        strata=strata,
        typical=np.ones(len(units), np.bool_),
        is_exact=is_exact,
    )


def test_totals_divergence_and_active_work_items() -> None:
    diverging = unit([4] * 8 + [0] * 24)
    work = estimate(COPY, sample_of(diverging, weights=[10.0]), without_barriers=False)
    assert work.fp32_ops == 10 * 8 * 4 * 2
    assert work.loop_turns == 10 * 8 * 4
    assert work.active_items == 10 * 8
    # The warp takes 4 turns of weight 4 beside its one of weight 2; 8 of 32 lanes take part.
    assert work.lane_efficiency == pytest.approx((32 * 2 + 8 * 16) / (32 * (2 + 16)))


def test_equal_units_have_no_error_and_different_ones_have() -> None:
    equal = sample_of(*[unit([3] * 32)] * 4, weights=[5.0] * 4)
    assert estimate(COPY, equal, without_barriers=False).relative_error == 0
    two = sample_of(unit([3] * 32), unit([3] * 32), weights=[5.0, 5.0])
    assert 0.2 < estimate(COPY, two, without_barriers=False).relative_error < 0.5
    apart = sample_of(unit([3] * 32), unit([9] * 32), weights=[5.0, 5.0])
    assert 0.2 < estimate(COPY, apart, without_barriers=False).relative_error < 0.5
    exact = sample_of(unit([3] * 32), unit([9] * 32), weights=[1.0, 1.0], is_exact=True)
    assert estimate(COPY, exact, without_barriers=False).relative_error == 0


def test_accesses_beyond_those_that_are_looked_at_are_taken_for_the_same() -> None:
    """200 loads and then a store: sectors of 95 loads are noted, requests of all are known."""
    uses = ["load"] * 200 + ["store"]
    sites = tuple(CountedSite(block=1, use=use) for use in uses)
    copy = dataclasses.replace(COPY, sites=sites)
    seen = np.zeros((1, copy.num_seen, NUM_TURNS), np.uint32)
    seen[:, 1:, :3] = 8  # eight sectors in each of three turns
    rows = np.array([[1, 3]] * 32, dtype=np.uint32)
    one = sample_of(UnitCounts(rows=rows, seen=seen, met=met_at({})), weights=[10.0])
    work = estimate(copy, one, without_barriers=False)
    assert work.global_load_requests == 10 * 3 * 200
    assert work.global_load_sectors == pytest.approx(10 * 3 * 200 * 8)
    assert work.global_store_requests == 10 * 3
    assert work.global_store_sectors == pytest.approx(10 * 3 * 8)
    assert work.global_atomic_requests == 0


def test_the_peak_of_atomics_is_of_a_shared_address() -> None:
    """One counter for all, met by every unit; counters of a unit's own; and two units that meet by chance."""
    blank = unit([1])
    every = [dataclasses.replace(blank, met=met_at({100: 32, 200 + n: 40})) for n in range(5)]
    every += [dataclasses.replace(blank, met=met_at({100: 32, 900: 1})) for _ in range(2)]
    sample = sample_of(*every, weights=[10.0] * 7)
    assert estimate(COPY, sample, without_barriers=False).global_atomic_peak == 7 * 32 * 10
    own = sample_of(*every[:1], weights=[10.0])
    assert estimate(COPY, own, without_barriers=False).global_atomic_peak == 40
    chance = [dataclasses.replace(one, met=one.met[1:]) for one in every]
    scattered = sample_of(*chance, weights=[10.0] * 7)
    assert estimate(COPY, scattered, without_barriers=False).global_atomic_peak == 40
    assert (
        estimate(COPY, sample_of(blank, weights=[1.0]), without_barriers=False).global_atomic_peak
        == 0
    )


def test_touched_bytes_of_sectors_that_stand_there_often() -> None:
    def entry(group: int, sector: int, bits: int) -> tuple[int, int]:
        return group << 48 | 3 << 40 | sector, bits

    entries = [entry(1, 7, 0xF), entry(1, 7, 0xF0), entry(1, 7, 0xF), entry(2, 7, 1), (0, 0)]
    found = touched_bytes(np.array(entries, dtype=np.uint64), 0, 3)
    assert found.tolist() == [8, 1, 0]
    assert touched_bytes(np.zeros((0, 2), np.uint64), 0, 2).tolist() == [0, 0]


@pytest.mark.parametrize("left_out", [1, 3, 7])
def test_a_sample_of_sectors_by_hash_stands_for_all(left_out: int) -> None:
    sectors = [(1 << 48 | 17 * n, 0xFFFFFFFF) for n in range(20_000)]
    (found,) = touched_bytes(np.array(sectors, dtype=np.uint64), left_out, 1)
    assert found == pytest.approx(32 * 20_000, rel=0.06)


class _Heavy:
    """Stands for a loaded kernel of which one unit does nothing, and any other all that a launch may cost."""

    def __init__(self, idle_group: int) -> None:
        self._idle_group = idle_group

    def run(
        self, config: object, units: Sequence[Unit], *, most_turns: int, is_watched: bool = False
    ) -> RawCounts:
        del config, most_turns
        assert not is_watched, "a launch that accesses no buffer"
        turns = [
            0 if one.group == self._idle_group else 2**18 for one in units for _ in range(WARP)
        ]
        rows = np.array([[1, one] for one in turns], dtype=np.uint32)
        seen = np.zeros((len(units), 1, NUM_TURNS), np.uint32)
        met = np.zeros((len(units), 0, 2), np.uint64)
        ranges = np.array([[0, 4 * (1 + max(one.group for one in units))]], np.int64)
        return RawCounts(
            rows=rows, seen=seen, met=met, turns=0, flags=0, touched=np.zeros(0), ranges=ranges
        )


def test_units_that_ran_in_the_search_are_part_of_the_sample() -> None:
    """The search uses up what the launch may cost: the sample is not only its idle first unit."""
    grid = grid_of((1024,), WARP, by_groups=False)
    (first,) = sampled(boxes(grid), 1, (1,))
    kernel = cast("VirtualKernel", _Heavy(first[0]))
    config = LaunchConfig(
        sample_id="s",
        global_size=(1024 * WARP,),
        local_size=(WARP,),
        args=(),
        regime=None,
        strategies=(Strategy.SIMPLE,),
        seed=1,
    )
    found = VirtualLaunch(UnitRuns(kernel, COPY, config, grid, KernelBudget())).sample()
    assert len(found.counts) > 1
    assert max(int(one.rows.max()) for one in found.counts) == 2**18
