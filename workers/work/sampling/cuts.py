"""Divide a launch into parts whose work-items do different things, and choose samples of each.

A guard such as ``if (x < width && y < height)`` cuts the NDRange along its axes. The search finds
one cut for each axis by bisection, along the line through the first unit (a unit is a warp or a
work-group, ``units.py``). Owns this search and the choice of samples from the parts; the caller
runs the units.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

from workers.work.sampling.units import Box, Grid, Place

_FEWEST_LAYERS = 3
KeyOf = Callable[[Place], Hashable | None]
"""Returns what the unit at a place did, as a value to compare; None if no more units may run."""


def find_cuts(grid: Grid, key_of: KeyOf) -> tuple[int, ...]:
    """Return, for each axis, where the units begin that act like the last unit; 0 if all do.

    >>> from workers.work.sampling.units import grid_of
    >>> find_cuts(grid_of((1000,), 32, by_groups=True), lambda place: place[0] < 137)
    (137,)
    """
    return tuple(_cut(grid, axis, key_of) for axis in range(len(grid.sides)))


def _cut(grid: Grid, axis: int, key_of: KeyOf) -> int:
    def at(coordinate: int) -> Place:
        return tuple(coordinate if one == axis else 0 for one in range(len(grid.sides)))

    low, high = 0, grid.sides[axis] - 1
    if high == 0:
        return 0
    first, last = key_of(at(low)), key_of(at(high))
    if first is None or last is None or first == last:
        return 0
    middle = (low + high) // 2
    # Often only one unit, the first or the last, differs from all others.
    key = key_of(at(middle))
    if key == last and key_of(at(1)) == last:
        return 1
    if key == first and key_of(at(high - 1)) == first:
        return high
    while key is not None:
        low, high = (low, middle) if key == last else (middle, high)
        if high - low <= 1:
            return high
        middle = (low + high) // 2
        key = key_of(at(middle))
    return middle


def find_layers(grid: Grid, cuts: tuple[int, ...], key_of: KeyOf) -> tuple[tuple[int, ...], ...]:
    """Return, for each axis, where a different first layer ends and a different last layer begins.

    The units of such a layer do something else than those in the middle, as in a stencil. The
    search covers the part of the grid before the cuts.

    >>> from workers.work.sampling.units import grid_of
    >>> find_layers(grid_of((100,), 32, by_groups=True), (0,), lambda place: place[0] > 0)
    ((1,),)
    """
    sides = [cut or side for cut, side in zip(cuts, grid.sides, strict=True)]
    middle = tuple(side // 2 for side in sides)
    inner = key_of(middle)
    layers: list[tuple[int, ...]] = []
    for axis, side in enumerate(sides):
        found: list[int] = []
        for end, begins in ((0, 1), (side - 1, side - 1)):
            place = (*middle[:axis], end, *middle[axis + 1 :])
            key = key_of(place) if side > _FEWEST_LAYERS else inner
            if None not in (key, inner) and key != inner:
                found.append(begins)
        layers.append(tuple(found))
    return tuple(layers)


def boxes(
    grid: Grid, cuts: tuple[int, ...], layers: Sequence[Sequence[int]] = (), *, most: int = 1
) -> tuple[Box, ...]:
    """Return the parts into which cuts and layers divide a grid.

    The unit before each cut is a part of its own, because a guard may end inside a unit. These
    parts and the layers are left out if there would be more than ``most`` parts.
    """
    before = [(cut - 1,) for cut in cuts]
    of_cuts = [(cut,) for cut in cuts]
    parts: tuple[Box, ...] = ()
    for marks in ((of_cuts, before, layers), (of_cuts, layers), (of_cuts, before), (of_cuts,)):
        spans = [
            _spans(side, {mark for one in marks if one for mark in one[axis]})
            for axis, side in enumerate(grid.sides)
        ]
        parts = tuple(
            Box(low=tuple(low for low, _ in one), high=tuple(high for _, high in one))
            for one in itertools.product(*spans)
        )
        if len(parts) <= most:
            break
    return parts


def _spans(side: int, marks: set[int]) -> list[tuple[int, int]]:
    bounds = [0, *sorted(mark for mark in marks if 0 < mark < side), side]
    return list(itertools.pairwise(bounds))


def sampled(parts: Sequence[Box], most: int, shares: Sequence[float]) -> list[Place]:
    """Return up to ``most`` places. Each part has its share of the first n places, for any n.

    >>> from workers.work.sampling.units import grid_of
    >>> parts = boxes(grid_of((100,), 32, by_groups=True), (3,))
    >>> [place[0] < 3 for place in sampled(parts, 5, (1, 4))]
    [False, False, True, False, False]
    """
    streams = [_distinct(part) for part in parts]
    sizes = [part.num_units if share > 0 else 0 for part, share in zip(parts, shares, strict=True)]
    if len(parts) == 1:
        return list(itertools.islice(streams[0], min(most, sizes[0])))
    taken = [0] * len(parts)
    places: list[Place] = []
    while len(places) < most:
        left = [n for n, size in enumerate(sizes) if taken[n] < size]
        if not left:
            break
        number = min(left, key=lambda n: ((taken[n] + 0.5) / shares[n], -shares[n]))
        places.append(next(streams[number]))
        taken[number] += 1
    return places


def _distinct(part: Box) -> Iterator[Place]:
    """Yield every place of a part once; the first places are evenly spread."""
    known: set[Place] = set()
    most_tries = 8 * part.num_units
    for tries, place in enumerate(part.samples()):
        if place not in known:
            known.add(place)
            yield place
        if tries > most_tries:
            break
    for place in itertools.product(
        *(range(low, high) for low, high in zip(part.low, part.high, strict=True))
    ):
        if place not in known:
            yield place
