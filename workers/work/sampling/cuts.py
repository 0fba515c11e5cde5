"""Divide a launch into parts whose work-items do different things, and choose samples of each.

A guard such as ``if (x < width && y < height)`` cuts the NDRange along its axes. The search finds
one cut for each axis, along lines near the first unit: first where scalars suggest it, then by
bisection (a unit is a warp or a work-group, ``units.py``). Owns this search and the choice of samples from the parts; the caller
runs the units.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence

from workers.work.sampling.units import Box, Grid, Place

_FEWEST_LAYERS = 3
Marks = tuple[tuple[int, ...], ...]
"""For each axis of a grid, coordinates at which something begins."""
KeyOf = Callable[[Place], Hashable | None]
"""Returns what the unit at a place did, as a value to compare; None if no more units may run."""


def find_cuts(grid: Grid, key_of: KeyOf, hints: Sequence[Sequence[int]] = ()) -> Marks:
    """Return, for each axis, where the units begin that act like the last unit.

    Args:
        grid: the units of the launch.
        key_of: what the unit at a place did.
        hints: for each axis, coordinates that are tried before the bisection.

    Returns:
        For each axis: nothing if the axis has no cut; the cut; or two coordinates if ``key_of``
        ended the search. Then the cut is behind the first and not behind the second one.

    >>> from workers.work.sampling.units import grid_of
    >>> find_cuts(grid_of((1000,), 32, by_groups=True), lambda place: place[0] < 137)
    ((137,),)
    """
    tried = hints or ((),) * len(grid.sides)
    line = _line(grid, key_of)
    return tuple(
        _cut(grid.sides[axis], line, axis, key_of, some) for axis, some in enumerate(tried)
    )


def _line(grid: Grid, key_of: KeyOf) -> Place:
    """Return the unit through which the search goes, near the first unit.

    In a stencil the first rows do something else than the others, often nothing. So it is the first
    unit's neighbour on all axes, unless this neighbour acts like the last unit.
    """
    first, second, last = (
        tuple(min(at, side - 1) for side in grid.sides) for at in (0, 1, max(grid.sides))
    )
    return first if key_of(second) in (None, key_of(last)) else second


def _cut(side: int, line: Place, axis: int, key_of: KeyOf, hints: Sequence[int]) -> tuple[int, ...]:
    low, high = line[axis], side - 1
    first, last = (key_of((*line[:axis], at, *line[axis + 1 :])) for at in (low, high))
    if first is None or last is None:
        return (low + 1, high) if high - low > 1 else ()
    if first == last:
        return ()
    likely = iter([at for cut in hints for at in (cut - 1, cut)])
    is_first_step = True
    while high - low > 1:
        at = next((one for one in likely if low < one < high), None)
        if at is None:
            at = (low + high) // 2
            # Often only one unit, the first or the last, differs from all others.
            likely = iter((low + 1, high - 1) if is_first_step else ())
            is_first_step = False
        found = key_of((*line[:axis], at, *line[axis + 1 :]))
        if found is None:
            return (low + 1, high)
        low, high = (low, at) if found == last else (at, high)
    return (high,)


def find_edges(grid: Grid, cuts: Marks, amount_of: Callable[[Place], float | None]) -> list[Marks]:
    """Return the last units before cuts or ends that do less or more than the units before them.

    A guard often ends inside such a unit.

    Args:
        grid: the units of the launch.
        cuts: the cuts of each axis.
        amount_of: how much the unit at a place did; None if no more units may run.

    Returns:
        Marks of one such unit, of two, and so on; those that change the whole most come first.

    >>> from workers.work.sampling.units import grid_of
    >>> grid = grid_of((100,), 32, by_groups=True)
    >>> find_edges(grid, ((),), lambda place: 7 if place[0] == 99 else 32)
    [((99,),)]
    """
    found: list[tuple[float, int, int]] = []
    for axis, (side, some) in enumerate(zip(grid.sides, cuts, strict=True)):
        end = min((side, *some))
        if end < 2:
            continue
        edge, inner = (
            amount_of(
                tuple(at if one == axis else min(1, n - 1) for one, n in enumerate(grid.sides))
            )
            for at in (end - 1, end - 2)
        )
        if edge is not None and inner:
            found.append((abs(edge / inner - 1) / end, axis, end - 1))
    found = sorted(one for one in found if one[0] > 0)[::-1]
    return [
        tuple(
            tuple(mark for _, at, mark in found[:number] if at == axis)
            for axis in range(len(grid.sides))
        )
        for number in range(1, len(found) + 1)
    ]


def find_layers(grid: Grid, cuts: Marks, key_of: KeyOf) -> Marks:
    """Return, for each axis, where a different first layer ends and a different last layer begins.

    The units of such a layer do something else than those in the middle, as in a stencil. The
    search covers the part of the grid before the cuts.

    >>> from workers.work.sampling.units import grid_of
    >>> find_layers(grid_of((100,), 32, by_groups=True), ((),), lambda place: place[0] > 0)
    ((1,),)
    """
    sides = [min((side, *some)) for some, side in zip(cuts, grid.sides, strict=True)]
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


def merged(*some: Marks) -> Marks:
    """Return all marks of each axis.

    >>> merged(((1,), (2,)), ((), (3,)))
    ((1,), (2, 3))
    """
    return tuple(tuple(itertools.chain.from_iterable(one)) for one in zip(*some, strict=True))


def boxes(grid: Grid, choices: Sequence[Marks] = (), *, most: int = 1) -> tuple[Box, ...]:
    """Return the parts that begin at marks: the first choice with at most ``most`` parts.

    If all choices have more parts, it is the last choice.
    """
    parts: tuple[Box, ...] = ()
    for marks in choices or [((),) * len(grid.sides)]:
        spans = [_spans(side, set(some)) for side, some in zip(grid.sides, marks, strict=True)]
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
    >>> parts = boxes(grid_of((100,), 32, by_groups=True), [((3,),)])
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
