"""Features from the counted work of a launch: amounts, shares, and analytic times by hardware part.

Owns the features made from ``Work`` and the analytic times. The times are deliberately rough: each
is an amount / a rate, where the rate is a measured peak or the throughput of an NVIDIA compute unit
per clock. Models learn what these times lack. All features are NaN for a launch without counted
work.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from llmperf_common.features.launch_columns import LaunchColumns
from llmperf_common.features.roofline import WARP, log2_count, log2_or_nan, work_items
from llmperf_common.features.work import WORK_NAMES

Floats = npt.NDArray[np.float64]

SECTOR_BYTES = 32
_SECTORS_A_CLOCK = 4
"""Sectors per clock of a compute unit's first-level cache: 128 bytes, which is one request of a
warp."""
_LANES_A_CLOCK = {
    "fp32_ops": 128,
    "fp16_ops": 128,
    "int_ops": 64,
    "fp64_ops": 64,
    "special_ops": 16,
}
"""Operations that a compute unit starts per clock. GPUs with a lower double-precision rate are
recognised by their measured peak."""
_FMA = 2
"""Operations of a fused multiply-add. Measured peaks count two; most code has separate additions
and multiplications."""
_LATENCY_CLOCKS = {
    "fp32_ops": 5.0,
    "fp64_ops": 5.0,
    "fp16_ops": 5.0,
    "int_ops": 5.0,
    "special_ops": 20.0,
    "global_loads": 150.0,
    "constant_loads": 10.0,
    "local_loads": 20.0,
    "local_stores": 20.0,
    "global_atomics": 300.0,
    "local_atomics": 40.0,
    "barriers": 30.0,
}
"""Clocks until the next step of the same work-item can start, reduced because loads overlap."""
_NEAR_LOAD_CLOCKS = 10.0
"""Latency, in clocks, of a load from a compute unit's own cache."""
_NEAR_BYTES = 2**17
_ITEMS_A_UNIT, _GROUPS_A_UNIT = 2048, 32
"""Maximum numbers of work-items and of work-groups that are resident on a compute unit."""
_LEAST_EACH = 2.0**-10
"""Amount per work-item added before the logarithm, because smaller amounts do not matter."""

_AMOUNTS = (
    "fp32_ops", "fp64_ops", "fp16_ops", "int_ops", "special_ops", "global_loads", "global_stores",
    "global_load_sectors", "global_store_sectors", "constant_loads", "local_loads", "local_stores",
    "global_atomics", "local_atomics", "barriers", "loop_turns",
)  # fmt: skip

_TERMS: dict[str, str] = {
    "dram": "min(bytes of sectors, buffer bytes) / DRAM bandwidth; 0 if the buffers fit the cache",
    "l2": "sectors that loads and stores request from L1 / last-level-cache bandwidth",
    "l1": "max(requests of warps, sectors / 4) / clock rate, summed over the used compute units",
    "compute": "operations by kind / throughput of the used compute units, idle lanes included",
    "local": "accesses to local memory / throughput of the used compute units",
    "atomic": "atomic operations / throughput (in global memory: one warp's operations per clock)",
    "latency": "latencies of the busiest warp's steps, summed; loads from small buffers are faster",
    "wave": "the latency term x number of rounds of resident work-groups",
}
"""Meaning of each analytic time by its name; the launch floor is not among these times."""

