"""The search for rows, planes and diagonals, and the error of what a sample has missed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.workers.work.test_work_sampling import COPY, unit
from workers.work.estimate import estimate, misses_accesses
from workers.work.sampling.sample import Sample, UnitCounts
from workers.work.sampling.strips import Diagonal, find_diagonal, find_strips, unit_at
from workers.work.sampling.units import Box, Place, grid_of

IDLE = unit([0] * 32)


def _nothing(places: Sequence[Place]) -> None:
    """Run no units ahead."""


@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    local=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    by_groups=st.booleans(),
    data=st.data(),
)
def test_a_work_item_is_in_the_unit_at_its_ids(
    counts: list[int], local: list[int], by_groups: bool, data: st.DataObject
) -> None:
    local = local[: len(counts)]
    grid = grid_of(counts, int(np.prod(local)), by_groups=by_groups)
    ids = [data.draw(st.integers(0, n * m - 1)) for n, m in zip(counts, local, strict=True)]
    found = grid.unit(unit_at(grid, local, ids))
    group = lane = 0
    scale = lanes = 1
    for at, n, m in zip(ids, counts, local, strict=True):
        group, lane = group + at // m * scale, lane + at % m * lanes
        scale, lanes = scale * n, lanes * m
    assert found.group == group
    assert found.first_lane <= lane < found.first_lane + found.num_lanes


@pytest.mark.parametrize("scalar", [400, 401, 399, 800, 801])
def test_both_ends_of_a_row_are_found(scalar: int) -> None:
    """The row of id 400, by groups of 16: a scalar is this id, next to it, or twice as large."""
    grid = grid_of((40, 60), 256, by_groups=True)
    marks = find_strips(grid, (16, 16), [scalar], lambda place: place[1] == 25, _nothing)
    assert marks == ((), (25, 26), ())


def test_a_plane_begins_and_ends_at_warps() -> None:
    """Plane 44 of a launch in groups of 16 x 8 x 8: the fifth plane of a group, its warps 16 to 19."""
    grid = grid_of((3, 8, 11), 1024, by_groups=False)
    marks = find_strips(
        grid, (16, 8, 8), [88], lambda place: place[2] == 5 and 16 <= place[3] < 20, _nothing
    )
    assert marks == ((), (), (5, 6), (16, 20))


def test_the_search_ends_when_no_more_units_may_run() -> None:
    assert find_strips(
        grid_of((100,), 32, by_groups=True), (32,), [99], lambda _: None, _nothing
    ) == ((),)


@given(
    first=st.integers(1, 9),
    second=st.integers(1, 9),
    low=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    sides=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_the_diagonal_knows_its_units(
    first: int, second: int, low: tuple[int, int], sides: tuple[int, int]
) -> None:
    high = (low[0] + sides[0], low[1] + sides[1])
    diagonal, box = Diagonal(local_size=(first, second)), Box(low=low, high=high)

    def has_equal_ids(place: Place) -> bool:
        ids = [range(at * n, at * n + n) for at, n in zip(place, (first, second), strict=True)]
        return bool(set(ids[0]) & set(ids[1]))

    places = list(itertools.product(range(low[0], high[0]), range(low[1], high[1])))
    truth = {place for place in places if has_equal_ids(place)}
    assert {place for place in places if diagonal.holds(place)} == truth
    assert diagonal.share(box) == pytest.approx(len(truth) / len(places))
    some = diagonal.places(box, 4)
    assert set(some) <= truth
    assert bool(some) == bool(truth)
    assert len(some) <= 4


def test_no_diagonal_is_found_where_units_are_equal() -> None:
    assert find_diagonal(grid_of((90, 90), 64, by_groups=True), (8, 8), lambda _: 1) is None
    assert find_diagonal(grid_of((90,), 64, by_groups=True), (64,), lambda place: place) is None


def sample(*units: UnitCounts, weight: float, others: tuple[UnitCounts, ...] = ()) -> Sample:
    return Sample(
        counts=units,
        places=tuple((n,) for n in range(len(units))),
        weights=np.full(len(units), weight),
        strata=np.zeros(len(units), np.int64),
        typical=np.ones(len(units), np.bool_),
        is_exact=False,
        others=others,
    )


def error_of(one: Sample) -> float:
    return estimate(COPY, one, without_barriers=False).relative_error


def test_code_that_no_sampled_work_item_executed_is_an_error() -> None:
    """One of four units might execute the block of three operations: 3 / 4 of what was counted."""
    with_stores = dataclasses.replace(COPY.blocks[0], tally={"int_ops": 1, "global_stores": 3})
    copy = dataclasses.replace(COPY, blocks=(with_stores, COPY.blocks[1]))
    work = estimate(copy, sample(*[IDLE] * 4, weight=10.0), without_barriers=False)
    assert work.relative_error == pytest.approx(3 / 4 / 4)


def test_a_store_in_such_code_makes_the_error_1_if_none_was_counted() -> None:
    assert error_of(sample(*[IDLE] * 4, weight=10.0)) == 1
    assert error_of(sample(*[IDLE] * 4, weight=1.0)) == 0  # all units of the launch ran


def test_units_outside_the_sample_show_how_often_such_code_runs() -> None:
    busy = unit([8] * 32)
    assert error_of(sample(*[IDLE] * 4, weight=10.0, others=(busy,))) == pytest.approx(8 * 3 / 4)
    busiest = unit([800] * 32)
    assert error_of(sample(*[IDLE] * 4, weight=10.0, others=(busiest,))) == 10


def test_code_that_only_a_narrow_part_executed_is_an_error() -> None:
    """Unit 0 alone executed the second block, in a part of its own; it may run elsewhere, too."""
    busy = unit([1] * 32)
    both = sample(busy, *[IDLE] * 4, weight=10.0)
    strata = np.array([0, 1, 1, 1, 1])
    weights = np.array([1.0, 10.0, 10.0, 10.0, 10.0])
    narrow = dataclasses.replace(both, strata=strata, weights=weights, typical=strata == 1)
    wide = dataclasses.replace(narrow, typical=np.ones(5, np.bool_))
    assert error_of(wide) == 0
    assert misses_accesses(COPY, narrow, [IDLE])
    assert not misses_accesses(COPY, narrow, [IDLE, busy])  # if the last unit runs it, too
    assert not misses_accesses(COPY, wide, [IDLE])
    # Of accesses: 320 assumed work-items (one unit in four of 40) to the 32 that were counted.
    assert error_of(narrow) == pytest.approx(40 / 4 * 32 / 32)


@pytest.mark.parametrize(("high", "is_wide"), [((2, 30), False), ((3, 30), True), ((40, 2), False)])
def test_a_wide_part_has_several_units_along_each_long_axis(high: Place, is_wide: bool) -> None:
    grid = grid_of((40, 30), 64, by_groups=False)
    assert Box(low=(0, 0, 0), high=(*high, 1)).is_wide(grid) is is_wide
