"""Which units show how far a launch reaches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from workers.work.sampling.reach import Accesses, active_box, furthest, is_uniform
from workers.work.sampling.units import Box, Place, grid_of

GRID = grid_of((50, 60), 32, by_groups=True)
NOTHING: Accesses = frozenset()
SOME: Accesses = frozenset({7})
Ran = Callable[[Place], Accesses]


def guarded(x: int, y: int) -> Ran:
    return lambda at: SOME if at[0] < x and at[1] < y else NOTHING


def test_the_last_unit_of_the_box_and_its_neighbours_reach_furthest() -> None:
    ran = guarded(20, 30)
    found = active_box(GRID, ((20,), (30,), ()), ran)
    assert found == (Box(low=(0, 0, 0), high=(20, 30, 1)), NOTHING)
    assert furthest(GRID, *found, ran) == [(19, 29, 0), (18, 29, 0), (19, 28, 0)]
    every = [(place, ran(place)) for place in GRID.places()]
    assert is_uniform(GRID, *found, every)


def test_a_search_that_was_given_up_shows_nothing() -> None:
    assert active_box(GRID, ((20,), (3, 40), ()), guarded(20, 30)) is None
    assert active_box(GRID, ((20,), (30,), ()), lambda _place: None) is None


def test_only_the_last_units_may_be_active() -> None:
    found = active_box(GRID, ((48,), (), ()), lambda at: SOME if at[0] >= 48 else NOTHING)
    assert found == (Box(low=(48, 0, 0), high=(50, 60, 1)), NOTHING)


def test_the_last_unit_of_an_axis_that_a_guard_cuts_is_in_the_box() -> None:
    found = active_box(GRID, ((49,), (30,), ()), guarded(50, 30))
    assert found is not None
    assert found[0].high == (50, 30, 1)


@pytest.mark.parametrize(
    "ran",
    [
        lambda at: SOME if at[0] + at[1] < 20 else NOTHING,  # the corner of the cuts does nothing
        lambda at: SOME if at[0] <= at[1] and at[0] < 20 else NOTHING,
    ],
    ids=["below a diagonal", "above a diagonal"],
)
def test_guards_that_cut_out_no_box(ran: Ran) -> None:
    found = active_box(GRID, ((19,), (19,), ()), ran)
    assert found is not None
    every = [(place, ran(place)) for place in GRID.places()]
    assert not furthest(GRID, *found, ran) or not is_uniform(GRID, *found, every)


def test_a_narrow_part_shows_nothing_about_others() -> None:
    ran = guarded(1, 1)
    found = active_box(GRID, ((1,), (1,), ()), ran)
    assert found is not None
    assert furthest(GRID, *found, ran) == []


def test_different_accesses_inside_the_box_are_not_uniform() -> None:
    box = Box(low=(0, 0, 0), high=(50, 60, 1))
    others: Accesses = frozenset({8})
    assert not is_uniform(GRID, box, NOTHING, [((5, 5, 0), SOME), ((9, 9, 0), others)])
    assert is_uniform(GRID, box, NOTHING, [((5, 5, 0), SOME), ((0, 9, 0), others)])  # a border


def test_of_a_tall_group_the_last_active_warp_reaches_furthest() -> None:
    grid = grid_of((50, 60), 256, by_groups=False)
    ran = lambda at: SOME if at[0] < 20 and (at[1], at[2]) <= (29, 3) else NOTHING  # noqa: E731
    found = active_box(grid, ((20,), (30,), ()), ran)
    assert found is not None
    assert furthest(grid, *found, ran)[0] == (19, 29, 3)
