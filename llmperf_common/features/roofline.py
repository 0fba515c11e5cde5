"""Analytic estimates of a launch: the times of its memory traffic, its arithmetic and its overhead.

Owns the roofline terms, the features made from them and the ``bound`` label. The terms are
deliberately rough (static counts x work-items / measured peaks), because models learn what the
terms lack. ``work_features.py`` has estimates from counted work.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from llmperf_common.features.launch_columns import LaunchColumns

Floats = npt.NDArray[np.float64]

WARP = 32
"""Number of lanes of a warp on NVIDIA GPUs; used for other devices as an approximation."""

_OPERATIONS_PER_MATH_CALL = 8.0
"""Approximate cost of a special function, in additions. A special function runs at a quarter of the
rate of additions, and needs helper operations."""

_ACCESS_PATTERNS = (
    "unit_stride_accesses",
    "broadcast_accesses",
    "strided_accesses",
    "indirect_accesses",
    "irregular_accesses",
)

# Assumed peaks per compute unit where no peaks were measured. Only the `bound` label uses them.
_NOMINAL_DRAM_GBPS_PER_UNIT = 20.0
_NOMINAL_GFLOPS_PER_UNIT = 200.0
_NOMINAL_FLOOR_NS = 4000.0


class Bound(StrEnum):
    """The resource that limits a launch: the one with the largest of the three analytic terms."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    COMPUTE = "compute"


ANALYTIC_MEANINGS: dict[str, str] = {
    "log2_footprint_over_cache": "log2(buffer bytes / last-level cache)",
    "log2_dram_term_ns": "log2 of buffer bytes / DRAM bandwidth",
    "log2_l2_term_ns": "log2 of buffer bytes / last-level-cache bandwidth",
    "log2_access_term_ns": "log2 of static bytes accessed x work-items / cache bandwidth",
    "log2_compute_term_ns": "log2 of static arithmetic (in open loops: as many trips as the "
    "largest scalar) x work-items / peak",
    "log2_latency_term_ns": "log2 of the launch floor",
    "log2_roofline_ns": "log2 of the largest known term: memory, compute, latency",
}


def bound_of(columns: LaunchColumns) -> list[Bound]:
    """Return the resource that limits each launch; nominal peaks replace unmeasured ones."""
    units = columns.device_number("compute_units")
    memory, compute, latency = _terms_ns(columns, nominal_units=units)
    stacked = np.stack([latency, memory, compute])
    order = (Bound.LATENCY, Bound.BANDWIDTH, Bound.COMPUTE)
    return [order[int(row)] for row in np.argmax(np.nan_to_num(stacked), axis=0)]


def log2_or_nan(values: Floats) -> Floats:
    """Return log2 of the positive values, NaN for the others."""
    known = np.isfinite(values) & (values > 0)
    return np.log2(values, out=np.full(values.shape, np.nan), where=known)


def log2_count(values: Floats) -> Floats:
    """Return log2(1 + x) of counts; negative counts become 0."""
    return np.log2(1.0 + np.maximum(values, 0.0))


def work_items(columns: LaunchColumns) -> Floats:
    """Return the number of work-items of each launch, shape (n,)."""
    size = columns.global_size
    return size[:, 0] * size[:, 1] * size[:, 2]


def work_per_item(columns: LaunchColumns, noun: str) -> Floats:
    """Return the operations per work-item, with the largest scalar as the trip count of open loops.

    The estimate is weighted + open x (trips - 1). Without scalars the trip count is unknown: open
    loops count once, and tree models learn the rest from other features.
    """
    extra_trips = np.maximum(columns.scalar_max - 1.0, 0.0)
    inside = np.nan_to_num(columns.static_feature(f"open_{noun}"))
    return columns.static_feature(f"weighted_{noun}") + inside * extra_trips


def _ratio(amount: Floats, rate: Floats) -> Floats:
    """Return amount / rate where both are known and the rate is positive, else NaN."""
    known = np.isfinite(rate) & (rate > 0) & np.isfinite(amount)
    quotient = np.full(amount.shape, np.nan)
    np.divide(amount, rate, out=quotient, where=known)
    return quotient


