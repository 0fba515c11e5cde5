"""Estimate the work of a launch from the counts of a sample.

Owns the estimates and their error, and the time that counting takes. Pure functions of the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from llmperf_common.features.work import Work
from workers.work.counted_copy import NUM_TURNS, WATCHED_WARPS, CountedCopy
from workers.work.sampling.sample import Sample, UnitCounts
from workers.work.sampling.units import WARP

_Floats = npt.NDArray[np.float64]
TALLIED = (
    "fp32_ops", "fp64_ops", "fp16_ops", "int_ops", "special_ops", "global_loads",
    "global_load_bytes", "global_stores", "global_store_bytes", "constant_loads",
    "constant_load_bytes", "local_loads", "local_load_bytes", "local_stores", "local_store_bytes",
    "global_atomics", "local_atomics", "barriers",
)  # fmt: skip
"""The names in the tallies of blocks; each is a field of ``Work``."""
_OF_WORK = (
    "fp32_ops", "fp64_ops", "fp16_ops", "int_ops", "special_ops", "global_loads", "global_stores",
    "constant_loads", "local_loads", "local_stores", "global_atomics", "local_atomics",
)  # fmt: skip
"""Names of the counts whose sum is the work of a work-item when work-items are compared."""


_ACCESSES = (
    "global_loads", "global_stores", "constant_loads", "local_loads", "local_stores",
    "global_atomics", "local_atomics",
)  # fmt: skip
_PLAIN = ("fp32_ops", "fp64_ops", "fp16_ops", "int_ops")
_SPECIAL = ("special_ops",)
_BLOCK_NS, _ACCESS_NS, _PLAIN_NS, _SPECIAL_NS = 2.0, 20.0, 0.2, 10.0
_ATOMIC_BYTES = 4
_LARGEST_ERROR = 10.0
"""Maximum relative error that is reported. A larger error says no more."""
_ROUNDING = 1e-9
"""Relative error of a sum of weights, which are rounded."""
_FEW, _LEAST_SPREAD = 4, 0.5
"""Units of a part that prove little if they are equal; the standard deviation, as a share of their
mean, that is assumed then."""
_SHARED = 4
"""Number of sampled units. If so many access one address atomically, all units of the launch are
assumed to access this address."""


def estimate(copy: CountedCopy, sample: Sample, *, without_barriers: bool) -> Work:
    """Return the estimated work of a whole launch.

    Args:
        copy: the counted copy that ran.
        sample: the units of the launch that ran (warps or work-groups, see ``units.py``).
        without_barriers: whether the copy ran without its barriers; only recorded in the result.
    """
    rows = np.concatenate([one.rows for one in sample.counts]).astype(np.float64)
    lanes, of_units = sample.lanes, sample.weights
    weights = np.repeat(of_units, lanes)
    tallies = _tallies(copy)
    per_block = weights @ rows
    totals = {name: float(per_block @ tallies[name]) for name in TALLIED}
    cost = block_costs(copy)
    writes = tallies["global_stores"] + tallies["global_atomics"]
    # One product, because it has to read all rows; they are integers, so each sum is exact.
    of_items, num_blocks, num_writes = np.stack((cost, np.ones_like(cost), writes)) @ rows.T
    busiest, warp_weights = _busiest(rows, lanes, of_units)
    of_warps = busiest @ (cost + 1)
    turns = np.array([one.is_turn for one in copy.blocks], dtype=np.float64)
    return Work(
        **totals,
        **_requests(copy, sample, warp_weights @ busiest, of_units),
        global_atomic_peak=_atomic_peak(sample),
        group_bytes=sample.group_bytes,
        loop_turns=float(per_block @ turns),
        active_items=float(weights @ (num_writes > 0)),
        lane_efficiency=float(
            weights @ (of_items + num_blocks) / (WARP * float(warp_weights @ of_warps))
        ),
        item_spread=_spread(of_items, weights),
        warp_peak=float(of_warps.max() * warp_weights.sum() / (warp_weights @ of_warps)),
        sampled_items=len(rows),
        is_exact=sample.is_exact,
        relative_error=_relative_error(copy, sample),
        without_barriers=without_barriers,
    )


def block_costs(copy: CountedCopy) -> _Floats:
    """Return the number of operations and accesses in one execution of each block."""
    tallies = _tallies(copy)
    costs: _Floats = sum((tallies[name] for name in _OF_WORK), np.zeros(len(copy.blocks)))
    return costs


def block_ns(copy: CountedCopy) -> _Floats:
    """Return the estimated time that the counted copy takes for one execution of each block, in ns.

    Fitted to 871 runs of 60 kernels on two processors with PoCL: an access takes 14 ns, a special
    function 8 ns, another operation 0.1 ns. The values are a third to a half higher than the fit,
    because accesses that fill new blocks of a store took 100 ns.
    """
    tallies = _tallies(copy)
    time_ns: _Floats = np.full(len(copy.blocks), _BLOCK_NS)
    for names, each_ns in ((_ACCESSES, _ACCESS_NS), (_PLAIN, _PLAIN_NS), (_SPECIAL, _SPECIAL_NS)):
        for name in names:
            time_ns += each_ns * tallies[name]
    return time_ns


def block_bytes(copy: CountedCopy) -> _Floats:
    """Return the bytes of global memory that one execution of each block accesses; 4 per atomic."""
    tallies = _tallies(copy)
    return (
        tallies["global_load_bytes"]
        + tallies["global_store_bytes"]
        + _ATOMIC_BYTES * tallies["global_atomics"]
    )


@lru_cache(maxsize=4)
def _tallies(copy: CountedCopy) -> dict[str, _Floats]:
    return {
        name: np.array([block.tally.get(name, 0) for block in copy.blocks], dtype=np.float64)
        for name in TALLIED
    }


def _busiest(
    rows: _Floats, lanes: npt.NDArray[np.int64], weights: _Floats
) -> tuple[_Floats, _Floats]:
    """Return for each warp how often its busiest lane ran each block, and the warp's weight."""
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
    """Return requests, sectors, lines and atomic addresses of accesses to global memory.

    A warp makes as many requests at a site as its busiest lane. The sectors of a request are
    counted only in some iterations, and for a wide access only in its first request.

    Args:
        copy: the counted copy, which has the sites.
        sample: the units that ran.
        busiest: for each block, executions by the busiest lane, summed over the launch's warps.
        weights: the weights of the units.
    """
    of_turns = np.array([_turn_weight(slot) for slot in range(NUM_TURNS)])
    seen = np.concatenate([one.seen for one in sample.counts])
    of_warps = np.repeat(weights, WATCHED_WARPS if copy.by_groups else 1)
    sectors, lines = seen & 0xFFFF, seen >> 16
    touched = of_warps @ ((sectors > 0) @ of_turns)
    parts = {
        what: _ratio(of_warps @ (one.astype(np.float64) @ of_turns), touched)
        for what, one in (("sectors", sectors), ("lines", lines))
    }
    parts["addresses"] = parts["sectors"]
    names = {"load": ("sectors", "lines"), "store": ("sectors", "lines"), "atomic": ("addresses",)}
    found = {
        f"global_{use}_{what}": 0.0 for use, some in names.items() for what in ("requests", *some)
    }
    unseen = dict.fromkeys(names, 0.0)
    for number, site in enumerate(copy.sites, start=1):
        if site is None:
            continue
        requests = site.requests * float(busiest[site.block])
        for use in site.use.split("_"):
            if number >= copy.num_seen:
                unseen[use] += requests
            elif touched[number]:
                found[f"global_{use}_requests"] += requests
                for what in names[use]:
                    found[f"global_{use}_{what}"] += requests * float(parts[what][number])
    # Accesses that are not examined are assumed to be like the examined ones of the same use. If
    # there are none of this use, they are assumed to be like all loads and stores; an atomic
    # request is assumed to have one address.
    a_request = _blocks_a_request(found)
    for use, requests in unseen.items():
        seen_requests = found[f"global_{use}_requests"]
        for what in names[use]:
            if seen_requests:
                found[f"global_{use}_{what}"] *= 1 + requests / seen_requests
            else:
                found[f"global_{use}_{what}"] = requests * a_request.get(what, 1.0)
        found[f"global_{use}_requests"] += requests
    return found


