"""The feature vector of one launch: source, launch config and device as one fixed row of numbers.

Owns the names, their order and the combination of static features with a launch. Static features
come from ``workers/source/static_features.py`` under the names in ``static_feature_names.py``.
Every name in that table becomes a feature, and names that begin with ``weighted_`` or ``open_`` are
also combined with the launch's sizes. So a new name needs no change here. ``feature_meanings()``
returns the documented table. ``launch_columns.py`` turns records into columns, ``table_columns.py``
tables.

Sizes and times are log2, because times span six decades and effects multiply; counts are log2(1 +
x) where zero is common. NaN means unknown (an unmeasured peak, a static feature that an older
dataset lacks): trees use NaN as it is, linear models replace it by the training mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.errors import LlmperfError
from llmperf_common.features.launch_columns import LaunchColumns, columns_from_records
from llmperf_common.features.regimes import UNDER_UTILISED_GROUPS_PER_UNIT
from llmperf_common.features.roofline import (
    ANALYTIC_MEANINGS,
    WARP,
    analytic_features,
    log2_count,
    log2_or_nan,
    work_items,
    work_per_item,
)
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.features.table_columns import columns_from_tables
from llmperf_common.features.work import Work
from llmperf_common.features.work_features import WORK_MEANINGS, work_features
from llmperf_common.records import Device, DeviceClass, LaunchConfig, Signature

Floats = npt.NDArray[np.float64]

_LAUNCH_MEANINGS: dict[str, str] = {
    "dims": "dimensions of the NDRange",
    "log2_work_items": "log2 of all work-items",
    "log2_work_groups": "log2 of all work-groups",
    "log2_local_items": "log2 of the work-items of a work-group",
    "log2_global_0": "log2 of global size, dimension 0",
    "log2_global_1": "log2 of global size, dimension 1",
    "log2_global_2": "log2 of global size, dimension 2",
    "log2_local_0": "log2 of local size, dimension 0",
    "log2_local_1": "log2 of local size, dimension 1",
    "log2_local_2": "log2 of local size, dimension 2",
    "lane_waste": "lanes issued (work-group size rounded up to 32) / work-items of the work-group",
    "log2_groups_per_unit": "log2 of work-groups per compute unit",
    "log2_waves": "log2 of ceil(work-groups / compute units)",
    "wave_fill": "work-groups / (waves x compute units): how full the waves are",
    "log2_items_per_unit": "log2 of work-items per compute unit that has a work-group",
    "regime_idle_sm": "1 if work-groups < max(compute units, 2)",
    "regime_under_utilised": "1 if max(compute units, 2) <= work-groups < 20 x compute units",
    "regime_fully_utilised": "1 if work-groups >= 20 x compute units",
    "log2_buffer_bytes": "log2(1 + bytes of all global and constant buffers)",
    "log2_read_bytes": "log2(1 + bytes of the buffers that the kernel may read)",
    "log2_written_bytes": "log2(1 + bytes of the buffers that the kernel may write)",
    "log2_largest_buffer_bytes": "log2(1 + bytes of the largest buffer)",
    "log2_bytes_per_item": "log2(1 + buffer bytes / work-items)",
    "log2_local_bytes": "log2(1 + bytes of __local arguments per work-group)",
    "log2_scalar_max": "log2(1 + largest integer scalar argument)",
    "log2_scalar_min": "log2(1 + smallest integer scalar argument)",
    "log2_scalar_product": "log2 of the product of the integer scalar arguments above 1",
    "log2_scalar_max_per_item": "log2((1 + largest integer scalar) / work-items)",
}

_DEVICE_MEANINGS: dict[str, str] = {
    "log2_compute_units": "log2 of compute units",
    "log2_max_clock_mhz": "log2 of the highest clock",
    "log2_local_memory_bytes": "log2 of the local memory that a work-group may use",
    "log2_last_level_cache_bytes": "log2 of the last-level cache",
    "log2_peak_dram_gbps": "log2 of measured DRAM bandwidth",
    "log2_peak_l2_gbps": "log2 of measured last-level-cache bandwidth",
    "log2_peak_fp32_gflops": "log2 of measured single-precision throughput",
    "log2_peak_fp64_gflops": "log2 of measured double-precision throughput",
    "log2_launch_floor_ns": "log2 of an empty kernel's time",
}


WORK_FEATURE = "counted_time_ns"
"""A feature that is finite if and only if the work of the launch was counted."""


def _static_meanings(static_names: Mapping[str, str]) -> dict[str, str]:
    table = {
        f"static_{name}": f"log2(1 + x), x: {meaning}" for name, meaning in static_names.items()
    }
    for noun in _weighted_nouns(static_names):
        table[f"total_{noun}"] = f"log2(1 + weighted_{noun} x work-items)"
    for noun in _open_nouns(static_names):
        table[f"work_{noun}"] = (
            f"log2(1 + (weighted_{noun} + open_{noun} x (largest integer scalar - 1)) x work-items)"
        )
    return table


def _weighted_nouns(static_names: Iterable[str]) -> list[str]:
    return [name.removeprefix("weighted_") for name in static_names if name.startswith("weighted_")]


def _open_nouns(static_names: Iterable[str]) -> list[str]:
    """Return the weighted counts that also have a count inside loops of unknown trip count."""
    names = list(static_names)
    return [noun for noun in _weighted_nouns(names) if f"open_{noun}" in names]


def feature_meanings(static_names: Mapping[str, str] = STATIC_FEATURES) -> dict[str, str]:
    """Return every feature's name and meaning, in the order of the feature vector."""
    return (
        _LAUNCH_MEANINGS
        | _DEVICE_MEANINGS
        | ANALYTIC_MEANINGS
        | _static_meanings(static_names)
        | WORK_MEANINGS
    )


