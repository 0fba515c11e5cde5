"""Find rows, planes and diagonals of a launch whose work-items alone do something.

A guard such as ``z == n / 2`` selects one plane, which neither the search for cuts (``cuts.py``)
nor a sample hits. So this search tries the first and the last id of each dimension, and the ids
that equal an integer scalar argument, or lie next to it or to its half. It also tries some places
on the diagonals. If units on the main diagonal differ from their neighbours, they are counted
separately.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from workers.work.sampling.cuts import KeyOf
from workers.work.sampling.units import WARP, Box, Grid, Place

_MOST_HINTS = 4
"""Maximum likely cuts of an axis. A wrong one costs one or two units, as a step of a bisection."""
_MOST_STRIPS = 24
"""Maximum ids that are tried. In a launch with three dimensions and three scalars, these are the
values of the scalars and their halves, and a few neighbours."""


def unit_at(grid: Grid, local_size: Sequence[int], ids: Sequence[int]) -> Place:
    """Return the place of the unit that contains the work-item with these global ids.

    >>> from workers.work.sampling.units import grid_of
    >>> unit_at(grid_of((4, 4), 64, by_groups=False), (16, 4), (20, 7))
    (1, 1, 1)
    """
    groups = [at // side for at, side in zip(ids, local_size, strict=True)]
    lane, scale = 0, 1
    for at, side in zip(ids, local_size, strict=True):
        lane += at % side * scale
        scale *= side
    warp = 0 if grid.by_groups else lane // WARP
    if len(grid.sides) == 1:
        return (groups[0] * grid.warps_a_group + warp,)
    return (*groups, warp)


def hints(
    grid: Grid, local_size: Sequence[int], scalars: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return, for each axis, where the units end that have ids below a scalar: likely cuts.

    >>> from workers.work.sampling.units import grid_of
    >>> hints(grid_of((128, 128), 256, by_groups=True), (16, 16), (628, 1476))
    ((40, 93), (40, 93), ())
    """
    items = _items(grid, local_size)
    found: list[dict[int, None]] = [{} for _ in grid.sides]
    for dimension, side in enumerate(items):
        for value in scalars:
            if 0 < value < side:
                ids = [value - 1 if one == dimension else 0 for one in range(len(items))]
                found[dimension][unit_at(grid, local_size, ids)[dimension] + 1] = None
    return tuple(tuple(one)[:_MOST_HINTS] for one in found)