def _blocks_a_request(found: Mapping[str, float]) -> dict[str, float]:
    """Return how many sectors and lines a load or store touches on average; 1 if none ran."""
    uses = ("load", "store")
    requests = sum(found[f"global_{use}_requests"] for use in uses)
    return {
        what: sum(found[f"global_{use}_{what}"] for use in uses) / requests if requests else 1.0
        for what in ("sectors", "lines")
    }


def _ratio(amount: _Floats, of: _Floats) -> _Floats:
    return np.divide(amount, of, out=np.zeros(of.shape), where=of > 0)


def _atomic_peak(sample: Sample) -> float:
    """Return the largest number of atomic operations on one address of global memory.

    A unit is a warp or a work-group. If at least ``_SHARED`` sampled units access an address (in a
    smaller sample: all of them, but at least two), all units of the launch are assumed to access
    it. For other addresses only the observed operations count, because a few units can access the
    same scattered address by chance.
    """
    weights = np.repeat(sample.weights, [len(one.met) for one in sample.counts])
    met = np.concatenate([one.met for one in sample.counts])
    is_met = met[:, 1] > 0
    if not is_met.any():
        return 0.0
    _, places = np.unique(met[is_met, 0], return_inverse=True)
    counts = met[is_met, 1].astype(np.float64)
    num_units = np.bincount(places)
    scaled = np.bincount(places, counts * weights[is_met])
    alone = np.bincount(places, counts)
    is_shared = num_units >= max(2, min(_SHARED, len(sample.counts)))
    return float(np.where(is_shared, scaled, alone).max())