class UnknownFeatureError(LlmperfError, ValueError):
    """A model needs a feature that this release does not compute."""


def feature_names(static_names: Mapping[str, str] = STATIC_FEATURES) -> tuple[str, ...]:
    """Return the names of the f entries of the feature vector."""
    return tuple(feature_meanings(static_names))


def uncounted_feature_names() -> tuple[str, ...]:
    """Return the names of the features that do not need counted work."""
    return tuple(name for name in feature_names() if name not in WORK_MEANINGS)


def is_counted(features: Floats) -> npt.NDArray[np.bool_]:
    """Return which rows of ``features`` (shape (n, f)) have counted work, shape (n,)."""
    return np.isfinite(features[:, feature_names().index(WORK_FEATURE)])


def unknown_features(names: Iterable[str]) -> list[str]:
    """Return the members of ``names`` that this release does not compute, in their order."""
    computed = set(feature_names())
    return [name for name in names if name not in computed]


def named_features(features: Floats, names: Sequence[str]) -> Floats:
    """Return the columns ``names`` of a feature matrix, for a model trained with fewer features.

    Args:
        features: shape (n, f), in the order of ``feature_names()``.
        names: g feature names of this release.

    Returns:
        Shape (n, g), in the order of ``names``.

    Raises:
        ValueError: This release does not compute one of the features.
    """
    computed = feature_names()
    if tuple(names) == computed:
        return features
    column = {name: position for position, name in enumerate(computed)}
    try:
        return features[:, [column[name] for name in names]]
    except KeyError as error:
        raise UnknownFeatureError(
            f"the model needs feature {error}, which this release does not compute: "
            "train the model again"
        ) from None


def features_from_records(
    signature: Signature,
    launches: Sequence[LaunchConfig],
    device: Device | DeviceClass,
    static_names: Mapping[str, str] = STATIC_FEATURES,
    work: Sequence[Work | None] = (),
) -> Floats:
    """Return the features of n launches of one kernel on one device, shape (n, f).

    ``work`` holds the counted work of each launch, None where it is unknown; it is empty if no
    launch was counted. Peaks that ``device`` lacks (a ``DeviceClass`` has none) give NaN.

    Raises:
        ValueError: A launch's NDRange does not have 1 to 3 dimensions.
    """
    return combine(columns_from_records(signature, launches, device, tuple(static_names), work))


