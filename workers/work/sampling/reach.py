"""Decide whether the units that ran show how far a launch reaches into its buffers.

Then the access ranges of the sample are complete. They are if guards cut a box out of the launch,
if all units inside this box run the same accesses, and if the box's last units have run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from workers.work.sampling.cuts import Marks
from workers.work.sampling.units import Box, Grid, Place

_SHORT_SIDE = 3
"""Maximum units of an axis whose first and last unit are no borders."""
Accesses = frozenset[int]
"""Numbers of the blocks with accesses to global memory that a unit ran."""
AccessesOf = Callable[[Place], Accesses | None]
"""Returns the accesses of the unit at a place; None if no more units may run."""


def active_box(grid: Grid, cuts: Marks, accesses_of: AccessesOf) -> tuple[Box, Accesses] | None:
    """Return the part of a launch that guards let through, and the accesses of all other units.

    None if this is not known: the search for a cut was given up, or the units near the first and
    near the last unit do different things.

    >>> from workers.work.sampling.units import grid_of
    >>> grid, nothing = grid_of((50, 60), 32, by_groups=True), frozenset()
    >>> cuts = ((20,), (30,), ())
    >>> ran = lambda at: frozenset({7}) if at[0] < 20 and at[1] < 30 else nothing
    >>> box, idle = active_box(grid, cuts, ran)
    >>> box.high, idle
    ((20, 30, 1), frozenset())
    """
    if any(len(some) > 1 for some in cuts):
        return None
    sides = grid.sides
    near, last = (tuple(min(at, side - 1) for side in sides) for at in (1, max(sides)))
    of_near, of_last = accesses_of(near), accesses_of(last)
    if of_near is None or of_last is None:
        return None
    if any(cuts) and not of_last <= of_near:
        low = tuple(max((0, *some)) for some in cuts)
        return (Box(low=low, high=sides), of_near) if of_near <= of_last else None
    high = list(sides)
    for axis, some in enumerate(cuts):
        for cut in some:
            # The last unit of an axis may be partly inside the guard.
            at_cut = accesses_of((*near[:axis], cut, *near[axis + 1 :]))
            is_partly_inside = at_cut is not None and not at_cut <= of_last
            high[axis] = cut + is_partly_inside
    return Box(low=(0,) * len(sides), high=tuple(high)), of_last if any(cuts) else frozenset()


def furthest(grid: Grid, box: Box, idle: Accesses, accesses_of: AccessesOf) -> list[Place]:
    """Run and return the units that reach furthest: the last unit of the box, and its neighbours.

    Empty if it does no more than ``idle``, the units outside; then the guards let no box through. It
    is also empty if the box is narrow and does not end where the launch ends: a narrow part says
    nothing about code that may also run elsewhere.
    """
    is_at_end = box.high == grid.sides
    if not is_at_end and not box.is_wide(grid):
        return []
    corner = next((at for at in _last_of(grid, box) if _does_more(at, idle, accesses_of)), None)
    if corner is None:
        return []
    beside = (
        (*corner[:axis], at - 1, *corner[axis + 1 :])
        for axis, (at, low) in enumerate(zip(corner, box.low, strict=True))
        if at > low
    )
    return [at for at in (corner, *beside) if accesses_of(at) is not None]


def is_uniform(grid: Grid, box: Box, idle: Accesses, ran: Iterable[tuple[Place, Accesses]]) -> bool:
    """Whether all units inside the box ran the same accesses, and those outside only ``idle`` ones.

    Units at the border of the box may differ.
    """
    patterns: set[Accesses] = set()
    for place, accesses in ran:
        if not box.holds(place):
            if not accesses <= idle:
                return False
        elif not _is_at_border(grid, box, place):
            patterns.add(accesses)
    return len(patterns) <= 1


def _last_of(grid: Grid, box: Box) -> Iterator[Place]:
    """Yield the last unit of a box; in a tall group, then the warps before it."""
    corner = tuple(high - 1 for high in box.high)
    yield corner
    if not grid.by_groups and len(grid.sides) > 1:
        for warp in range(corner[-1] - 1, -1, -1):
            yield (*corner[:-1], warp)


def _does_more(place: Place, idle: Accesses, accesses_of: AccessesOf) -> bool:
    accesses = accesses_of(place)
    return accesses is not None and not accesses <= idle


def _is_at_border(grid: Grid, box: Box, place: Place) -> bool:
    return any(
        at in (low, high - 1)
        for low, at, high, side in zip(box.low, place, box.high, grid.sides, strict=True)
        if side > _SHORT_SIDE
    )
