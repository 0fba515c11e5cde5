"""From the counts of a sample to the work of a launch.

Owns the estimates and their error; a pure function of what was counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmperf_common.features.work import Work
from workers.work.counted_copy import NUM_TURNS, WATCHED_WARPS, CountedCopy
from workers.work.units import WARP

_Floats = npt.NDArray[np.float64]
TALLIED = (
    "fp32_ops", "fp64_ops", "fp16_ops", "int_ops", "special_ops", "global_loads", "global_load_bytes",
    "global_stores", "global_store_bytes", "constant_loads", "constant_load_bytes", "local_loads",
    "local_load_bytes", "local_stores", "local_store_bytes", "global_atomics", "local_atomics", "barriers",
)  # fmt: skip
"""What the tallies of blocks name; each is a field of ``Work``."""
_OF_WORK = (
    "fp32_ops", "fp64_ops", "fp16_ops", "int_ops", "special_ops", "global_loads", "global_stores",
    "constant_loads", "local_loads", "local_stores", "global_atomics", "local_atomics",
)  # fmt: skip
"""What the work of a work-item is the sum of, where work-items are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCounts:
    """What one unit did.

    ``rows``: shape (work-items, blocks), how often each ran each block. ``seen``: shape (warps, sites, turns), how many
    sectors the warp touched together; of work-groups, the watched warps.
    """

    rows: npt.NDArray[np.uint32]
    seen: npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The units of a launch that ran.

    ``weights``: how many units each stands for. ``strata``: which part of the launch each was drawn from.
    ``is_exact``: they are all there are.
    """

    counts: tuple[UnitCounts, ...]
    weights: _Floats
    strata: npt.NDArray[np.int64]
    is_exact: bool


def estimate(copy: CountedCopy, sample: Sample, *, without_barriers: bool) -> Work:
    """Return the work of a launch from a sample of its units."""
    rows = np.concatenate([one.rows for one in sample.counts]).astype(np.float64)
    lanes = np.array([len(one.rows) for one in sample.counts])
    of_units = sample.weights
    weights = np.repeat(of_units, lanes)
    tallies = _tallies(copy)
    per_block = weights @ rows
    totals = {name: float(per_block @ tallies[name]) for name in TALLIED}
    cost = block_costs(copy)
    of_items = rows @ cost
    busiest, warp_weights = _busiest(rows, lanes, of_units)
    of_warps = busiest @ (cost + 1)
    writes = tallies["global_stores"] + tallies["global_atomics"] > 0
    turns = np.array([one.is_turn for one in copy.blocks], dtype=np.float64)
    return Work(
        **totals,
        **_requests(copy, sample, warp_weights @ busiest, of_units),
        loop_turns=float(per_block @ turns),
        active_items=float(weights @ (rows[:, writes].sum(axis=1) > 0)),
        lane_efficiency=float(
            weights @ (rows @ (cost + 1)) / (WARP * float(warp_weights @ of_warps))
        ),
        item_spread=_spread(of_items, weights),
        warp_peak=float(of_warps.max() * warp_weights.sum() / (warp_weights @ of_warps)),
        sampled_items=len(rows),
        is_exact=sample.is_exact,
        relative_error=0.0 if sample.is_exact else _relative_error(of_items, lanes, sample),
        without_barriers=without_barriers,
    )


def block_costs(copy: CountedCopy) -> _Floats:
    """Return how many operations and accesses one execution of each block has."""
    tallies = _tallies(copy)
    costs: _Floats = sum((tallies[name] for name in _OF_WORK), np.zeros(len(copy.blocks)))
    return costs


def _tallies(copy: CountedCopy) -> dict[str, _Floats]:
    return {
        name: np.array([block.tally.get(name, 0) for block in copy.blocks], dtype=np.float64)
        for name in TALLIED
    }


def _busiest(
    rows: _Floats, lanes: npt.NDArray[np.int64], weights: _Floats
) -> tuple[_Floats, _Floats]:
    """Return by warp how often its busiest lane ran each block, and each warp's weight."""
    starts: list[int] = []
    of_warps: list[float] = []
    start = 0
    for number, weight in zip(lanes.tolist(), weights.tolist(), strict=True):
        firsts = range(start, start + number, WARP)
        starts += firsts
        of_warps += [weight] * len(firsts)
        start += number
    return np.maximum.reduceat(rows, starts, axis=0), np.array(of_warps)


def _requests(
    copy: CountedCopy, sample: Sample, busiest: _Floats, weights: _Floats
) -> dict[str, float]:
    """Return requests and sectors of loads and stores in global memory.

    A warp makes as many requests at a site as its busiest lane. How many sectors each touches is seen of some turns.

    Args:
        copy: its sites.
        sample: what was seen.
        busiest: for each block, turns of the busiest lane, added up over all warps of the launch.
        weights: of the units.
    """
    of_turns = np.array([_turn_weight(slot) for slot in range(NUM_TURNS)])
    seen = np.concatenate([one.seen for one in sample.counts])
    sectors = (seen & 0xFFFF).astype(np.float64)
    of_warps = np.repeat(weights, WATCHED_WARPS if copy.by_groups else 1)
    touched = of_warps @ ((sectors > 0) @ of_turns)
    summed = of_warps @ (sectors @ of_turns)
    found = {
        f"global_{use}_{what}": 0.0 for use in ("load", "store") for what in ("requests", "sectors")
    }
    unseen = dict.fromkeys(("load", "store"), 0.0)
    for number, site in enumerate(copy.sites, start=1):
        if site is None:
            continue
        requests = float(busiest[site.block])
        for use in ("load", "store"):
            if use not in site.use:
                continue
            if number >= copy.num_seen:
                unseen[use] += requests
            elif touched[number]:
                found[f"global_{use}_requests"] += requests
                found[f"global_{use}_sectors"] += requests * float(summed[number] / touched[number])
    for use, requests in unseen.items():
        # A kernel with more accesses than are looked at: the others are taken for the same.
        seen_requests = found[f"global_{use}_requests"]
        if seen_requests:
            found[f"global_{use}_sectors"] *= 1 + requests / seen_requests
            found[f"global_{use}_requests"] += requests
    return found


def _turn_weight(slot: int) -> float:
    """Return how many turns of a loop a sampled one stands for (``lp_sampled`` in hooks.cl)."""
    return 1.0 if slot < 8 else float(1 << (2 + (slot - 8) // 2))


def _spread(values: _Floats, weights: _Floats) -> float:
    mean = float(weights @ values / weights.sum())
    if not mean:
        return 0.0
    return float(np.sqrt(weights @ (values - mean) ** 2 / weights.sum())) / mean


def _relative_error(of_items: _Floats, lanes: npt.NDArray[np.int64], sample: Sample) -> float:
    """Return the standard error of the estimate, relative: that of random samples of each part, which are no better."""
    starts = np.concatenate(([0], np.cumsum(lanes)[:-1]))
    of_units = np.add.reduceat(of_items, starts)
    total = float(sample.weights @ of_units)
    if not total:
        return 0.0
    variance = 0.0
    for number in np.unique(sample.strata):
        is_here = sample.strata == number
        count, units = int(is_here.sum()), float(sample.weights[is_here].sum())
        # Of one unit alone nothing is known: it may be as wrong as it is large.
        spread = of_units[is_here].var(ddof=1) if count > 1 else of_units[is_here][0] ** 2
        variance += units**2 * float(spread) / count * max(0.0, 1 - count / units)
    return float(np.sqrt(variance)) / total