WORK_MEANINGS: dict[str, str] = {
    **{f"counted_{name}": f"log2(1 + {name} of the launch)" for name in _AMOUNTS},
    **{f"counted_{name}_each": f"log2(1/1024 + {name} per work-item)" for name in _AMOUNTS},
    "counted_active_items": "log2(1 + work-items that write global memory)",
    "counted_active_share": "share of work-items that write global memory",
    "counted_sectors_a_load": "log2 of 32-byte sectors per load request of a warp",
    "counted_sectors_a_store": "log2 of 32-byte sectors per store request of a warp",
    "counted_reuse": "log2(32 x sectors / buffer bytes)",
    "counted_lane_efficiency": "share of a warp's lanes that are active while the warp runs",
    "counted_item_spread": "log2(1 + standard deviation / mean of the work of work-items)",
    "counted_warp_peak": "log2 of the busiest warp's work / the mean",
    "counted_unsure": "1 if barriers were ignored while counting and their effect was not checked",
    "counted_error": "standard error of the count, as a share of the count",
    **{f"counted_{name}_term_ns": f"log2(1 + ns), {meaning}" for name, meaning in _TERMS.items()},
    "counted_time_ns": "log2 of the sum of the launch floor and all terms except wave",
    "counted_bound_ns": "log2 of the largest of the launch floor and all terms except wave",
    "counted_lines_a_load": "log2 of 128-byte lines per load request of a warp",
    "counted_lines_a_store": "log2 of 128-byte lines per store request of a warp",
    "counted_group_bytes": "log2(1 + distinct bytes that a work-group touches)",
    "counted_group_reuse": "log2(bytes loaded and stored / distinct bytes that work-groups touch)",
    "counted_atomic_sharing": "log2(global atomics / distinct addresses per warp request)",
    "counted_atomic_peak": "log2(1 + atomic operations on the most used address)",
}


def work_features(columns: LaunchColumns) -> dict[str, Floats]:
    """Return the features of ``WORK_MEANINGS``, in that order, shape (n,) each."""
    work = _by_name(columns)
    items = work_items(columns)
    values = {f"counted_{name}": _log2_amount(work[name]) for name in _AMOUNTS}
    for name in _AMOUNTS:
        values[f"counted_{name}_each"] = log2_or_nan(_LEAST_EACH + work[name] / items)
    sectors = work["global_load_sectors"] + work["global_store_sectors"]
    terms = work_terms_ns(columns)
    parts = np.stack(
        [columns.device_number("launch_floor_ns"), *(terms[n] for n in _TERMS if n != "wave")]
    )
    return values | {
        "counted_active_items": _log2_amount(work["active_items"]),
        "counted_active_share": work["active_items"] / items,
        "counted_sectors_a_load": _log2_ratio(
            work["global_load_sectors"], work["global_load_requests"]
        ),
        "counted_sectors_a_store": _log2_ratio(
            work["global_store_sectors"], work["global_store_requests"]
        ),
        "counted_reuse": _log2_ratio(SECTOR_BYTES * sectors, columns.buffer_bytes),
        "counted_lane_efficiency": work["lane_efficiency"],
        "counted_item_spread": _log2_amount(work["item_spread"]),
        "counted_warp_peak": log2_or_nan(work["warp_peak"]),
        "counted_unsure": work["without_barriers"],
        "counted_error": work["relative_error"],
        **{f"counted_{name}_term_ns": _log2_amount(terms[name]) for name in _TERMS},
        "counted_time_ns": log2_or_nan(parts.sum(axis=0)),
        "counted_bound_ns": log2_or_nan(parts.max(axis=0)),
        **_later_features(work, groups=_num_groups(columns)),
    }


def _later_features(work: dict[str, Floats], *, groups: Floats) -> dict[str, Floats]:
    """Return the features made from ``OPTIONAL_WORK``; NaN where those counts are missing."""
    bytes_moved = work["global_load_bytes"] + work["global_store_bytes"]
    return {
        "counted_lines_a_load": _log2_ratio(
            work["global_load_lines"], work["global_load_requests"]
        ),
        "counted_lines_a_store": _log2_ratio(
            work["global_store_lines"], work["global_store_requests"]
        ),
        "counted_group_bytes": _log2_amount(work["group_bytes"] / groups),
        "counted_group_reuse": -_log2_ratio(work["group_bytes"], bytes_moved),
        "counted_atomic_sharing": -_log2_ratio(
            work["global_atomic_addresses"], work["global_atomics"]
        ),
        "counted_atomic_peak": _log2_amount(work["global_atomic_peak"]),
    }


