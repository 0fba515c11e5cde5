"""Run one virtual launch: choose units, run them, and collect their counts.

Decides how many units of a launch run. The number depends on what the first units execute, not on
time, so that every machine gets the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from llmperf_common.records import LaunchConfig
from workers.device.interface import AccessRange, DeviceFailure
from workers.work import reuse
from workers.work.counted_copy import CountedCopy
from workers.work.estimate import (
    block_bytes,
    block_costs,
    block_ns,
    misses_accesses,
)
from workers.work.opencl_virtual import RawCounts, VirtualKernel
from workers.work.sampling.cuts import KeyOf, boxes, find_cuts, find_layers, sampled
from workers.work.sampling.sample import Sample, UnitCounts, places_within, sample_of
from workers.work.sampling.strips import Diagonal, find_diagonal, find_strips
from workers.work.sampling.units import WARP, Box, Grid, Place, Unit

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
_FEWEST_GROUPS = 4
"""Number of work-groups that the search for cuts leaves over for the sample itself."""
_MOST_FOR_STRIPS = 24
"""Maximum work-groups that the search for strips and diagonals runs; a sample of warps has half as
many warps for this search."""
_SHARE_FOR_STRIPS = 0.25
"""Share of the time that is left for a sample, after which this search ends."""
_STRIP_PARTS = 5
"""Number of parts by which strips may exceed the usual number."""
_LEAST_SPREAD = 0.1
_FEW_EACH = 4
"""Units of each part that run first. The spread of their work decides how many more units run."""
_MOST_TURNS = 2**23
"""Maximum loop iterations of one run. A launch whose first unit makes more is not counted."""
_MOST_ROWS = 2**22
"""Maximum counters (work-items x blocks) of one run, which limits its memory."""
_LAUNCH_NS = 1e7
"""Maximum estimated time of a sample beyond its first unit, in ns (``block_ns``)."""
_HEAVY_NS = 2e6
"""Estimated time of a unit, in ns, above which the search for cuts is skipped."""
KERNEL_NS = 7e8
"""Maximum estimated time of all launches of a kernel, in ns."""
_OF_GROUP = 4
"""Factor on the time of copies that are not optimised; in most of them work-items wait for each
other."""
_TURN_NS = 50
"""Estimated time of a loop iteration, in ns. It counts for a run whose loops were cut off, because
the other counts of such a run are unknown."""
_CUT_OFF, _LOST = 1, 4
"""Bits of a run's flags."""


class UncountedError(Exception):
    """A launch cannot be counted; the message says why."""


class KernelBudget:
    """The estimated time that is left for all launches of one kernel, in ns."""

    def __init__(self, time_ns: float = KERNEL_NS) -> None:
        self.left = float(time_ns)


