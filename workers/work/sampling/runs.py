"""Run units of one launch, within the time that is left, and keep what they did.

Owns the budgets of a launch and of a kernel, and the counts, the work and the access ranges of the
units that have run. ``workers/work/launch.py`` decides which units run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from llmperf_common.records import LaunchConfig
from workers.device.interface import AccessRange
from workers.work.counted_copy import CountedCopy
from workers.work.estimate import block_bytes, block_costs, block_ns
from workers.work.opencl_virtual import RawCounts, VirtualKernel
from workers.work.sampling.cuts import KeyOf
from workers.work.sampling.sample import UnitCounts
from workers.work.sampling.units import WARP, Grid, Place, Unit

_MOST_TURNS = 2**23
"""Maximum loop iterations of one run. A launch whose first unit makes more is not counted."""
_MOST_ROWS = 2**22
"""Maximum counters (work-items x blocks) of one run, which limits its memory."""
_LAUNCH_NS = 1e7
"""Maximum estimated time of a sample beyond its first unit, in ns (``block_ns``)."""
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


class UnitRuns:
    """The units of one launch config that have run; a unit is a warp or a work-group (``units.py``).

    ``counts``, ``works`` (blocks, operations and accesses), ``times_ns`` (estimated) and
    ``accessed`` (bytes) have an entry for each unit.

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
        self._loaded, self.copy, self.config, self.grid = loaded, copy, config, grid
        self.counts: dict[Place, UnitCounts] = {}
        self.works: dict[Place, float] = {}
        self.times_ns: dict[Place, float] = {}
        self.accessed: dict[Place, float] = {}
        self.left_ns = _LAUNCH_NS
        self._budget = budget
        self._bytes_of_blocks = block_bytes(copy)
        self._work_of_blocks = 1 + block_costs(copy)
        self._ns_of_blocks = block_ns(copy) * (1 if copy.is_optimised else _OF_GROUP)
        self._ranges: npt.NDArray[np.int64] = np.zeros((len(copy.positions), 2), np.int64)

    def __len__(self) -> int:
        return len(self.counts)

    def __contains__(self, place: Place) -> bool:
        return place in self.counts

    @property
    def each_ns(self) -> float:
        """Mean estimated time of the units that have run."""
        return max(1.0, sum(self.times_ns.values()) / len(self.times_ns))

    def busiest(self, place: Place) -> npt.NDArray[np.uint32]:
        """Return how often the busiest work-item of a unit ran each block, shape (blocks,)."""
        busiest: npt.NDArray[np.uint32] = self.counts[place].rows.max(axis=0)
        return busiest

    def access_ranges(self) -> tuple[AccessRange, ...]:
        """Return the ranges of the pointer arguments that the units have accessed so far."""
        return tuple(
            AccessRange(position=position, start_bytes=start, end_bytes=end, site=0)
            for position, (start, end) in zip(
                self.copy.positions, self._ranges.tolist(), strict=True
            )
            if start or end
        )

    def key_within(self, limit: int, *, is_regular: bool, least_left: float = 0.0) -> KeyOf:
        """Return a function that runs units until ``limit`` have run or little time is left."""

        def key_of(place: Place) -> bytes | None:
            is_new = place not in self.counts
            is_over = len(self.counts) >= limit or self.left_ns < least_left
            if is_new and (is_over or not self.run_some([place])):
                return None
            busiest = self.busiest(place)
            return (busiest if is_regular else busiest > 0).tobytes()

        return key_of

    def amount_within(self, limit: int) -> Callable[[Place], float | None]:
        """Return a function that returns units' work, and runs units until ``limit`` have run."""

        def amount_of(place: Place) -> float | None:
            if place not in self.counts and (
                len(self.counts) >= limit or not self.run_some([place])
            ):
                return None
            return self.works[place]

        return amount_of

    def run_some(self, places: Sequence[Place], *, at_least: int = 0) -> list[Place]:
        """Run units in order while the budget lasts, but at least ``at_least``; return these units.

        Units that have run before cost nothing.
        """
        done: list[Place] = []
        while len(done) < len(places):
            if places[len(done)] in self.counts:
                done.append(places[len(done)])
                continue
            number = len(places) - len(done)
            if self.counts:
                number = min(number, max(int(self.left_ns / self.each_ns), at_least - len(done)))
            else:
                number = 1
            if number < 1:
                break
            some = places[len(done) : len(done) + number]
            self.run_all(some)
            done += some
        return done

    def run_all(self, places: Sequence[Place]) -> list[Place]:
        """Run units that have not run, whatever they cost; return ``places``.

        Raises:
            UncountedError: The kernel's budget is used up, or what the units did cannot be counted.
        """
        fresh = [place for place in dict.fromkeys(places) if place not in self.counts]
        lanes = self.grid.num_lanes if self.copy.by_groups else WARP
        at_once = max(1, _MOST_ROWS // (lanes * len(self.copy.blocks)))
        for start in range(0, len(fresh), at_once):
            self._run(fresh[start : start + at_once])
        return list(places)

    def _run(self, places: Sequence[Place]) -> None:
        if self._budget.left <= 0:
            raise UncountedError("other launches of this kernel have used up its budget")
        units = [self.grid.unit(place) for place in places]
        run = self._checked(units)
        warps = len(run.seen) // len(units)
        starts = np.cumsum([0, *(unit.num_lanes for unit in units)])
        ran = np.add.reduceat(run.rows, starts[:-1], axis=0, dtype=np.uint64)
        works, accessed = ran @ self._work_of_blocks, ran @ self._bytes_of_blocks
        times_ns = ran @ self._ns_of_blocks
        for number, place in enumerate(places):
            self.counts[place] = UnitCounts(
                rows=run.rows[starts[number] : starts[number + 1]],
                seen=run.seen[number * warps : (number + 1) * warps],
                met=run.met[number],
            )
            self.works[place] = float(works[number])
            self.times_ns[place] = float(times_ns[number])
            self.accessed[place] = float(accessed[number])
        self.left_ns -= float(times_ns.sum())
        self._budget.left -= float(times_ns.sum())

    def _checked(self, units: Sequence[Unit], *, is_watched: bool = False) -> RawCounts:
        """Run units; raises UncountedError."""
        run = self._loaded.run(self.config, units, most_turns=_MOST_TURNS, is_watched=is_watched)
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

    def watched(self, groups: Sequence[int]) -> tuple[list[float], list[float]]:
        """Run whole work-groups; return the distinct bytes and the accessed bytes of each.

        These runs use no budget, so that the counts do not depend on them.
        """
        touched: list[float] = []
        accessed: list[float] = []
        lanes = self.grid.num_lanes
        at_once = max(1, _MOST_ROWS // (lanes * len(self.copy.blocks)))
        for start in range(0, len(groups), at_once):
            some = groups[start : start + at_once]
            units = [
                self.grid.unit(one) for group in some for one in self.grid.places_of_group(group)
            ]
            run = self._checked(units, is_watched=True)
            touched += run.touched.tolist()
            ran = np.add.reduceat(run.rows, range(0, len(run.rows), lanes), dtype=np.uint64)
            accessed += (ran @ self._bytes_of_blocks).tolist()
        return touched, accessed