def _compute_term_ns(columns: LaunchColumns, fp32_gflops: Floats) -> Floats:
    """Return arithmetic / peak in ns (1 GFLOP/s = 1 operation per ns); fp64 has its own peak."""
    doubles = np.nan_to_num(columns.static_feature("weighted_double_ops"))
    arithmetic = (
        work_per_item(columns, "float_ops")
        - doubles
        + np.nan_to_num(work_per_item(columns, "int_ops"))
        + _OPERATIONS_PER_MATH_CALL * np.nan_to_num(work_per_item(columns, "math_calls"))
    )
    items = work_items(columns)
    fp64_gflops = columns.device_number("peak_fp64_gflops")
    slow = np.nan_to_num(_ratio(doubles * items, fp64_gflops))
    return _ratio(np.maximum(arithmetic, 0.0) * items, fp32_gflops) + slow


def _accessed_bytes(columns: LaunchColumns) -> Floats:
    """Return the bytes requested from caches; lanes of a warp share a broadcast access."""
    kinds = [columns.static_feature(name) for name in _ACCESS_PATTERNS]
    every = np.maximum(np.nan_to_num(np.stack(kinds)).sum(axis=0), 1.0)
    shared = np.nan_to_num(columns.static_feature("broadcast_accesses")) / every
    asked = work_per_item(columns, "global_bytes") * work_items(columns)
    return np.asarray(asked * (1.0 - shared * (1.0 - 1.0 / WARP)), dtype=np.float64)


def _terms_ns(
    columns: LaunchColumns, nominal_units: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return the memory, compute and latency terms in ns (1 GB/s is 1 byte per nanosecond).

    The memory term is the larger of footprint / DRAM bandwidth (cache bandwidth if the footprint
    fits into the cache) and all accessed bytes / cache bandwidth. With ``nominal_units`` (compute
    units), unmeasured peaks are replaced by nominal ones.
    """
    dram = columns.device_number("peak_dram_gbps")
    l2 = columns.device_number("peak_l2_gbps")
    flops = columns.device_number("peak_fp32_gflops")
    floor = columns.device_number("launch_floor_ns")
    if nominal_units is not None:
        dram = np.where(np.isfinite(dram), dram, nominal_units * _NOMINAL_DRAM_GBPS_PER_UNIT)
        flops = np.where(np.isfinite(flops), flops, nominal_units * _NOMINAL_GFLOPS_PER_UNIT)
        floor = np.where(np.isfinite(floor), floor, _NOMINAL_FLOOR_NS)
    cache = np.nan_to_num(columns.device_number("last_level_cache_bytes"))
    fits = (columns.buffer_bytes <= cache) & np.isfinite(l2)
    footprint = _ratio(columns.buffer_bytes, np.where(fits, l2, dram))
    memory = np.fmax(footprint, _ratio(_accessed_bytes(columns), l2))
    return memory, _compute_term_ns(columns, flops), floor


def analytic_features(columns: LaunchColumns) -> dict[str, Floats]:
    """Return the features of ``ANALYTIC_MEANINGS``, in that order, shape (n,) each."""
    memory, compute, latency = _terms_ns(columns)
    l2 = columns.device_number("peak_l2_gbps")
    dram = columns.device_number("peak_dram_gbps")
    rate = np.where(np.isfinite(l2), l2, dram)
    terms = np.stack([memory, compute, latency])
    largest = np.where(np.isfinite(terms), terms, 0.0).max(axis=0)
    return {
        "log2_footprint_over_cache": log2_or_nan(
            _ratio(1.0 + columns.buffer_bytes, columns.device_number("last_level_cache_bytes"))
        ),
        "log2_dram_term_ns": log2_or_nan(_ratio(1.0 + columns.buffer_bytes, dram)),
        "log2_l2_term_ns": log2_or_nan(_ratio(1.0 + columns.buffer_bytes, l2)),
        "log2_access_term_ns": log2_or_nan(_ratio(1.0 + _accessed_bytes(columns), rate)),
        "log2_compute_term_ns": log2_or_nan(compute),
        "log2_latency_term_ns": log2_or_nan(latency),
        "log2_roofline_ns": log2_or_nan(largest),
    }
