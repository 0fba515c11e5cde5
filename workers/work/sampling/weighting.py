"""Make a sample of a launch: give each unit that ran the number of units that it represents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from workers.work.estimate import Sample, UnitCounts
from workers.work.sampling.strips import Diagonal
from workers.work.sampling.units import Box, Grid, Place


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
