"""A limit on the memory that an untrusted Parquet file needs, checked before it is unpacked.

Owns the limit and the count of bytes. (A string that the file holds once may appear in a million
rows.) Page headers and numbers of rows that contradict the rest of the file are not detected,
because only a Parquet library could do that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llmperf_common.files.parquet_footer import column_chunks

MAX_RATIO = 64
"""Maximum ratio of unpacked to packed bytes. LLMPerf's own tables reach 30."""
ALWAYS_ALLOWED_BYTES = 256 * 2**20
ALWAYS_ALLOWED_TEXT_BYTES = 128 * 2**20
"""Bytes that a file's texts may always have as stored, each repeated one mostly once. Arrow takes up
to four times as much for a moment while it reads them."""
_MAX_ROW_GROUPS = 100_000
_MAX_LEAVES = 1_000
_VALUE_BYTES = 8
_OFFSET_BYTES = 4
"""Bytes that each value needs in addition for each list around it."""
_MOST_LEVELS = 8
"""Maximum number of lists, structs and maps around a value. LLMPerf's own tables have at most
four."""
_WIDEST_BYTES = 64
"""Maximum number of bytes of a binary value of a fixed length. A null takes as many bytes."""
_LONGEST_FIXED_LIST = 16
"""Maximum number of values of a list of a fixed length, as polars and numpy write it for the sizes
of a launch. A null takes the memory of that many values, although the file holds none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """How a column is nested; for a struct, the largest of its fields counts.

    Attributes:
        levels: number of lists, structs and maps around a value.
        fixed: number of values that a row, or an element of a list, holds in lists of fixed lengths.
        has_lists: whether the column has lists of varying lengths, or maps.
    """

    levels: int = 0
    fixed: int = 1
    has_lists: bool = False


_FLAT = _Shape()


def check_memory(data: pa.Buffer, columns: Collection[str] | None = None) -> None:
    """Raise ValueError if ``columns`` (None: all) of a Parquet file would need too much memory.

    >>> packed = pa.BufferOutputStream()
    >>> pq.write_table(pa.table({"a": ["x" * 2**20] * 1000}), packed)
    >>> check_memory(packed.getvalue())
    Traceback (most recent call last):
    ValueError: decompressed it would take 1000 MiB and more
    """
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        _check(file, data, columns)


def _check(file: pq.ParquetFile, data: pa.Buffer, columns: Collection[str] | None) -> None:
    packed_bytes = data.size
    most = max(ALWAYS_ALLOWED_BYTES, MAX_RATIO * packed_bytes)
    facts = file.metadata
    if facts.num_row_groups > _MAX_ROW_GROUPS or facts.num_columns > _MAX_LEAVES:
        raise ValueError(
            f"it has {facts.num_row_groups} row groups of {facts.num_columns} columns: "
            "LLMPerf writes no such table"
        )
    shapes: dict[str, _Shape] = {}
    for one in file.schema_arrow:
        if columns is None or one.name in columns:
            shapes[one.name] = _largest([_shape(one.type, one.name), shapes.get(one.name, _FLAT)])
    paths = [file.schema.column(number).path for number in range(facts.num_columns)]
    counts: dict[str, int] = defaultdict(int)
    texts: dict[str, int] = defaultdict(int)
    stored: dict[str, int] = defaultdict(int)
    for number, chunk in enumerate(column_chunks(memoryview(data))):
        if not paths or chunk.path != paths[number % len(paths)]:
            raise ValueError("its columns are not in the order of its schema")
        if min(chunk.num_values, chunk.uncompressed_bytes) < 0:
            raise ValueError("a column has a negative number of values")
        counts[chunk.path] += chunk.num_values
        if chunk.is_text:
            stored[chunk.path] += chunk.uncompressed_bytes
            texts[chunk.path] += chunk.num_values * max(1, chunk.uncompressed_bytes)
    num_bytes = 0
    for path, num_values in counts.items():
        shape = _shape_of(path, shapes)
        if shape is None:
            texts.pop(path, None)
            stored.pop(path, None)
            continue
        # Without lists of varying lengths, the number of values follows from the number of rows.
        slots = (
            num_values * shape.fixed
            if shape.has_lists
            else max(num_values, facts.num_rows * shape.fixed)
        )
        num_bytes = _within(num_bytes + slots * (_VALUE_BYTES + _OFFSET_BYTES * shape.levels), most)
    _within(sum(stored.values()), max(ALWAYS_ALLOWED_TEXT_BYTES, MAX_RATIO * packed_bytes))
    # A column's exact size is counted only if the column could take more than an eighth of the
    # limit, with its longest possible string in every row.
    for path, most_in_it in texts.items():
        if most_in_it > most // 8:
            num_bytes = _within(num_bytes + _text_bytes(data, path, most), most)


def _shape_of(path: str, shapes: Mapping[str, _Shape]) -> _Shape | None:
    """Return the shape of the column of a column chunk; None for a column that is not read.

    A column's name may contain dots, as the path of a nested column does. If a path may belong to
    several columns, the largest of their shapes counts.
    """
    names = [path[:end] for end, sign in enumerate(path) if sign == "."]
    found = [shapes[name] for name in (*names, path) if name in shapes]
    return _largest(found) if found else None


def _shape(kind: pa.DataType, name: str, above: int = 0, fixed: int = 1) -> _Shape:
    """Return the shape of a type; refuse a type whose nulls could take unlimited memory."""
    while isinstance(kind, pa.BaseExtensionType):  # such as a tensor of a fixed shape
        kind = kind.storage_type
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width > _WIDEST_BYTES:
        raise ValueError(
            f"column {name!r} has values of {kind.byte_width:,} bytes each: at most "
            f"{_WIDEST_BYTES} are allowed"
        )
    if pa.types.is_fixed_size_list(kind):
        fixed *= max(1, kind.list_size)
    if fixed > _LONGEST_FIXED_LIST:
        raise ValueError(
            f"column {name!r} has {fixed:,} values in each list of a fixed length: at most "
            f"{_LONGEST_FIXED_LIST} are allowed; lists of varying lengths may have more"
        )
    if above > _MOST_LEVELS:
        raise ValueError(f"column {name!r} is nested more than {_MOST_LEVELS} levels deep")
    inner = [
        _shape(kind.field(index).type, name, above + 1, fixed) for index in range(kind.num_fields)
    ]
    own = _Shape(
        levels=above,
        fixed=fixed,
        has_lists=bool(inner)
        and not (pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind)),
    )
    return _largest([own, *inner])


def _largest(shapes: Collection[_Shape]) -> _Shape:
    return _Shape(
        levels=max(one.levels for one in shapes),
        fixed=max(one.fixed for one in shapes),
        has_lists=any(one.has_lists for one in shapes),
    )


def _text_bytes(data: pa.Buffer, path: str, most: int) -> int:
    """Return the unpacked bytes of a column of strings, reading each distinct string once."""
    num_bytes = 0
    with pq.ParquetFile(pa.BufferReader(data), read_dictionary=[path]) as again:
        for group in range(again.num_row_groups):
            table = again.read_row_group(group, columns=[path], use_threads=False)
            for column in table.columns:
                num_bytes = _within(num_bytes + sum(map(_bytes_of, column.chunks)), most)
    return num_bytes


def _within(num_bytes: int, most: int) -> int:
    if num_bytes > most:
        raise ValueError(f"decompressed it would take {num_bytes // 2**20} MiB and more")
    return num_bytes


def _bytes_of(array: Any) -> int:
    """Return the bytes of an array with dictionary-encoded strings written out."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary)
        total = pc.sum(lengths.take(array.indices.drop_null())).as_py()
        return int(total or 0)
    if isinstance(array, pa.ExtensionArray):
        return _bytes_of(array.storage)
    if (
        pa.types.is_list(array.type)
        or pa.types.is_large_list(array.type)
        or pa.types.is_fixed_size_list(array.type)
    ):
        return _bytes_of(array.flatten())
    if pa.types.is_map(array.type):
        return _bytes_of(array.keys) + _bytes_of(array.items)
    if pa.types.is_struct(array.type):
        return sum(_bytes_of(one) for one in array.flatten())
    return int(array.nbytes)