def _turn_weight(slot: int) -> float:
    """Return how many loop iterations a sampled iteration represents (``lp_sampled``, hooks.cl)."""
    return 1.0 if slot < 8 else float(1 << (2 + (slot - 8) // 2))


def _spread(values: _Floats, weights: _Floats) -> float:
    mean = float(weights @ values / weights.sum())
    if not mean:
        return 0.0
    return float(np.sqrt(weights @ (values - mean) ** 2 / weights.sum())) / mean


def global_accesses(copy: CountedCopy) -> _Floats:
    """Return the number of accesses to global memory in one execution of each block."""
    tallies = _tallies(copy)
    return tallies["global_loads"] + tallies["global_stores"] + tallies["global_atomics"]


def misses_accesses(copy: CountedCopy, sample: Sample, ends: Sequence[UnitCounts]) -> bool:
    """Whether code with accesses to global memory ran only in units that are not typical.

    Units that did not run may execute it, too, with other addresses. If one of the ``ends`` (units
    of the launch that reach furthest) ran it, the others are taken to access lower addresses.
    """
    missed = sample.unseen & (global_accesses(copy) > 0)
    for one in ends:
        missed &= ~one.rows.any(axis=0)
    if sample.is_exact or not missed.any():
        return False
    return bool(sample.executed[:, missed].any()) or any(
        one.rows[:, missed].any() for one in sample.others
    )


def _relative_error(copy: CountedCopy, sample: Sample) -> float:
    """Return the relative error of the work or of the accesses to global memory: the larger one."""
    if sample.is_exact:
        return 0.0
    errors = (
        _standard_error(sample, of_blocks) + _unseen_error(copy, sample, of_blocks)
        for of_blocks in (block_costs(copy), global_accesses(copy))
    )
    return min(_LARGEST_ERROR, max(errors))


def _standard_error(sample: Sample, of_blocks: _Floats) -> float:
    """Return the relative standard error of a sum as if each part were sampled at random.

    Our samples are evenly spread, and their error is no larger. But fewer than ``_FEW`` equal units
    prove little: their spread is assumed to be at least ``_LEAST_SPREAD`` of their mean.
    """
    of_units = sample.executed @ of_blocks
    total = float(sample.weights @ of_units)
    if not total:
        return 0.0
    variance = 0.0
    for number in np.unique(sample.strata):
        is_here = sample.strata == number
        count, units = int(is_here.sum()), float(sample.weights[is_here].sum())
        # One unit says nothing about the spread: assume an error as large as its value.
        spread = of_units[is_here].var(ddof=1) if count > 1 else of_units[is_here][0] ** 2
        if count < _FEW:
            spread = max(spread, (_LEAST_SPREAD * of_units[is_here].mean()) ** 2)
        variance += units**2 * float(spread) / count * max(0.0, 1 - count / units)
    return float(np.sqrt(variance)) / total


def _unseen_error(copy: CountedCopy, sample: Sample, of_blocks: _Floats) -> float:
    """Return the error due to blocks that no work-item of a typical part has executed.

    Assumes for each part in which no unit executed such a block that one unit in n does, if n units
    of the part ran. A work-item executes the block once, or as often as in other units that
    executed it. The result is relative to what was counted. It is 1 if nothing was counted, and at
    least 1 if no store was counted, but such a block has one. ``of_blocks``: the work or the
    accesses in one execution of each block.
    """
    tallies = _tallies(copy)
    writes = tallies["global_stores"] + tallies["global_atomics"]
    is_unseen = sample.unseen & (of_blocks > 0)
    if not is_unseen.any():
        return 0.0
    times = np.maximum(1.0, (sample.executed / sample.lanes[:, np.newaxis]).max(axis=0))
    for one in sample.others:
        times = np.maximum(times, one.rows.mean(axis=0))
    items = np.zeros_like(of_blocks)
    for number in np.unique(sample.strata):
        is_here = sample.strata == number
        count, units = int(is_here.sum()), float(sample.weights[is_here].sum())
        if count < units * (1 - _ROUNDING):
            ran_here = sample.executed[is_here].any(axis=0)
            items[~ran_here] += float(sample.weights[is_here] @ sample.lanes[is_here]) / count
    per_block = sample.weights @ sample.executed
    unseen = float((items * of_blocks * times)[is_unseen].sum())
    seen = float(per_block @ of_blocks)
    error = unseen / seen if seen else float(unseen > 0)
    if (items * writes)[is_unseen].any() and not per_block @ writes:
        error = max(1.0, error)
    return error