class VirtualLaunch:
    """One launch config and its units (warps or work-groups, ``units.py``) that have run.

    Args:
        loaded: the kernel, prepared with the config's arguments.
        copy: the counted copy that ``loaded`` was built from.
        config: the launch config.
        grid: the units of this config.
        budget: the kernel's remaining time.
    """

    def __init__(
        self,
        loaded: VirtualKernel,
        copy: CountedCopy,
        config: LaunchConfig,
        grid: Grid,
        budget: KernelBudget,
    ) -> None:
        self._loaded, self._copy, self._config, self._grid = loaded, copy, config, grid
        self._runs: dict[Place, UnitCounts] = {}
        self._works: dict[Place, float] = {}
        """Blocks, operations and accesses of each unit."""
        self._times_ns: dict[Place, float] = {}
        self._accessed: dict[Place, float] = {}
        self._bytes_of_blocks = block_bytes(copy)
        self._work_of_blocks = 1 + block_costs(copy)
        self._ns_of_blocks = block_ns(copy) * (1 if copy.is_optimised else _OF_GROUP)
        self._num_for_strips = 0
        self._diagonal: Diagonal | None = None
        self._left = _LAUNCH_NS
        self._budget = budget
        self._whole = boxes(grid, (0,) * len(grid.sides))
        self._ranges: npt.NDArray[np.int64] = np.zeros((len(copy.positions), 2), np.int64)

    def everything(self) -> Sample:
        """Run all units, then record what all work-groups touch; raises UncountedError."""
        sample = self._sample(self._run_all(list(self._grid.places())), self._whole)
        touched, _ = self._watched(range(self._grid.num_groups))
        return replace(sample, group_bytes=float(sum(touched)))

    def sample(self) -> Sample:
        """Run a fair sample of units, then record what some groups touch; raises UncountedError."""
        sample = self._fair_sample()
        return replace(sample, group_bytes=self._group_bytes(sample))

    def small_sample(self) -> Sample:
        """Run a few units of each part of the launch; raises UncountedError."""
        return self._fair_sample(most=_FEW_UNITS)

    def has_run_all_code(self, sample: Sample) -> bool:
        """Whether the first and the last unit have run, and code with accesses is not rare.

        Heavy launches leave out these units.
        """
        if not all(place in self._runs for place in self._ends):
            return False
        return not misses_accesses(self._copy, sample, self._runs[self._ends[-1]])

    @property
    def _ends(self) -> list[Place]:
        sides = self._grid.sides
        return [tuple(0 for _ in sides), tuple(side - 1 for side in sides)]

    def access_ranges(self) -> tuple[AccessRange, ...]:
        """Return the ranges of the pointer arguments that the units have accessed so far."""
        return tuple(
            AccessRange(position=position, start_bytes=start, end_bytes=end, site=0)
            for position, (start, end) in zip(
                self._copy.positions, self._ranges.tolist(), strict=True
            )
            if start or end
        )

    def _fair_sample(self, most: int | None = None) -> Sample:
        grid, by_groups = self._grid, self._copy.by_groups
        if most is None:
            warps = min(_MOST_WARPS, MOST_ITEMS // min(grid.num_lanes, WARP))
            most = MOST_GROUPS if by_groups else warps
        first = sampled(self._whole, 1, (1,))
        self._run_some(first, at_least=1)
        is_heavy = self._times_ns[first[0]] > _HEAVY_NS
        if is_heavy or grid.num_units <= most:
            places = self._run_some(sampled(self._whole, most, (1,)))
            if is_heavy:
                self._run_some(self._ends)
            return self._sample(list(dict.fromkeys((*first, *places))), self._whole)
        parts = self._parts(most)
        if grid.num_units - len(self._runs) <= most:
            places = self._run_some([*self._runs, *self._grid.places()])
            if len(self._runs) == grid.num_units:
                return self._sample(list(self._runs), self._whole)
        places = self._of_parts(parts, most)
        if self._diagonal is not None:
            on = [place for part in parts for place in self._diagonal.places(part, _FEW_EACH)]
            places = list(dict.fromkeys((*places, *self._run_some(on))))
        return self._sample(places, parts)

    def rows(self, places: Sequence[Place]) -> npt.NDArray[np.uint32]:
        """Return how often each work-item of these units runs each block; raises UncountedError."""
        self._run_all(places)
        return np.concatenate([self._runs[place].rows for place in places])

    def _parts(self, most: int) -> tuple[Box, ...]:
        """Run some of ``most`` units to find the parts of the launch that do different things."""
        grid, by_groups = self._grid, self._copy.by_groups
        for_search = most - _FEWEST_GROUPS if by_groups else most // 2
        some = self._run_some(list(dict.fromkeys((*self._ends, *sampled(self._whole, 2, (1,))))))
        # If data make all work-items differ, the comparison only looks at which blocks they run.
        is_regular = len({self._busiest(place).tobytes() for place in some}) <= 1 + len(some) // 2
        key_of = self._key_within(for_search, is_regular=is_regular)
        cuts = find_cuts(grid, key_of)
        layers: tuple[tuple[int, ...], ...] = ((),) * len(grid.sides)
        if not by_groups and len(grid.sides) > 1:
            layers = find_layers(grid, cuts, key_of)
        before = len(self._runs)
        strips = self._strips(before + (_MOST_FOR_STRIPS if by_groups else most // 2), is_regular)
        self._num_for_strips = len(self._runs) - before
        marks = [(*some, *others) for some, others in zip(layers, strips, strict=True)]
        most_parts = most // 4 + _STRIP_PARTS * any(strips)
        few = int(self._left / self._each_ns) // _FEW_EACH
        return boxes(grid, cuts, marks, most=max(1, min(most_parts, few)))

    def _strips(self, limit: int, is_regular: bool) -> tuple[tuple[int, ...], ...]:
        """Find rows, planes and a diagonal that differ from what is around them."""
        local_size = self._config.local_size
        least = self._left * (1 - _SHARE_FOR_STRIPS)
        key_of = self._key_within(limit, is_regular=is_regular, least_left=least)
        self._diagonal = find_diagonal(self._grid, local_size, key_of)
        scalars = [one.value for one in self._config.args if isinstance(one.value, int)]

        def run_ahead(places: Sequence[Place]) -> None:
            fresh = [place for place in dict.fromkeys(places) if place not in self._runs]
            most = min(limit - len(self._runs), int((self._left - least) / self._each_ns))
            self._run_some(fresh[: max(0, most)])

        return find_strips(self._grid, local_size, list(dict.fromkeys(scalars)), key_of, run_ahead)

    @property
    def _each_ns(self) -> float:
        """Mean estimated time of the units that have run."""
        return max(1.0, sum(self._times_ns.values()) / len(self._times_ns))

    def _key_within(self, limit: int, *, is_regular: bool, least_left: float = 0.0) -> KeyOf:
        """Return a function that runs units until ``limit`` have run or little time is left."""

        def key_of(place: Place) -> bytes | None:
            is_new = place not in self._runs
            is_over = len(self._runs) >= limit or self._left < least_left
            if is_new and (is_over or not self._run_some([place])):
                return None
            busiest = self._busiest(place)
            return (busiest if is_regular else busiest > 0).tobytes()

        return key_of

    def _of_parts(self, parts: Sequence[Box], most: int) -> list[Place]:
        """Run units of all parts, and more units of parts that are large or whose units differ."""
        most = max(2 * len(parts), most + self._num_for_strips - len(self._runs))
        few = min(most, max(len(parts), min(most // 2, _FEW_EACH * len(parts))))
        places = self._run_some(sampled(parts, few, (1,) * len(parts)), at_least=len(parts))
        if few == most:
            return places
        spreads = [self._spread(places_within(part, places)) for part in parts]
        shares = [part.num_units * spread for part, spread in zip(parts, spreads, strict=True)]
        fresh = [place for place in sampled(parts, most, shares) if place not in places]
        return [*places, *self._run_some(fresh[: most - len(places)])]

    def _spread(self, places: Sequence[Place]) -> float:
        """Return the spread of units' work. It has a minimum: few equal units prove little."""
        works = [self._works[place] for place in places]
        mean = sum(works) / len(works)
        return (float(np.std(works)) if len(works) > 1 else mean) + _LEAST_SPREAD * mean

    def _run_some(self, places: Sequence[Place], *, at_least: int = 0) -> list[Place]:
        """Run units in order while the budget lasts, but at least ``at_least``; return these units.

        Units that have run before cost nothing.
        """
        done: list[Place] = []
        while len(done) < len(places):
            if places[len(done)] in self._runs:
                done.append(places[len(done)])
                continue
            number = len(places) - len(done)
            if self._runs:
                number = min(number, max(int(self._left / self._each_ns), at_least - len(done)))
            else:
                number = 1
            if number < 1:
                break
            some = places[len(done) : len(done) + number]
            self._run_all(some)
            done += some
        return done

    def _run_all(self, places: Sequence[Place]) -> list[Place]:
        fresh = [place for place in dict.fromkeys(places) if place not in self._runs]
        lanes = self._grid.num_lanes if self._copy.by_groups else WARP
        at_once = max(1, _MOST_ROWS // (lanes * len(self._copy.blocks)))
        for start in range(0, len(fresh), at_once):
            self._run(fresh[start : start + at_once])
        return list(places)

    def _run(self, places: Sequence[Place]) -> None:
        if self._budget.left <= 0:
            raise UncountedError("other launches of this kernel have used up its budget")
        units = [self._grid.unit(place) for place in places]
        run = self._checked(units)
        warps = len(run.seen) // len(units)
        starts = np.cumsum([0, *(unit.num_lanes for unit in units)])
        ran = np.add.reduceat(run.rows, starts[:-1], axis=0, dtype=np.uint64)
        works, accessed = ran @ self._work_of_blocks, ran @ self._bytes_of_blocks
        times_ns = ran @ self._ns_of_blocks
        for number, place in enumerate(places):
            self._runs[place] = UnitCounts(
                rows=run.rows[starts[number] : starts[number + 1]],
                seen=run.seen[number * warps : (number + 1) * warps],
                met=run.met[number],
            )
            self._works[place] = float(works[number])
            self._times_ns[place] = float(times_ns[number])
            self._accessed[place] = float(accessed[number])
        self._left -= float(times_ns.sum())
        self._budget.left -= float(times_ns.sum())

    def _checked(self, units: Sequence[Unit], *, is_watched: bool = False) -> RawCounts:
        """Run units; raises UncountedError."""
        run = self._loaded.run(self._config, units, most_turns=_MOST_TURNS, is_watched=is_watched)
        self._ranges[:, 0] = np.minimum(self._ranges[:, 0], run.ranges[:, 0])
        self._ranges[:, 1] = np.maximum(self._ranges[:, 1], run.ranges[:, 1])
        if run.flags & (_LOST | _CUT_OFF) and not is_watched:
            self._budget.left -= _TURN_NS * run.turns
        if run.flags & _LOST:
            raise UncountedError(
                "an access through a pointer that points to neither an argument nor a variable"
            )
        if run.flags & _CUT_OFF:
            raise UncountedError(
                f"loops of more than {_MOST_TURNS} iterations in {len(units)} sampled warps or "
                "work-groups"
            )
        if not run.rows.any(axis=1).all():  # each work-item runs at least the kernel's first block
            raise UncountedError("the runtime has not run the launch")
        return run

    def _group_bytes(self, sample: Sample) -> float | None:
        """Return the sum of the distinct bytes that each work-group touches; None if too costly."""
        of_units = sample.weights * np.array([self._accessed[place] for place in sample.places])
        total = float(of_units.sum())
        spent_ns = sum(self._times_ns.values())
        each_ns = max(self._times_ns.values()) * self._grid.warps_a_group
        number = reuse.affordable(spent_ns, each_ns)
        if not total or not number:
            return None if total else 0.0
        num_groups = self._grid.num_groups
        is_all = num_groups <= number
        units = reuse.drawn(of_units.tolist(), number)
        groups = [self._grid.unit(sample.places[unit]).group for unit in units]
        chosen = list(range(num_groups) if is_all else dict.fromkeys(groups))
        try:
            touched, accessed = self._watched(chosen)
        except UncountedError:
            return None
        except DeviceFailure as error:
            if error.sticky:
                raise
            return None
        if is_all:
            return float(sum(touched))
        places = [chosen.index(group) for group in groups]
        return reuse.of_launch(total, [touched[n] for n in places], [accessed[n] for n in places])

    def _watched(self, groups: Sequence[int]) -> tuple[list[float], list[float]]:
        """Run whole work-groups; return the distinct bytes and the accessed bytes of each.

        These runs use no budget, so that the counts do not depend on them.
        """
        touched: list[float] = []
        accessed: list[float] = []
        lanes = self._grid.num_lanes
        at_once = max(1, _MOST_ROWS // (lanes * len(self._copy.blocks)))
        for start in range(0, len(groups), at_once):
            some = groups[start : start + at_once]
            units = [
                self._grid.unit(one) for group in some for one in self._grid.places_of_group(group)
            ]
            run = self._checked(units, is_watched=True)
            touched += run.touched.tolist()
            ran = np.add.reduceat(run.rows, range(0, len(run.rows), lanes), dtype=np.uint64)
            accessed += (ran @ self._bytes_of_blocks).tolist()
        return touched, accessed

    def _busiest(self, place: Place) -> npt.NDArray[np.uint32]:
        busiest: npt.NDArray[np.uint32] = self._runs[place].rows.max(axis=0)
        return busiest

    def _sample(self, places: Sequence[Place], parts: Sequence[Box]) -> Sample:
        return sample_of(self._runs, places, parts, grid=self._grid, diagonal=self._diagonal)
