"""The sizes of column chunks in a Parquet file's footer, read without pyarrow.

pyarrow 26 ends the process (``std::terminate``) when a column chunk's size statistics are damaged.
This module therefore checks a file before pyarrow reads it: it decodes Thrift's compact protocol
and the few fields of ``FileMetaData`` that are needed
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_FOOTER_BYTES = 4 * 2**20
"""Maximum number of bytes of a footer, which take about 2 s to decode. Footers of LLMPerf's own
shards have 20 kB."""
_TAIL_BYTES = 8
_MAGIC = b"PAR1"
_MAX_DEPTH = 16
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_TYPE, _PATH, _NUM_VALUES, _UNCOMPRESSED = 1, 3, 5, 6
_BYTE_ARRAYS = (6, 7)  # BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """One column of one row group.

    Attributes:
        path: names of the nested fields, joined by dots.
        is_text: whether the values are byte arrays.
        num_values: number of values, including nulls and the elements of lists.
        uncompressed_bytes: uncompressed size of all pages of the chunk.
    """

    path: str
    is_text: bool
    num_values: int
    uncompressed_bytes: int


def column_chunks(data: memoryview) -> Iterator[ColumnChunk]:
    """Yield a Parquet file's column chunks by row group; ValueError where the footer is damaged."""
    if len(data) < _TAIL_BYTES or bytes(data[-4:]) != _MAGIC:
        raise ValueError("it does not end like a Parquet file (PAR1)")
    length = int.from_bytes(data[-8:-4], "little")
    if length > min(len(data) - _TAIL_BYTES, MAX_FOOTER_BYTES):
        raise ValueError(
            f"its footer's length ({length} bytes) exceeds the file or the limit of "
            f"{MAX_FOOTER_BYTES} bytes"
        )
    reader = _Reader(data[len(data) - _TAIL_BYTES - length : len(data) - _TAIL_BYTES])
    try:
        for group in reader.struct().get(_ROW_GROUPS, ()):
            for column in group.get(_COLUMNS, ()):
                yield _chunk(column[_META_DATA])
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"its footer is damaged ({type(error).__name__})") from None


def _chunk(fields: dict[int, Any]) -> ColumnChunk:
    return ColumnChunk(
        path=".".join(part.decode() for part in fields[_PATH]),
        is_text=fields[_TYPE] in _BYTE_ARRAYS,
        num_values=int(fields[_NUM_VALUES]),
        uncompressed_bytes=int(fields[_UNCOMPRESSED]),
    )


class _Reader:
    """Reads structs of the compact protocol into dictionaries by field number."""

    def __init__(self, data: memoryview) -> None:
        self._data = data.tobytes()
        self._at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the fields of the struct that begins here."""
        if depth > _MAX_DEPTH:
            raise ValueError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            step, kind = kind >> 4, kind & 15
            number = number + step if step else self._integer()
            fields[number] = self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        return self._element(kind, depth)

    def _element(self, kind: int, depth: int) -> Any:
        """Return one value in the form that list elements have, where a boolean takes one byte."""
        if kind in _INTEGERS:
            return self._integer()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            length = head >> 4 if head >> 4 < 15 else self._varint()
            self._expect(length)
            return [self._element(head & 15, depth + 1) for _ in range(length)]
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind in (_BYTE, _TRUE, _FALSE):
            return self._byte()
        # Maps are not in Parquet's metadata.
        raise ValueError(f"its footer has a value of the unknown type {kind}")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, length: int) -> bytes:
        self._expect(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def _expect(self, length: int) -> None:
        """Raise ValueError unless ``length`` bytes follow; an element takes at least one byte."""
        if length > len(self._data) - self._at:
            raise ValueError("its footer is cut short")

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("its footer has a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
