"""What a launch executes, as features: amounts, shares, and the time each part of the device would need for them.

Owns the features made of ``Work`` and the analytic time. Rough on purpose: each term is an amount over a rate, rates are
measured peaks or what a compute unit of NVIDIA GPUs does in a clock; models learn what is missing. All are NaN for a
launch whose work is not known.
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
"""A compute unit's first-level cache serves 128 bytes a clock, or one request of a warp."""
_LANES_A_CLOCK = {
    "fp32_ops": 128,
    "fp16_ops": 128,
    "int_ops": 64,
    "fp64_ops": 64,
    "special_ops": 16,
}
"""Operations a compute unit begins in a clock. The measured peak tells a GPU with less double precision apart."""
_FMA = 2
"""Measured peaks count a fused multiply-add as two operations; most code has separate ones."""
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
"""Until the next step of the same work-item can begin; some loads are on their way together."""
_NEAR_LOAD_CLOCKS = 10.0
"""Of a load from buffers that a compute unit's own cache holds."""
_NEAR_BYTES = 2**17
_ITEMS_A_UNIT, _GROUPS_A_UNIT = 2048, 32
"""Resident on a compute unit at once, at most."""
_LEAST_EACH = 2.0**-10
"""Added to amounts a work-item, before the logarithm: less is nothing."""

_AMOUNTS = (
    "fp32_ops", "fp64_ops", "fp16_ops", "int_ops", "special_ops", "global_loads", "global_stores",
    "global_load_sectors", "global_store_sectors", "constant_loads", "local_loads", "local_stores",
    "global_atomics", "local_atomics", "barriers", "loop_turns",
)  # fmt: skip

_TERMS: dict[str, str] = {
    "dram": "smaller of sectors and buffers, where these are larger than the cache, / DRAM bandwidth",
    "l2": "sectors of loads and stores / last-level-cache bandwidth",
    "l1": "requests of warps, or sectors, / what the used compute units' first-level caches serve",
    "compute": "operations by kind / what the used compute units do, idle lanes included",
    "local": "accesses to local memory / what the used compute units do",
    "atomic": "atomic operations, those in global memory one warp's a clock",
    "latency": "of the busiest warp, step after step, loads from small buffers faster",
    "wave": "the same, for each round of work-groups that compute units can hold",
}
"""The analytic times, without the launch floor."""

WORK_MEANINGS: dict[str, str] = {
    **{f"counted_{name}": f"log2(1 + {name} of the launch)" for name in _AMOUNTS},
    **{f"counted_{name}_each": f"log2(1/1024 + {name} a work-item)" for name in _AMOUNTS},
    "counted_active_items": "log2(1 + work-items that write global memory)",
    "counted_active_share": "share of work-items that write global memory",
    "counted_sectors_a_load": "log2 of sectors a request of a warp's loads",
    "counted_sectors_a_store": "log2 of sectors a request of a warp's stores",
    "counted_reuse": "log2(32 x sectors / buffer bytes)",
    "counted_lane_efficiency": "share of a warp's lanes that work while it does",
    "counted_item_spread": "log2(1 + standard deviation / mean of the work of work-items)",
    "counted_warp_peak": "log2 of the busiest warp's work / the mean",
    "counted_unsure": "1 if what work-items that wait for each other do was not checked",
    "counted_error": "standard error of the count, as a share",
    **{f"counted_{name}_term_ns": f"log2(1 + ns), {meaning}" for name, meaning in _TERMS.items()},
    "counted_time_ns": "log2 of the launch floor and all terms but the rounds, added up",
    "counted_bound_ns": "log2 of the largest of them",
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
    }


def work_terms_ns(columns: LaunchColumns) -> dict[str, Floats]:
    """Return the analytic times of ``_TERMS`` in ns, shape (n,) each; NaN where work or a peak is not known."""
    work = _by_name(columns)
    items, local = work_items(columns), np.prod(columns.local_size, axis=1)
    groups = np.prod(np.ceil(columns.global_size / columns.local_size), axis=1)
    units = columns.device_number("compute_units")
    clocks_a_ns = columns.device_number("max_clock_mhz") / 1e3
    rate = np.minimum(groups, units) * clocks_a_ns
    """Clocks a nanosecond of all compute units that have a work-group."""
    sectors = work["global_load_sectors"] + work["global_store_sectors"]
    requests = work["global_load_requests"] + work["global_store_requests"]
    moved = SECTOR_BYTES * sectors
    is_cached = columns.buffer_bytes <= columns.device_number("last_level_cache_bytes")
    compulsory = np.where(is_cached, 0.0 * moved, np.minimum(moved, columns.buffer_bytes))
    # A device with few units for double precision: its measured peak, a fused multiply-add as two.
    doubles_a_clock = columns.device_number("peak_fp64_gflops") / (_FMA * units * clocks_a_ns)
    lanes = {name: np.full(len(items), float(number)) for name, number in _LANES_A_CLOCK.items()}
    lanes["fp64_ops"] = np.fmin(lanes["fp64_ops"], doubles_a_clock)
    busy = np.clip(work["lane_efficiency"], 1 / WARP, 1.0)
    clocks = sum((work[name] / number for name, number in lanes.items()), np.zeros(len(items)))
    steps = sum(
        (work[name] / items * number for name, number in _LATENCY_CLOCKS.items()),
        np.zeros(len(items)),
    )
    # What the far loads of a kernel with small buffers would have taken is taken off again.
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


def _by_name(columns: LaunchColumns) -> dict[str, Floats]:
    return {name: columns.work[:, place] for place, name in enumerate(WORK_NAMES)}


def _log2_amount(values: Floats) -> Floats:
    """log2(1 + x), NaN where x is."""
    return np.where(np.isnan(values), np.nan, log2_count(np.nan_to_num(values)))


def _log2_ratio(amount: Floats, of: Floats) -> Floats:
    """log2 of the ratio; 0 where there is none of either, NaN where it is not known."""
    ratio = np.divide(amount, of, out=np.ones(amount.shape), where=of > 0)
    return np.where(np.isnan(amount), np.nan, np.log2(np.maximum(ratio, _LEAST_EACH)))
