"""Rows of an Arrow table as Python values, a few at a time, so that they take little memory.

Owns the estimate of what rows take in Python, and the limits. Arrow's own bytes tell little: Python
holds four bytes for each character of a text with one emoji, and 64 bytes for each empty list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

PART_BYTES = 64 * 2**20
"""Memory in bytes of the rows that are converted at once, unless one row takes more."""
MAX_ROW_BYTES = 256 * 2**20
"""Memory in bytes that one row may take. A source of 8 MiB takes up to 32 MiB, and so does each
other text that may be as long."""
_WIDEST_CHARACTER = 4
"""Bytes of Python for each byte of a text, at most. (A text that is not ASCII may take as much.)"""
_VALUE_BYTES = 40
"""A number with its place in a list or a dictionary. Rounded up, as the following numbers are."""
_TEXT_BYTES = 88
_LIST_BYTES = 72
_STRUCT_BYTES, _MEMBER_BYTES = 136, 48
_NUMBER_BYTES = 8
_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
_VIEWS = (
    (pa.types.is_string_view, pa.large_string()),
    (pa.types.is_binary_view, pa.large_binary()),
)
"""Types of texts whose lengths Arrow cannot tell, and of which a slice holds the texts of the whole
column; each with the type to cast them to."""


def python_rows(
    table: pa.Table | pa.RecordBatch, *, num_before: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the rows as dictionaries; at most ``PART_BYTES``, or one row, are in memory at once.

    Args:
        table: the rows.
        num_before: number of rows before them in their file, which messages count, too.

    Raises:
        ValueError: A row would take more than ``MAX_ROW_BYTES``.

    >>> list(python_rows(pa.table({"a": [1, 2]})))
    [{'a': 1}, {'a': 2}]
    """
    for part in parts(table, num_before=num_before):
        yield from part.to_pylist()


def parts(table: pa.Table | pa.RecordBatch, *, num_before: int = 0) -> Iterator[pa.Table]:
    """Yield consecutive parts of a table; each takes at most ``PART_BYTES`` in Python, or is a row.

    Raises:
        ValueError: A row would take more than ``MAX_ROW_BYTES``.
    """
    first = num_before
    for part in _divided(table, PART_BYTES):
        if part.num_rows == 1 and (num_bytes := python_bytes(part)) > MAX_ROW_BYTES:
            raise ValueError(_too_large(first + 1, num_bytes))
        first += part.num_rows
        yield part


def row_problem(table: pa.Table) -> str | None:
    """Return why a row of a table is too large for Python; None if each row is small enough."""
    first = 0
    for part in _divided(table, MAX_ROW_BYTES):
        if part.num_rows == 1 and (num_bytes := python_bytes(part)) > MAX_ROW_BYTES:
            return _too_large(first + 1, num_bytes)
        first += part.num_rows
    return None


def python_bytes(table: pa.Table | pa.RecordBatch) -> int:
    """Return at most how many bytes of memory the values of a table take in Python."""
    chunks = (
        chunk
        for column in table.columns
        for chunk in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    )
    row_bytes = _STRUCT_BYTES + table.num_columns * _MEMBER_BYTES
    return int(table.num_rows * row_bytes) + sum(map(_bytes_of, chunks))


def _divided(table: Any, most: int) -> Iterator[Any]:
    """Yield consecutive parts of a table that take at most ``most`` bytes, or have one row."""
    if table.num_rows <= 1 or python_bytes(table) <= most:
        yield table
        return
    middle = table.num_rows // 2
    yield from _divided(table.slice(0, middle), most)
    yield from _divided(table.slice(middle), most)


def _bytes_of(array: Any) -> int:
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    for is_view, plain in _VIEWS:
        if is_view(array.type):
            array = array.cast(plain)
    kind, num_values = array.type, len(array)
    if pa.types.is_dictionary(kind):
        lengths = _lengths(array.dictionary).take(array.indices.drop_null())
        return num_values * _TEXT_BYTES + _WIDEST_CHARACTER * _sum(lengths)
    if pa.types.is_struct(kind):
        own_bytes = _STRUCT_BYTES + int(kind.num_fields) * _MEMBER_BYTES
        return num_values * own_bytes + sum(map(_bytes_of, array.flatten()))
    if pa.types.is_map(kind):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        pairs = (array.keys.slice(first, last - first), array.items.slice(first, last - first))
        return num_values * _LIST_BYTES + sum(map(_bytes_of, pairs))
    if pa.types.is_nested(kind):
        return num_values * _LIST_BYTES + _bytes_of(array.flatten())
    if _is_text(kind):
        return num_values * _TEXT_BYTES + _WIDEST_CHARACTER * _sum(_lengths(array))
    return num_values * _VALUE_BYTES + int(array.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in _TEXTS)


def _lengths(array: Any) -> Any:
    """Return the length in bytes of each text of an array; 8 for each number."""
    if _is_text(array.type):
        return pc.binary_length(array)
    return pa.array([_NUMBER_BYTES] * len(array), pa.int64())


def _sum(lengths: Any) -> int:
    return int(pc.sum(lengths.cast(pa.int64())).as_py() or 0)


def _too_large(row: int, num_bytes: int) -> str:
    return (
        f"row {row} would take {num_bytes >> 20:,} MiB of memory, more than the "
        f"{MAX_ROW_BYTES >> 20} MiB that are allowed"
    )