def features_from_tables(
    samples: pa.Table,
    kernels: pa.Table,
    devices: pa.Table,
    static_names: Mapping[str, str] = STATIC_FEATURES,
) -> Floats:
    """Return the features of every row of ``samples``, shape (n, f).

    Raises:
        ValueError: Same as ``columns_from_tables``.
    """
    return combine(columns_from_tables(samples, kernels, devices, tuple(static_names)))


def combine(columns: LaunchColumns) -> Floats:
    """Return the feature matrix of n launches, shape (n, f), ordered as ``feature_meanings``."""
    groups = [
        _launch(columns),
        _device(columns),
        analytic_features(columns),
        _static(columns),
        work_features(columns),
    ]
    named: dict[str, Floats] = {}
    for group in groups:
        named |= group
    return np.column_stack(list(named.values()))


def _launch(columns: LaunchColumns) -> dict[str, Floats]:
    items, local = work_items(columns), np.prod(columns.local_size, axis=1)
    groups = np.prod(np.ceil(columns.global_size / columns.local_size), axis=1)
    units = columns.device_number("compute_units")
    waves = np.ceil(groups / units)
    idle, full = groups < np.maximum(units, 2), groups >= UNDER_UTILISED_GROUPS_PER_UNIT * units
    values = {
        "dims": columns.dims,
        "log2_work_items": log2_or_nan(items),
        "log2_work_groups": log2_or_nan(groups),
        "log2_local_items": log2_or_nan(local),
    }
    for axis in range(3):
        values[f"log2_global_{axis}"] = log2_or_nan(columns.global_size[:, axis])
    for axis in range(3):
        values[f"log2_local_{axis}"] = log2_or_nan(columns.local_size[:, axis])
    values |= {
        "lane_waste": np.ceil(local / WARP) * WARP / local,
        "log2_groups_per_unit": log2_or_nan(groups / units),
        "log2_waves": log2_or_nan(waves),
        "wave_fill": groups / (waves * units),
        "log2_items_per_unit": log2_or_nan(items / np.minimum(groups, units)),
        "regime_idle_sm": idle.astype(np.float64),
        "regime_under_utilised": (~idle & ~full).astype(np.float64),
        "regime_fully_utilised": (~idle & full).astype(np.float64),
        "log2_buffer_bytes": log2_count(columns.buffer_bytes),
        "log2_read_bytes": log2_count(columns.read_bytes),
        "log2_written_bytes": log2_count(columns.written_bytes),
        "log2_largest_buffer_bytes": log2_count(columns.largest_buffer_bytes),
        "log2_bytes_per_item": log2_count(columns.buffer_bytes / items),
        "log2_local_bytes": log2_count(columns.local_bytes),
        "log2_scalar_max": log2_count(columns.scalar_max),
        "log2_scalar_min": log2_count(columns.scalar_min),
        "log2_scalar_product": columns.scalar_log2_product,
        "log2_scalar_max_per_item": log2_count(columns.scalar_max) - log2_or_nan(items),
    }
    return values


def _device(columns: LaunchColumns) -> dict[str, Floats]:
    return {
        name: log2_or_nan(columns.device_number(name.removeprefix("log2_")))
        for name in _DEVICE_MEANINGS
    }


def _static(columns: LaunchColumns) -> dict[str, Floats]:
    items = work_items(columns)
    named = {
        f"static_{name}": log2_count(columns.static[:, position])
        for position, name in enumerate(columns.static_names)
    }
    for noun in _weighted_nouns(columns.static_names):
        named[f"total_{noun}"] = log2_count(columns.static_feature(f"weighted_{noun}") * items)
    for noun in _open_nouns(columns.static_names):
        named[f"work_{noun}"] = log2_count(work_per_item(columns, noun) * items)
    return named
