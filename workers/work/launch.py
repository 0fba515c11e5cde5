"""Run one virtual launch: choose units, run them, and collect their counts.

Decides how many units of a launch run. The number depends on what the first units execute, not on
time, so that every machine gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from workers.device.interface import AccessRange, DeviceFailure
from workers.work import reuse
from workers.work.estimate import global_accesses, misses_accesses
from workers.work.sampling.cuts import (
    Marks,
    boxes,
    find_cuts,
    find_edges,
    find_layers,
    merged,
    sampled,
)
from workers.work.sampling.reach import active_box, furthest, is_uniform
from workers.work.sampling.runs import UncountedError, UnitRuns
from workers.work.sampling.sample import Sample, places_within, sample_of
from workers.work.sampling.strips import Diagonal, find_diagonal, find_strips, hints
from workers.work.sampling.units import WARP, Box, Place

MOST_GROUPS = 16
MOST_ITEMS = 4096
"""Maximum work-items of a sample: as many as 16 work-groups of 256 work-items have."""
_MOST_WARPS = 1024
"""Maximum warps of a sample. This limit is the lower one if work-groups have fewer than four
work-items. A warp costs some 10 µs even if it has only one work-item: 4,096 of them in each of 68
configs took 2 to 3 s."""
_FEW_UNITS = 16
"""Maximum units of a small sample. They suffice to find most places in the NDRange where a guard or
a bound begins to act."""
_MOST_FOR_CUTS = 28
"""Maximum work-groups that the search for cuts runs, and warps of a small sample. A bisection of 128
units takes seven."""
_MOST_FOR_STRIPS = 24
"""Maximum work-groups that the search for strips and diagonals runs; a sample of warps has half as
many warps for this search."""
_SHARE_FOR_STRIPS = 0.25
"""Share of the time that is left for a sample, after which this search ends."""
_MORE_PARTS = 5
"""Number of parts by which strips, and launches that are sampled by work-groups, may exceed the
usual number."""
_LEAST_SPREAD = 0.1
_FEW_EACH = 4
"""Units of each part that run first. The spread of their work decides how many more units run."""
_HEAVY_NS = 2e6
"""Estimated time of a unit, in ns, above which the search for cuts is skipped."""


class VirtualLaunch:
    """One launch config, and the choice of its units (warps or work-groups) that run.

    Args:
        runs: runs the units of this config.
    """

    def __init__(self, runs: UnitRuns) -> None:
        self._runs, self._copy, self._config = runs, runs.copy, runs.config
        self._grid = grid = runs.grid
        self._diagonal: Diagonal | None = None
        self._whole = boxes(grid)
        self._has_accesses = global_accesses(runs.copy) > 0
        self._furthest: list[Place] = []
        self._active: tuple[Box, frozenset[int]] | None = None
        self._is_regular = False
        """Whether the compared units do the same, whatever the data."""

    def everything(self) -> Sample:
        """Run all units, then record what all work-groups touch; raises UncountedError."""
        sample = self._sample(self._runs.run_all(list(self._grid.places())), self._whole)
        touched, _ = self._runs.watched(range(self._grid.num_groups))
        return replace(sample, group_bytes=float(sum(touched)))

    def sample(self) -> Sample:
        """Run a fair sample of units, then record what some groups touch; raises UncountedError."""
        sample = self._fair_sample()
        return replace(sample, group_bytes=self._group_bytes(sample))

    def small_sample(self) -> Sample:
        """Run a few units of each part of the launch; raises UncountedError."""
        return self._fair_sample(most=_FEW_UNITS)

    def has_run_all_code(self, sample: Sample) -> bool:
        """Whether the units that reach furthest have run, and code with accesses is not rare."""
        if sample.is_exact:
            return True
        if not self._furthest or not all(place in self._runs for place in self._ends):
            return False
        ends = (self._ends[-1], *self._furthest)
        if self._is_regular:
            ran = {place: self._accesses(place) for place in self._runs.counts}
            known = frozenset[int]().union(*(ran[place] for place in ends))
            if not all(accesses <= known for accesses in ran.values()):
                return False
            if self._active is None or not is_uniform(self._grid, *self._active, ran.items()):
                return False
        return not misses_accesses(self._copy, sample, [self._runs.counts[at] for at in ends])

    def _accesses(self, place: Place) -> frozenset[int]:
        """Return which blocks with accesses to global memory a unit ran."""
        ran = (self._runs.busiest(place) > 0) & self._has_accesses
        return frozenset(np.flatnonzero(ran).tolist())

    @property
    def _ends(self) -> list[Place]:
        sides = self._grid.sides
        return [tuple(0 for _ in sides), tuple(side - 1 for side in sides)]

    def access_ranges(self) -> tuple[AccessRange, ...]:
        """Return the ranges of the pointer arguments that the units have accessed so far."""
        return self._runs.access_ranges()

    def _fair_sample(self, most: int | None = None) -> Sample:
        grid, by_groups = self._grid, self._copy.by_groups
        if most is None:
            warps = min(_MOST_WARPS, MOST_ITEMS // min(grid.num_lanes, WARP))
            most = MOST_GROUPS if by_groups else warps
        first = sampled(self._whole, 1, (1,))
        self._runs.run_some(first, at_least=1)
        is_heavy = self._runs.times_ns[first[0]] > _HEAVY_NS
        if is_heavy or grid.num_units <= most:
            places = self._runs.run_some(sampled(self._whole, most, (1,)))
            if is_heavy:
                self._runs.run_some(self._ends)
            ran = {self._accesses(at) for at in self._ends if at in self._runs}
            if len(ran) == 1:
                self._furthest = self._ends[-1:]
            return self._sample(list(dict.fromkeys((*first, *places))), self._whole)
        parts = self._parts(most)
        if grid.num_units - len(self._runs) <= most:
            places = self._runs.run_some([*self._runs.counts, *self._grid.places()])
            if len(self._runs) == grid.num_units:
                return self._sample(list(self._runs.counts), self._whole)
        on: list[Place] = []
        if self._diagonal is not None:
            on = [place for part in parts for place in self._diagonal.places(part, _FEW_EACH)]
        places = self._of_parts(parts, most - len(on))
        places = list(dict.fromkeys((*places, *self._runs.run_some(on))))
        return self._sample(places, parts)

    def rows(self, places: Sequence[Place]) -> npt.NDArray[np.uint32]:
        """Return how often each work-item of these units runs each block; raises UncountedError."""
        self._runs.run_all(places)
        return np.concatenate([self._runs.counts[place].rows for place in places])

    def _parts(self, most: int) -> tuple[Box, ...]:
        """Run some of ``most`` units to find the parts of the launch that do different things."""
        grid, by_groups = self._grid, self._copy.by_groups
        for_search = max(most if by_groups else most // 2, _MOST_FOR_CUTS)
        some = self._runs.run_some(
            list(dict.fromkeys((*self._ends, *sampled(self._whole, 2, (1,)))))
        )
        # If data make all work-items differ, the comparison only looks at which blocks they run.
        is_regular = (
            len({self._runs.busiest(place).tobytes() for place in some}) <= 1 + len(some) // 2
        )
        key_of = self._runs.key_within(for_search, is_regular=is_regular)
        cuts = find_cuts(grid, key_of, hints(grid, self._config.local_size, self._scalars))
        self._is_regular = is_regular
        self._active = active_box(grid, cuts, self._accesses_if_affordable)
        if self._active is not None:
            self._furthest = furthest(grid, *self._active, self._accesses_if_affordable)
        nothing: Marks = ((),) * len(grid.sides)
        before: Marks = tuple(tuple(cut - 1 for cut in one) for one in cuts)
        edges, layers = [before], nothing
        if by_groups and is_regular:
            edges = find_edges(grid, cuts, self._runs.amount_within(for_search))
        elif not by_groups and len(grid.sides) > 1:
            layers = find_layers(grid, cuts, key_of)
        strips = self._strips(
            len(self._runs) + (_MOST_FOR_STRIPS if by_groups else most // 2), is_regular
        )
        layers = merged(layers, strips)
        choices = [
            *(merged(cuts, one, layers) for one in reversed(edges)),
            merged(cuts, layers),
            merged(cuts, (*layers[:-1], ())),
            *(merged(cuts, one) for one in reversed(edges)),
            cuts,
        ]
        most_parts = most // 4 + _MORE_PARTS * (by_groups + any(strips))
        few = int(self._runs.left_ns / self._runs.each_ns) // _FEW_EACH
        return boxes(grid, choices, most=max(1, min(most_parts, few)))

    def _accesses_if_affordable(self, place: Place) -> frozenset[int] | None:
        return self._accesses(place) if self._runs.run_some([place]) else None

    def _strips(self, limit: int, is_regular: bool) -> Marks:
        """Find rows, planes and a diagonal that differ from what is around them."""
        local_size = self._config.local_size
        least = self._runs.left_ns * (1 - _SHARE_FOR_STRIPS)
        key_of = self._runs.key_within(limit, is_regular=is_regular, least_left=least)
        self._diagonal = find_diagonal(self._grid, local_size, key_of)

        def run_ahead(places: Sequence[Place]) -> None:
            fresh = [place for place in dict.fromkeys(places) if place not in self._runs]
            most = min(
                limit - len(self._runs), int((self._runs.left_ns - least) / self._runs.each_ns)
            )
            self._runs.run_some(fresh[: max(0, most)])

        return find_strips(self._grid, local_size, self._scalars, key_of, run_ahead)

    @property
    def _scalars(self) -> list[int]:
        """The different values of the integer scalar arguments."""
        values = (one.value for one in self._config.args)
        return list(dict.fromkeys(value for value in values if isinstance(value, int)))

    def _of_parts(self, parts: Sequence[Box], most: int) -> list[Place]:
        """Run units of all parts, and more units of parts that are large or whose units differ."""
        most = max(2 * len(parts), most)
        few = min(most, max(len(parts), min(most // 2, _FEW_EACH * len(parts))))
        places = self._runs.run_some(sampled(parts, few, (1,) * len(parts)), at_least=len(parts))
        if few == most:
            return places
        spreads = [self._spread(places_within(part, places)) for part in parts]
        shares = [part.num_units * spread for part, spread in zip(parts, spreads, strict=True)]
        fresh = [place for place in sampled(parts, most, shares) if place not in places]
        return [*places, *self._runs.run_some(fresh[: most - len(places)])]

    def _spread(self, places: Sequence[Place]) -> float:
        """Return the spread of units' work. It has a minimum: few equal units prove little."""
        works = [self._runs.works[place] for place in places]
        mean = sum(works) / len(works)
        return (float(np.std(works)) if len(works) > 1 else mean) + _LEAST_SPREAD * mean

    def _group_bytes(self, sample: Sample) -> float | None:
        """Return the sum of the distinct bytes that each work-group touches; None if too costly."""
        of_units = sample.weights * np.array(
            [self._runs.accessed[place] for place in sample.places]
        )
        total = float(of_units.sum())
        spent_ns = sum(self._runs.times_ns.values())
        each_ns = max(self._runs.times_ns.values()) * self._grid.warps_a_group
        number = reuse.affordable(spent_ns, each_ns)
        if not total or not number:
            return None if total else 0.0
        num_groups = self._grid.num_groups
        is_all = num_groups <= number
        drawn = reuse.drawn(of_units.tolist(), sample.strata.tolist(), number)
        groups = [self._grid.unit(sample.places[unit]).group for unit, _ in drawn]
        chosen = list(range(num_groups) if is_all else dict.fromkeys(groups))
        try:
            touched, accessed = self._runs.watched(chosen)
        except UncountedError:
            return None
        except DeviceFailure as error:
            if error.sticky:
                raise
            return None
        if is_all:
            return float(sum(touched))
        places = [chosen.index(group) for group in groups]
        shares = [share for _, share in drawn]
        return reuse.of_launch(
            total, [touched[n] for n in places], [accessed[n] for n in places], shares
        )

    def _sample(self, places: Sequence[Place], parts: Sequence[Box]) -> Sample:
        return sample_of(self._runs.counts, places, parts, grid=self._grid, diagonal=self._diagonal)