def work_terms_ns(columns: LaunchColumns) -> dict[str, Floats]:
    """Return the analytic times of ``_TERMS`` in ns, shape (n,); NaN where an input is unknown."""
    work = _by_name(columns)
    items, local = work_items(columns), np.prod(columns.local_size, axis=1)
    groups = _num_groups(columns)
    units = columns.device_number("compute_units")
    clocks_a_ns = columns.device_number("max_clock_mhz") / 1e3
    rate = np.minimum(groups, units) * clocks_a_ns
    """Clocks per nanosecond, summed over all compute units that have a work-group."""
    sectors = work["global_load_sectors"] + work["global_store_sectors"]
    requests = work["global_load_requests"] + work["global_store_requests"]
    moved = SECTOR_BYTES * sectors
    is_cached = columns.buffer_bytes <= columns.device_number("last_level_cache_bytes")
    compulsory = np.where(is_cached, 0.0 * moved, np.minimum(moved, columns.buffer_bytes))
    # For GPUs with few double-precision units use the measured peak, which counts a fused
    # multiply-add as two.
    doubles_a_clock = columns.device_number("peak_fp64_gflops") / (_FMA * units * clocks_a_ns)
    lanes = {name: np.full(len(items), float(number)) for name, number in _LANES_A_CLOCK.items()}
    lanes["fp64_ops"] = np.fmin(lanes["fp64_ops"], doubles_a_clock)
    busy = np.clip(work["lane_efficiency"], 1 / WARP, 1.0)
    clocks = sum((work[name] / number for name, number in lanes.items()), np.zeros(len(items)))
    steps = sum(
        (work[name] / items * number for name, number in _LATENCY_CLOCKS.items()),
        np.zeros(len(items)),
    )
    # Small buffers fit into the compute unit's own cache, where loads take less time: subtract the
    # difference.
    is_near = columns.buffer_bytes <= _NEAR_BYTES
    saved = (_LATENCY_CLOCKS["global_loads"] - _NEAR_LOAD_CLOCKS) * work["global_loads"] / items
    steps = np.where(is_near, steps - saved, steps)
    latency = steps * work["warp_peak"] / clocks_a_ns
    resident = np.clip(_ITEMS_A_UNIT // (np.ceil(local / WARP) * WARP), 1, _GROUPS_A_UNIT)
    return {
        "dram": compulsory / columns.device_number("peak_dram_gbps"),
        "l2": moved / columns.device_number("peak_l2_gbps"),
        "l1": np.maximum(requests, sectors / _SECTORS_A_CLOCK) / rate,
        "compute": clocks / busy / rate,
        "local": (work["local_loads"] + work["local_stores"]) / WARP / rate,
        "atomic": work["global_atomics"] / (WARP * clocks_a_ns)
        + work["local_atomics"] / (4 * rate),
        "latency": latency,
        "wave": latency * np.ceil(groups / (units * resident)),
    }


def _num_groups(columns: LaunchColumns) -> Floats:
    groups: Floats = np.prod(np.ceil(columns.global_size / columns.local_size), axis=1)
    return groups


def _by_name(columns: LaunchColumns) -> dict[str, Floats]:
    return {name: columns.work[:, place] for place, name in enumerate(WORK_NAMES)}


def _log2_amount(values: Floats) -> Floats:
    """Return log2(1 + x); NaN where x is NaN."""
    return np.where(np.isnan(values), np.nan, log2_count(np.nan_to_num(values)))


def _log2_ratio(amount: Floats, of: Floats) -> Floats:
    """Return log2(amount / of); 0 where ``of`` is 0, NaN where the amount is unknown."""
    ratio = np.divide(amount, of, out=np.ones(amount.shape), where=of > 0)
    return np.where(np.isnan(amount), np.nan, np.log2(np.maximum(ratio, _LEAST_EACH)))
