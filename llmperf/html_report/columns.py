"""Arrow tables as numpy columns, even if an older dataset lacks some columns.

Owns the conversion of rows to arrays. A missing or null value becomes NaN, an empty text or None.
No function loops over rows, because a report of 400,000 samples should take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.quantities import Bools, Floats, Ints
from llmperf.html_report.views import ArrowTable
from llmperf_common.failures import OK_STATUS

CHECK_NAMES = (
    "writes_output",
    "deterministic",
    "input_sensitive",
    "stationary",
    "above_floor",
    "data_dependent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical:
    """A text column as codes: indices into its distinct values, in order of first appearance."""

    codes: Ints
    names: tuple[str, ...]

    def is_value(self, name: str) -> Bools:
        """Return which rows have this value."""
        if name not in self.names:
            return np.zeros(len(self.codes), dtype=bool)
        return np.equal(self.codes, self.names.index(name))

    def counts(self, rows: Bools | None = None) -> dict[str, int]:
        """Return the number of (chosen) rows with each value; values without rows are left out."""
        codes = self.codes if rows is None else self.codes[rows]
        totals = np.bincount(codes, minlength=len(self.names))
        return {name: int(n) for name, n in zip(self.names, totals, strict=True) if n}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns:
    """The columns of ``samples`` that a report uses; all arrays have one value per row."""

    num_rows: int
    kernel: Categorical
    device: Categorical
    device_class: Categorical
    status: Categorical
    regime: Categorical
    strategy: Categorical
    stop_reason: Categorical
    median_ns: Floats
    iqr_ns: Floats
    first_ns: Floats
    cold_median_ns: Floats
    num_readings: Floats
    launches_per_reading: Floats
    num_dims: Ints
    work_items: Floats
    """Work-items of the whole launch; NaN for a row without an NDRange."""
    work_groups: Floats
    work_items_per_group: Floats
    checks: dict[str, Floats]
    throttled: Floats
    ok: Bools
    timed: Bools
    """Whether a row is ok and has a finite, positive median, so that plots of time can show it."""


def array_of(table: ArrowTable, name: str) -> Any:
    """Return one column as a single Arrow array; None if the table lacks it."""
    if name not in table.column_names:
        return None
    column = table.column(name)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def floats(table: ArrowTable, name: str) -> Floats:
    """Return a numeric or boolean column; NaN where it is null or missing."""
    return _as_floats(array_of(table, name), table.num_rows)


def _as_floats(array: Any, num_rows: int) -> Floats:
    if array is None:
        return np.full(num_rows, np.nan)
    numbers = array.cast(pa.int8()) if pa.types.is_boolean(array.type) else array
    cast = numbers.cast(pa.float64(), safe=False)
    return np.asarray(cast.to_numpy(zero_copy_only=False), dtype=np.float64)


def categorical(table: ArrowTable, name: str, *, missing: str = "") -> Categorical:
    """Return a text column; ``missing`` replaces nulls and a missing column."""
    array = array_of(table, name)
    if array is None:
        return Categorical(codes=np.zeros(table.num_rows, dtype=np.int64), names=(missing,))
    encoded = pc.fill_null(array.cast(pa.string()), missing).dictionary_encode()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return Categorical(codes=codes, names=tuple(encoded.dictionary.to_pylist()) or (missing,))


def texts(table: ArrowTable, name: str) -> list[str]:
    """Return a text column as Python strings, empty where null or missing."""
    array = array_of(table, name)
    if array is None:
        return [""] * int(table.num_rows)
    return ["" if value is None else str(value) for value in array.to_pylist()]


def list_lengths(table: ArrowTable, name: str) -> Ints:
    """Return the length of each row's list; 0 where it is null or missing."""
    array = array_of(table, name)
    if array is None:
        return np.zeros(table.num_rows, dtype=np.int64)
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)


