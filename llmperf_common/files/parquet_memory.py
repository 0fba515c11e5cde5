"""A limit on the memory that an untrusted Parquet file needs, checked before it is unpacked.

Owns the limit and the count of bytes. (A string that the file holds once may appear in a million
rows.) Page headers that contradict the file's metadata are not detected, because only a Parquet
library could do that.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llmperf_common.files.parquet_footer import column_chunks

MAX_RATIO = 64
"""Maximum ratio of unpacked to packed bytes. LLMPerf's own tables reach 30."""
ALWAYS_ALLOWED_BYTES = 256 * 2**20
_MAX_ROW_GROUPS = 100_000
_MAX_LEAVES = 1_000
_VALUE_BYTES = 8
_OFFSET_BYTES = 4
"""Bytes of a value at each level of lists around it."""
_MOST_LEVELS = 8
"""Levels of lists, structs and maps. LLMPerf's own tables have at most four."""
_WIDEST_BYTES = 64
"""Widest binary value of a fixed size."""


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
    value_bytes = _VALUE_BYTES + _OFFSET_BYTES * _levels_of(file.schema_arrow, columns)
    num_bytes = 0
    texts: dict[str, int] = {}
    for chunk in column_chunks(memoryview(data)):
        if columns is not None and chunk.path.split(".", 1)[0] not in columns:
            continue
        if min(chunk.num_values, chunk.uncompressed_bytes) < 0:
            raise ValueError("a column has a negative number of values")
        num_bytes += chunk.num_values * value_bytes
        if chunk.is_text:
            most_in_it = chunk.num_values * max(1, chunk.uncompressed_bytes)
            texts[chunk.path] = texts.get(chunk.path, 0) + most_in_it
        num_bytes = _within(num_bytes, most)
    # A column's exact size is counted only if the column could take more than an eighth of the
    # limit, with its longest possible string in every row.
    for path, most_in_it in texts.items():
        if most_in_it > most // 8:
            num_bytes = _within(num_bytes + _text_bytes(data, path, most), most)


def _levels_of(schema: pa.Schema, columns: Collection[str] | None) -> int:
    """Return the most levels of a column's type; refuse types whose nulls take any memory."""
    fields = [one for one in schema if columns is None or one.name in columns]
    return max((_levels(one.type, one.name) for one in fields), default=0)


def _levels(kind: pa.DataType, name: str, above: int = 0) -> int:
    if pa.types.is_fixed_size_list(kind) or (
        pa.types.is_fixed_size_binary(kind) and kind.byte_width > _WIDEST_BYTES
    ):
        raise ValueError(
            f"column {name!r} has values of a fixed length: LLMPerf writes no such table"
        )
    if above > _MOST_LEVELS:
        raise ValueError(f"column {name!r} is nested more than {_MOST_LEVELS} levels deep")
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return max((1 + _levels(one, name, above + 1) for one in inner), default=0)


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
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _bytes_of(array.flatten())
    if pa.types.is_map(array.type):
        return _bytes_of(array.keys) + _bytes_of(array.items)
    if pa.types.is_struct(array.type):
        return sum(_bytes_of(one) for one in array.flatten())
    return int(array.nbytes)
