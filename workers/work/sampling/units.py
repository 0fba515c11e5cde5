"""The units of a launch, and fair samples of them.

A *unit* is a warp: 32 neighbouring work-items of a group. If work-items meet at barriers or ask for
their position in the group, a unit is a whole work-group instead. Samples come from a
low-discrepancy sequence over the dimensions of the NDRange (Richtmyer's: steps are square roots).
Small random shifts keep the sequence from matching a period of the kernel. Any first n places of
the sequence are a fair sample. ``cuts.py`` divides a launch into parts whose work-items do
different things.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from workers.plan.mixing import mix32_each

WARP = 32
_STEPS = (2**0.5, 3**0.5, 5**0.5, 7**0.5)
"""Steps of the sequence. In a triangle of 32 x 8 groups with 32 warps each, samples of 60 to 110
units had half the error that they had with Roberts' sequence."""
_JITTER = 1 / 64
_FIRST_AT_ONCE, _MOST_AT_ONCE = 8, 1024
"""Places of a sample that are computed together; twice as many each time."""
_FEWEST_OF_WIDE = 3
"""Units along an axis by which a part is more than a border. The unit before a cut is a part of its
own, so a guard has to leave four units active."""
_SHORT_SIDE = 8
"""Maximum units of a short axis."""
Place = tuple[int, ...]
"""A unit's coordinates along ``Grid.sides``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit: ``num_lanes`` work-items from ``first_lane`` on, in the group number ``group``."""

    group: int
    first_lane: int
    num_lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All units of a launch.

    ``sides``: work-groups in each dimension, then warps of a group; in 1-D all warps are one row.
    """

    sides: Place
    num_lanes: int
    by_groups: bool

    @property
    def num_units(self) -> int:
        """The number of units."""
        return math.prod(self.sides)

    @property
    def warps_a_group(self) -> int:
        """Units of a work-group; 1 if work-groups are the units."""
        return 1 if self.by_groups else -(-self.num_lanes // WARP)

    @property
    def num_groups(self) -> int:
        """The number of work-groups in the launch."""
        return self.num_units // self.warps_a_group

    def places_of_group(self, group: int) -> list[Place]:
        """Return the units of a work-group, by its linear number.

        >>> grid_of((10, 5), 64, by_groups=False).places_of_group(37)
        [(7, 3, 0), (7, 3, 1)]
        """
        first = group * self.warps_a_group
        return [self.place(first + warp) for warp in range(self.warps_a_group)]

    def unit(self, place: Place) -> Unit:
        """Return the unit at a place."""
        if len(self.sides) == 1:
            group, warp = divmod(place[0], self.warps_a_group)
        else:
            *groups, warp = place
            group, scale = 0, 1
            for coordinate, side in zip(groups, self.sides, strict=False):
                group += coordinate * scale
                scale *= side
        if self.by_groups:
            return Unit(group=group, first_lane=0, num_lanes=self.num_lanes)
        first = warp * WARP
        return Unit(group=group, first_lane=first, num_lanes=min(WARP, self.num_lanes - first))

    def lanes_of(self, places: Sequence[Place]) -> int:
        """Return the number of work-items in the units at some places."""
        if self.by_groups or self.warps_a_group == 1:
            return self.num_lanes * len(places)
        return sum(self.unit(place).num_lanes for place in places)

    def num_items(self, box: Box) -> int:
        """Return the work-items of a part; the last warp of a group may have fewer than 32.

        >>> grid = grid_of((100,), 40, by_groups=False)
        >>> grid.num_items(Box(low=(1,), high=(4,)))
        48
        """
        if self.by_groups:
            return box.num_units * self.num_lanes
        if len(self.sides) == 1:
            return self._items_before(box.high[0]) - self._items_before(box.low[0])
        others = box.num_units // (box.high[-1] - box.low[-1])
        return others * (self._items_before(box.high[-1]) - self._items_before(box.low[-1]))

    def _items_before(self, warp: int) -> int:
        """Return the number of work-items before a warp, counted group by group."""
        groups, inside = divmod(warp, -(-self.num_lanes // WARP))
        return groups * self.num_lanes + inside * WARP

    def place(self, number: int) -> Place:
        """Return the unit with this number, counted group by group and warp by warp.

        >>> grid_of((10, 5), 64, by_groups=False).place(2 * 37 + 1)
        (7, 3, 1)
        """
        if len(self.sides) == 1:
            return (number,)
        group, warp = divmod(number, self.sides[-1])
        coordinates = []
        for side in self.sides[:-1]:
            group, coordinate = divmod(group, side)
            coordinates.append(coordinate)
        return (*coordinates, warp)

    def places(self) -> Iterator[Place]:
        """Yield all places."""
        return itertools.product(*(range(side) for side in self.sides))


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of units in a grid: coordinates from ``low`` (included) to ``high`` (excluded)."""

    low: Place
    high: Place

    @property
    def num_units(self) -> int:
        """Number of units in the box."""
        return math.prod(high - low for low, high in zip(self.low, self.high, strict=True))

    def holds(self, place: Place) -> bool:
        """Whether the unit at ``place`` is in the box."""
        return all(
            low <= at < high for low, at, high in zip(self.low, place, self.high, strict=True)
        )

    def is_wide(self, grid: Grid) -> bool:
        """Whether the box has several units along each long axis, or spans it.

        A sample has units everywhere on a short axis, such as the warps of a group.

        >>> grid = grid_of((100, 2), 32, by_groups=True)
        >>> [Box(low=(0, 0, 0), high=(high, 1, 1)).is_wide(grid) for high in (2, 3)]
        [False, True]
        """
        return all(
            side <= _SHORT_SIDE or high - low >= _FEWEST_OF_WIDE
            for low, high, side in zip(self.low, self.high, grid.sides, strict=True)
        )

    def samples(self) -> Iterator[Place]:
        """Yield places of the box without end; any first n are evenly spread, and some repeat."""
        sides = [high - low for low, high in zip(self.low, self.high, strict=True)]
        moving = [axis for axis, side in enumerate(sides) if side > 1]
        done, at_once = 0, _FIRST_AT_ONCE
        while True:
            numbers = np.arange(done, done + at_once)
            places = np.tile(np.array(self.low, dtype=np.int64), (at_once, 1))
            for order, axis in enumerate(moving):
                shares = (0.5 + numbers * _STEPS[order] + _jitter(numbers, order)) % 1.0
                places[:, axis] += (shares * sides[axis]).astype(np.int64)
            yield from map(tuple, places.tolist())
            done, at_once = done + at_once, min(2 * at_once, _MOST_AT_ONCE)


def grid_of(num_groups: Sequence[int], num_lanes: int, *, by_groups: bool) -> Grid:
    """Return the units of a launch.

    >>> grid = grid_of((1000, 70), 256, by_groups=False)
    >>> grid.num_units, grid.unit((3, 1, 7))
    (560000, Unit(group=1003, first_lane=224, num_lanes=32))
    """
    warps = 1 if by_groups else -(-num_lanes // WARP)
    if len(num_groups) == 1:
        return Grid(sides=(num_groups[0] * warps,), num_lanes=num_lanes, by_groups=by_groups)
    return Grid(sides=(*num_groups, warps), num_lanes=num_lanes, by_groups=by_groups)


def _jitter(numbers: npt.NDArray[np.int64], axis: int) -> npt.NDArray[np.float64]:
    """Return small pseudo-random shifts, which hide the periods of the coordinates' last bits."""
    jitter: npt.NDArray[np.float64] = (mix32_each(numbers * len(_STEPS) + axis + 1) / 2**32) - 0.5
    return jitter * _JITTER