def list_values(table: ArrowTable, name: str) -> Floats:
    """Return the list members of all rows, joined; :func:`list_lengths` gives the lengths."""
    array = array_of(table, name)
    if array is None:
        return np.zeros(0)
    return _as_floats(array.flatten(), 0)


def row_products(lengths: Ints, values: Floats) -> Floats:
    """Return the product of each row's members; NaN for an empty row."""
    products = np.full(len(lengths), np.nan)
    filled = lengths > 0
    if filled.any():
        starts = (np.cumsum(lengths) - lengths)[filled]
        products[filled] = np.multiply.reduceat(values, starts)
    return products


def row_sums(lengths: Ints, values: Floats) -> Floats:
    """Return the sum of each row's members; 0 for an empty row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows, weights=values, minlength=len(lengths)).astype(np.float64)


def row_medians(lengths: Ints, values: Floats) -> Floats:
    """Return the median of each row's members; NaN for an empty row."""
    medians = np.full(len(lengths), np.nan)
    filled = lengths > 0
    if not filled.any():
        return medians
    rows = np.repeat(np.arange(len(lengths)), lengths)
    ordered = values[np.lexsort((values, rows))]
    starts = (np.cumsum(lengths) - lengths)[filled]
    sizes = lengths[filled]
    middle_low, middle_high = ordered[starts + (sizes - 1) // 2], ordered[starts + sizes // 2]
    medians[filled] = (middle_low + middle_high) / 2
    return medians


def struct_member(table: ArrowTable, name: str, member: str) -> Floats:
    """Return one boolean or numeric member of a struct column; NaN where null or missing."""
    array = array_of(table, name)
    if array is None or array.type.get_field_index(member) < 0:
        return np.full(table.num_rows, np.nan)
    return _as_floats(pc.struct_field(array, member), table.num_rows)


def sample_columns(samples: ArrowTable) -> SampleColumns:
    """Return the columns of ``samples`` as arrays."""
    status = categorical(samples, "status", missing="(no status)")
    median_ns = floats(samples, "median_ns")
    ok = status.is_value(OK_STATUS)
    num_dims = list_lengths(samples, "global_size")
    work_items = row_products(num_dims, list_values(samples, "global_size"))
    group_items = row_products(
        list_lengths(samples, "local_size"), list_values(samples, "local_size")
    )
    group_items = np.where(group_items > 0, group_items, np.nan)
    return SampleColumns(
        num_rows=samples.num_rows,
        kernel=categorical(samples, "kernel_id"),
        device=categorical(samples, "device_id"),
        device_class=categorical(samples, "device_class"),
        status=status,
        regime=categorical(samples, "regime"),
        strategy=categorical(samples, "input_strategy"),
        stop_reason=categorical(samples, "stop_reason", missing="(not recorded)"),
        median_ns=median_ns,
        iqr_ns=floats(samples, "iqr_ns"),
        first_ns=floats(samples, "first_ns"),
        cold_median_ns=row_medians(
            list_lengths(samples, "cold_ns"), list_values(samples, "cold_ns")
        ),
        num_readings=list_lengths(samples, "time_ns").astype(np.float64),
        launches_per_reading=floats(samples, "launches_per_reading"),
        num_dims=num_dims,
        work_items=work_items,
        work_groups=work_items / group_items,
        work_items_per_group=group_items,
        checks={name: struct_member(samples, "checks", name) for name in CHECK_NAMES},
        throttled=floats(samples, "throttled"),
        ok=ok,
        timed=ok & np.isfinite(median_ns) & (median_ns > 0),
    )


def rows_by_code(codes: Ints, rows: Bools) -> dict[int, Ints]:
    """Return the indices of the chosen rows by code; one sort is faster than a mask per code."""
    chosen = np.flatnonzero(rows)
    ordered = chosen[np.argsort(codes[chosen], kind="stable")]
    distinct, starts = np.unique(codes[ordered], return_index=True)
    pieces = np.split(ordered, starts[1:]) if distinct.size else []
    return {int(code): piece for code, piece in zip(distinct, pieces, strict=True)}
