"""Make launch columns from dataset tables, 400,000 rows in seconds.

The columns equal those that ``launch_columns.py`` makes from records.

Owns the joins (sample to kernel by task_id, to device by device_id) and flattens Arrow lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.features.launch_columns import (
    DEVICE_NUMBERS,
    GLOBAL_KINDS,
    MAX_DIMS,
    READING,
    WRITING,
    ArgumentColumns,
    Codes,
    Floats,
    LaunchColumns,
    assemble,
)
from llmperf_common.features.work import WORK_NAMES
from llmperf_common.launch import INTEGER_TYPES
from llmperf_common.records import ArgumentKind

MAX_POSITION = 1_023
"""Largest position of an argument. (Devices accept only a few kilobytes of arguments.)"""
WORK_COLUMN = "work"
"""Column of ``samples``: a struct of ``WORK_NAMES``, null where the work is not known."""


def columns_from_tables(
    samples: pa.Table, kernels: pa.Table, devices: pa.Table, static_names: Sequence[str]
) -> LaunchColumns:
    """Return the columns of every row of ``samples``.

    Args:
        samples: n rows with the columns ``task_id, device_id, device_class, global_size,
            local_size, args`` and optionally ``work``.
        kernels: rows with the columns ``task_id, args, static_features``.
        devices: rows with ``device_id, device_class`` and ``DEVICE_NUMBERS``; a missing column
            becomes NaN.
        static_names: the static features to include, in order.

    Raises:
        ValueError: A sample's task or device is in no row; an argument's position or a size is
            impossible; or an NDRange does not have 1 to 3 dimensions. Rows of a kernel that failed
            before its first launch have no NDRange: leave such rows out.
    """
    kernel_row = kernel_rows(samples, kernels)
    device_row = device_rows(samples, devices)
    dims, global_size = ndrange_sizes(samples.column("global_size"))
    _, local_size = ndrange_sizes(samples.column("local_size"))
    return assemble(
        _arguments_from_tables(samples, kernels, kernel_row),
        dims=dims,
        global_size=global_size,
        local_size=local_size,
        static=static_matrix(kernels, static_names)[kernel_row],
        static_names=tuple(static_names),
        device=_device_matrix(devices)[device_row],
        work=work_matrix(samples),
    )


def work_matrix(samples: pa.Table) -> Floats:
    """Return the column ``work`` of n samples, shape (n, w), NaN where null or missing.

    The order of the w members is that of ``WORK_NAMES``.
    """
    matrix = np.full((len(samples), len(WORK_NAMES)), np.nan)
    if WORK_COLUMN not in samples.column_names:
        return matrix
    column = samples.column(WORK_COLUMN).combine_chunks()
    known = {column.type.field(place).name for place in range(column.type.num_fields)}
    for place, name in enumerate(WORK_NAMES):
        if name in known:
            # struct_field gives null where the struct is null, even if the struct's members hold
            # values.
            matrix[:, place] = _numbers(pc.struct_field(column, name))
    return matrix


def kernel_rows(samples: pa.Table, kernels: pa.Table) -> Codes:
    """Return the row index in ``kernels`` of each sample's task, shape (n,).

    Raises:
        ValueError: ``kernels`` has no row for a sample's task.
    """
    return _rows_of(samples, kernels, "task_id", "kernels")


def device_rows(samples: pa.Table, devices: pa.Table) -> Codes:
    """Return the row index in ``devices`` of each sample's device, shape (n,).

    Raises:
        ValueError: ``devices`` has no row for a sample's device.
    """
    return _rows_of(samples, devices, "device_id", "devices")


def _rows_of(samples: pa.Table, table: pa.Table, key: str, name: str) -> Codes:
    found = pc.index_in(samples.column(key), value_set=table.column(key).combine_chunks())
    if found.null_count:
        lost = samples.column(key).filter(pc.is_null(found))[0].as_py()
        raise ValueError(f"{key} {lost!r} is in samples but in no row of {name}")
    return np.asarray(found.to_numpy(), dtype=np.int64)


def flat_lists(column: pa.ChunkedArray) -> tuple[Codes, pa.Array]:
    """Return the row of each item of a list column, shape (a,), and the items of all lists."""
    lists = column.combine_chunks()
    if isinstance(lists, pa.ChunkedArray):  # pyarrow keeps a column without rows chunked
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], column.type)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths).astype(np.int64), lists.flatten()


def ndrange_sizes(column: pa.ChunkedArray) -> tuple[Floats, Floats]:
    """Return the dimensions, shape (n,), and sizes, shape (n, 3), of NDRanges; unused sizes are 1.

    Raises:
        ValueError: A row does not have 1 to 3 dimensions, or a size is not positive.
    """
    row, items = flat_lists(column)
    dims = np.bincount(row, minlength=len(column))
    if len(dims) and not (dims.min() >= 1 and dims.max() <= MAX_DIMS):
        odd = int(np.flatnonzero((dims < 1) | (dims > MAX_DIMS))[0])
        raise ValueError(f"NDRange {column[odd].as_py()} must have 1 to {MAX_DIMS} dimensions")
    sizes = np.ones((len(column), MAX_DIMS))
    start = np.cumsum(dims) - dims
    sizes[row, np.arange(len(row)) - start[row]] = items.to_numpy(zero_copy_only=False)
    if not (sizes >= 1).all():  # NaN stands for null
        odd = int(np.flatnonzero(~(sizes >= 1).all(axis=1))[0])
        raise ValueError(f"NDRange {column[odd].as_py()} must have positive sizes")
    return dims.astype(np.float64), sizes


def _member(items: pa.StructArray, name: str) -> Any:
    return items.field(name)


def _is_in(values: pa.Array, wanted: Sequence[str]) -> npt.NDArray[np.bool_]:
    found = pc.is_in(values, value_set=pa.array(list(wanted), pa.string()))
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=bool)


def _numbers(values: pa.Array) -> Floats:
    return np.asarray(
        values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64
    )


def _positions(items: pa.StructArray, table: str) -> Codes:
    position = _numbers(_member(items, "position"))
    if not ((position >= 0) & (position <= MAX_POSITION)).all():  # NaN stands for null
        raise ValueError(
            f"column args of {table} has an argument without a position from 0 to {MAX_POSITION}"
        )
    return position.astype(np.int64)


def _arguments_from_tables(
    samples: pa.Table, kernels: pa.Table, kernel_row: Codes
) -> ArgumentColumns:
    owner, declared = flat_lists(kernels.column("args"))
    declared_position = _positions(declared, "kernels")
    launch, items = flat_lists(samples.column("args"))
    position = _positions(items, "samples")
    width = 1 + max(declared_position.max(initial=0), position.max(initial=0))
    # (kernel row, position) -> row of `declared`; len(declared) where the kernel declares none.
    place = np.full(len(kernels) * width + 1, len(declared), dtype=np.int64)
    place[owner * width + declared_position] = np.arange(len(declared))
    at = place[kernel_row[launch] * width + position]

    def facts(values: npt.NDArray[Any], absent: float) -> npt.NDArray[Any]:
        # The last entry stands for launch arguments that the kernel does not declare.
        longer: npt.NDArray[Any] = np.append(values, np.array([absent], dtype=values.dtype))
        picked: npt.NDArray[Any] = longer[at]
        return picked

    kind, access = _member(items, "kind"), _member(declared, "access")
    is_integer = facts(_is_in(_member(declared, "scalar_type"), sorted(INTEGER_TYPES)), False)
    elements = np.nan_to_num(_numbers(_member(items, "elements")))
    return ArgumentColumns(
        launch=launch,
        is_global=_is_in(kind, GLOBAL_KINDS),
        is_local=_is_in(kind, [ArgumentKind.LOCAL_BUFFER.value]),
        is_integer=_is_in(kind, [ArgumentKind.SCALAR.value]) & is_integer,
        reads=facts(_is_in(access, READING), False),
        writes=facts(_is_in(access, WRITING), False),
        bytes=elements * facts(_numbers(_member(declared, "element_bytes")), 0.0),
        value=_numbers(_member(items, "value")),
    )


def static_matrix(kernels: pa.Table, static_names: Sequence[str]) -> Floats:
    """Return the static features of each row of ``kernels``, shape (k, s); NaN where missing."""
    matrix = np.full((len(kernels), len(static_names)), np.nan)
    column = {name: position for position, name in enumerate(static_names)}
    for row, features in enumerate(kernels.column("static_features").to_pylist()):
        for name, value in (features or {}).items():
            if name in column and value is not None:
                matrix[row, column[name]] = value
    return matrix


def _device_matrix(devices: pa.Table) -> Floats:
    matrix = np.full((len(devices), len(DEVICE_NUMBERS)), np.nan)
    for position, name in enumerate(DEVICE_NUMBERS):
        if name in devices.column_names:
            matrix[:, position] = _numbers(devices.column(name).combine_chunks())
    return matrix
