"""A sample of a launch: the counts of some units, each with the units that it represents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from workers.work.sampling.strips import Diagonal
from workers.work.sampling.units import Box, Grid, Place

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCounts:
    """The counts of one unit, which is a warp or a work-group (``units.py``).

    ``rows``: shape (work-items, blocks), how often each work-item ran each block. ``seen``: shape
    (warps, sites, iterations); a site is an access in the source, and an entry belongs to one
    iteration of the loop around it. The low 16 bits of an entry are the sectors that the warp
    touches together (for atomic operations, the addresses), the high 16 bits are the lines. If the
    unit is a work-group, only some of its warps have entries. ``met``: shape (m, 2), rows of an
    address and the number of the unit's atomic operations on it; unused rows are zero.
    """

    rows: npt.NDArray[np.uint32]
    seen: npt.NDArray[np.uint32]
    met: npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The units of a launch that ran.

    ``places``: the units' coordinates. ``weights``: how many units each unit represents.
    ``strata``: number of the part of the launch from which each unit was drawn. ``typical``: if a
    unit's part is so wide that its code is known to be a rule. Code that only a row, a plane or a
    single unit runs is an exception, which may also occur elsewhere. ``is_exact``: if all units
    ran. ``group_bytes``: as in ``Work``. ``others``: units that ran in the search for parts and do
    not belong to the sample.
    """

    counts: tuple[UnitCounts, ...]
    places: tuple[Place, ...]
    weights: _Floats
    strata: npt.NDArray[np.int64]
    typical: npt.NDArray[np.bool_]
    is_exact: bool
    group_bytes: float | None = None
    others: tuple[UnitCounts, ...] = ()

    @cached_property
    def lanes(self) -> npt.NDArray[np.int64]:
        """Number of work-items of each unit."""
        return np.array([len(one.rows) for one in self.counts])

    @cached_property
    def executed(self) -> _Floats:
        """How often each unit ran each block, shape (units, blocks)."""
        starts = np.concatenate(([0], np.cumsum(self.lanes)[:-1]))
        rows = np.concatenate([one.rows for one in self.counts])
        executed: _Floats = np.add.reduceat(rows, starts, axis=0, dtype=np.float64)
        return executed

    @cached_property
    def unseen(self) -> npt.NDArray[np.bool_]:
        """The blocks that no unit of a typical part ran, so that they may run elsewhere, too."""
        unseen: npt.NDArray[np.bool_] = np.logical_not(self.executed[self.typical].any(axis=0))
        return unseen


def sample_of(
    runs: Mapping[Place, UnitCounts],
    places: Sequence[Place],
    parts: Sequence[Box],
    *,
    grid: Grid,
    diagonal: Diagonal | None,
) -> Sample:
    """Return the sample that consists of the units at some places.

    Args:
        runs: the counts of all units that ran.
        places: units drawn from the parts.
        parts: the parts into which the launch is divided.
        grid: all units of the launch.
        diagonal: units that are counted separately in each part.
    """
    weights: list[float] = []
    strata: list[int] = []
    typical: list[bool] = []
    run: list[Place] = []
    largest = max(parts, key=lambda part: part.num_units)
    for part in parts:
        here = places_within(part, places)
        typical += [part is largest or part.is_wide(grid)] * len(here)
        for chosen, share in _split(part, here, diagonal):
            weight = share * grid.num_items(part) / grid.lanes_of(chosen)
            run += chosen
            strata += [len(weights)] * len(chosen)
            weights += [weight] * len(chosen)
    in_sample = set(run)
    return Sample(
        counts=tuple(runs[place] for place in run),
        places=tuple(run),
        weights=np.array(weights),
        strata=np.array(strata),
        typical=np.array(typical, dtype=np.bool_),
        is_exact=len(run) == grid.num_units,
        others=tuple(counts for place, counts in runs.items() if place not in in_sample),
    )


def places_within(part: Box, places: Sequence[Place]) -> list[Place]:
    """Return the places that are in a part."""
    return [place for place in places if part.holds(place)]


def _split(
    part: Box, places: Sequence[Place], diagonal: Diagonal | None
) -> Iterator[tuple[Sequence[Place], float]]:
    """Yield the places of a part, on and off the diagonal, and the share of units for each."""
    if diagonal is not None:
        on = [place for place in places if diagonal.holds(place)]
        off = [place for place in places if not diagonal.holds(place)]
        share = diagonal.share(part)
        if on and off:
            yield from ((on, share), (off, 1 - share))
            return
    if places:
        yield places, 1.0