def find_strips(
    grid: Grid,
    local_size: Sequence[int],
    scalars: Sequence[int],
    key_of: KeyOf,
    run_ahead: Callable[[Sequence[Place]], None],
) -> tuple[tuple[int, ...], ...]:
    """Return, for each axis, where rows or planes begin and end that differ from their neighbours.

    Args:
        grid: the units of the launch.
        local_size: the launch's local size.
        scalars: values of the integer scalar arguments.
        key_of: what the unit at a place did.
        run_ahead: runs units together for later calls of ``key_of``, which is faster.

    >>> from workers.work.sampling.units import grid_of
    >>> grid = grid_of((100,), 32, by_groups=True)
    >>> find_strips(grid, (32,), (1000,), lambda at: at[0] == 31, lambda places: None)
    ((31, 32),)
    """
    items = _items(grid, local_size)
    usual = unit_at(grid, local_size, [side * (3 + 2 * n) // 11 for n, side in enumerate(items)])
    spans: dict[Place, set[tuple[int, int, int]]] = {}
    for dimension, value in _tried(items, scalars):
        ids = [side // 2 for side in items]
        ids[dimension] = value
        place = unit_at(grid, local_size, ids)
        spans.setdefault(place, set()).update(_spans(grid, local_size, place, dimension, value))
    run_ahead([usual, *spans])
    unusual = [place for place in spans if place == usual or key_of(place) != key_of(usual)]
    run_ahead([at for place in unusual for at in _beside(grid, place, spans[place]).values()])
    marks: list[set[int]] = [set() for _ in grid.sides]
    for place in unusual:
        if key_of(place) is None:
            break
        for span in spans[place]:
            marks[span[0]] |= _marks(grid, place, span, key_of)
    return tuple(tuple(sorted(found)) for found in marks)


def _beside(
    grid: Grid, place: Place, spans: Collection[tuple[int, int, int]]
) -> dict[tuple[int, int], Place]:
    """Return the units before and after spans, by axis and by where the span begins or ends.

    They are as far from the neighbouring span's beginning as the place is from its span's.
    """
    return {
        (axis, mark): (*place[:axis], at, *place[axis + 1 :])
        for axis, first, last in spans
        for at, mark in (
            (place[axis] - (last + 1 - first), first),
            (place[axis] + (last + 1 - first), last + 1),
        )
        if 0 <= at < grid.sides[axis]
    }


def _marks(grid: Grid, place: Place, span: tuple[int, int, int], key_of: KeyOf) -> set[int]:
    """Return where a span of units on an axis begins and ends, if its neighbours differ from it.

    A neighbour that may not run any more is taken to differ if the other one does.
    """
    key = key_of(place)
    beside = {mark: key_of(at) for (_, mark), at in _beside(grid, place, (span,)).items()}
    if all(other in (None, key) for other in beside.values()):
        return set()
    return {mark for mark, other in beside.items() if other != key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagonal:
    """The units of a launch that contain work-items with equal ids in the first two dimensions.

    ``local_size``: the launch's local size in these dimensions.
    """

    local_size: tuple[int, int]

    def holds(self, place: Place) -> bool:
        """Whether the unit at a place is on the diagonal."""
        (low, high), (other_low, other_high) = (
            (at * side, (at + 1) * side) for at, side in zip(place, self.local_size, strict=False)
        )
        return low < other_high and other_low < high

    def share(self, box: Box) -> float:
        """Return which share of the units in a box is on the diagonal."""
        sides = [high - low for low, high in zip(box.low, box.high, strict=True)]
        return sum(1 for _ in self._pairs(box)) / (sides[0] * sides[1])

    def places(self, box: Box, most: int) -> list[Place]:
        """Return up to ``most`` places of a box that are on the diagonal, evenly spread."""
        pairs = list(self._pairs(box))
        some = pairs[:: max(1, -(-len(pairs) // most))]
        middle = [(low + high) // 2 for low, high in zip(box.low, box.high, strict=True)]
        return [(*pair, *middle[2:]) for pair in some]

    def _pairs(self, box: Box) -> Iterator[tuple[int, int]]:
        first, second = self.local_size
        low, high = box.low[0] * first // second, -(-box.high[0] * first // second)
        for other in range(max(box.low[1], low), min(box.high[1], high)):
            low = max(box.low[0], other * second // first)
            high = min(box.high[0], -(-(other + 1) * second // first))
            yield from ((at, other) for at in range(low, high))


def find_diagonal(grid: Grid, local_size: Sequence[int], key_of: KeyOf) -> Diagonal | None:
    """Return the main diagonal if its units differ from their neighbours; run an antidiagonal unit.

    >>> from workers.work.sampling.units import grid_of
    >>> grid = grid_of((90, 90), 64, by_groups=True)
    >>> find_diagonal(grid, (8, 8), lambda place: place[0] == place[1])
    Diagonal(local_size=(8, 8))
    """
    items = _items(grid, local_size)
    if len(items) == 1:
        return None
    side = min(items[:2])
    thirds = (side // 3, 2 * side // 3)
    inner = [one // 2 for one in items[2:]]
    key_of(unit_at(grid, local_size, [thirds[0], side - 1 - thirds[0], *inner]))
    for at in thirds:
        place = unit_at(grid, local_size, [at, at, *inner])
        for beside in (place[0] - 1, place[0] + 1):
            if not 0 <= beside < grid.sides[0]:
                return None
            key, other = key_of(place), key_of((beside, *place[1:]))
            if key is None or other is None or key == other:
                return None
    return Diagonal(local_size=(local_size[0], local_size[1]))


def _items(grid: Grid, local_size: Sequence[int]) -> list[int]:
    """Return the global size."""
    if len(grid.sides) == 1:
        return [grid.num_groups * local_size[0]]
    return [groups * side for groups, side in zip(grid.sides, local_size, strict=False)]


def _tried(items: Sequence[int], scalars: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield dimensions and ids, each pair once and the likeliest ids first.

    The first and the last id of a dimension are among them, because in a tall work-group only one
    warp has them.
    """
    near: tuple[Callable[[int], tuple[int, ...]], ...] = (
        lambda one: (one,),
        lambda one: (one // 2,),
        lambda one: (one - 1, one + 1, one // 2 - 1),
    )
    ends = [(axis, end) for axis, side in enumerate(items) for end in (0, side - 1)]
    tried: dict[tuple[int, int], None] = {}
    for of_scalar in near:
        for value in itertools.chain.from_iterable(map(of_scalar, scalars)):
            for dimension, side in enumerate(items):
                if 0 <= value < side:
                    tried[dimension, value] = None
        if len(items) > 1:
            tried.update(dict.fromkeys(ends))
    yield from list(tried)[:_MOST_STRIPS]


def _spans(
    grid: Grid, local_size: Sequence[int], place: Place, dimension: int, value: int
) -> Iterator[tuple[int, int, int]]:
    """Yield axes of the grid, each with the first and the last unit of a row or plane on it.

    The work-items of one id in the last dimension are neighbours in their group, so they also
    begin and end at certain warps.
    """
    if len(grid.sides) == 1:
        yield 0, place[0], place[0]
        return
    yield dimension, place[dimension], place[dimension]
    if dimension == len(local_size) - 1 and not grid.by_groups:
        layer = grid.num_lanes // local_size[dimension]
        first = value % local_size[dimension] * layer
        yield len(grid.sides) - 1, first // WARP, (first + layer - 1) // WARP
