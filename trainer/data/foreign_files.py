"""Safe reading of a run's files, which may come from an untrusted place.

Owns the limits on a run's folder (kinds, number and sizes of files) and the reading of JSON, text
and Parquet files within them. The callers check the content.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llmperf_common.errors import LlmperfError
from llmperf_common.files.foreign_json import parse_json
from llmperf_common.files.parquet_memory import check_memory
from llmperf_common.files.plain_files import UnfitFileError, read_plain
from llmperf_common.text_limits import MAX_TEXT_BYTES
from trainer.errors import BadInput

MAX_JSON_BYTES = 32 * 2**20
"""Maximum size of a JSON file of a run in bytes, unpacked. The largest tokenizers have 32 MiB. In a
run with 5,000 kernels the other files have up to 0.3 MiB; the training range has its own limit."""
MEND = "copy the run again, or train it anew"
"""What a user can do about a damaged file of a run."""
PACKED_SUFFIX = ".gz"
MAX_TABLE_BYTES = 2**30
_MAX_FILES = 10_000
_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RecursionError,
    TypeError, ValueError, pa.ArrowException,
)  # fmt: skip
"""Exceptions that a library may raise on a damaged file."""

_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_KINDS = (
    (pa.types.is_integer, pa.types.is_floating),
    (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary),
    _LISTS,
)
"""Types that may stand for each other in a column. An exact test follows when the values are cast,
such as of numbers without a fraction to integers."""


@contextmanager
def reading(what: str, mend: str = "") -> Iterator[None]:
    """Turn a reader's exception on a damaged file into BadInput; an LlmperfError passes through.

    Args:
        what: names the file in the message.
        mend: what the user can do, for the end of the message.
    """
    try:
        yield
    except LlmperfError:
        raise
    except _DAMAGE as error:
        detail = f"{type(error).__name__}: {error}"
        end = f"; {mend}" if mend else ""
        raise BadInput(f"{what} cannot be read: {detail[:500]}{end}") from None


def read_json_value(path: Path, *, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the value of a JSON file (``.gz``: unpacked). Raises OSError, ValueError."""
    data = _read(path, max_bytes)
    return parse_json(_unpacked(data, max_bytes) if path.suffix == PACKED_SUFFIX else data)


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        return read_plain(path, max_bytes=max_bytes)
    except UnfitFileError as error:
        raise ValueError(str(error)) from None


def _unpacked(data: bytes, max_bytes: int) -> bytes:
    """Return the unpacked bytes of gzip data. Raises ValueError above ``max_bytes``."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: with gzip's header and checksum
    try:
        found = unpacker.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"damaged gzip data: {error}") from None
    if len(found) > max_bytes:
        raise ValueError(f"the gzip data unpacks to more than {max_bytes} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("damaged gzip data: it ends early, or more data follows its end")
    return found


def read_ascii(path: Path, *, max_bytes: int) -> str:
    """Return the text of an ASCII file. Raises OSError, ValueError."""
    data = _read(path, max_bytes)
    if not data.isascii():  # one such character could make the text take four times the file's size
        raise ValueError("it has characters outside of ASCII")
    return data.decode("ascii")


def read_table(
    path: Path,
    wanted: pa.Schema,
    *,
    others: Collection[str] = (),
    max_text_bytes: int = MAX_TEXT_BYTES,
) -> pa.Table:
    """Return some columns of a Parquet file; no other column is unpacked.

    Args:
        path: the file.
        wanted: columns that the file must have, with the types to cast them to. A field that is not
            nullable must have no nulls.
        others: names of further columns, which may be missing and keep their types.
        max_text_bytes: maximum bytes of a text of a wanted column.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is too large, or a wanted column is missing, is of another type or has
            nulls or a longer text. Names and types are checked before anything is unpacked.
        ArrowException: The file is damaged.
    """
    data = pa.py_buffer(_read(path, MAX_TABLE_BYTES))
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        stored = file.schema_arrow
        _check_columns(stored, wanted)
        names = [*wanted.names, *(one for one in others if stored.names.count(one) == 1)]
        check_memory(data, names)
        table = file.read(columns=names).select(names)
        table.validate(full=True)  # texts that are not UTF-8
        table = with_types(table, wanted)
    for field in wanted:
        if not field.nullable and table.column(field.name).null_count:
            raise ValueError(f"column {field.name} has nulls")
        _check_texts(field.name, table.column(field.name), max_text_bytes)
    return table


def _check_texts(name: str, column: pa.ChunkedArray, most: int) -> None:
    if not pa.types.is_string(column.type):
        return
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > most:
        raise ValueError(f"column {name} has a text of {longest:,} bytes, more than {most:,}")


def _check_columns(stored: pa.Schema, wanted: pa.Schema) -> None:
    """Raise ValueError if a wanted column is missing, or of another kind of type."""
    for field in wanted:
        if stored.names.count(field.name) != 1:
            there = "missing" if field.name not in stored.names else "there twice"
            raise ValueError(f"column {field.name} is {there}")
        _check_kind(stored.field(field.name), field.type)


def _check_kind(found: pa.Field, wanted: pa.DataType) -> None:
    if not _is_alike(found.type, wanted):
        raise ValueError(f"column {found.name} is {found.type}, not {wanted}")


def _is_alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types are of one kind, such as numbers; a column of nulls is of each kind."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found) or found == wanted:
        return True
    for kinds in _KINDS:
        if any(is_kind(wanted) for is_kind in kinds):
            return any(is_kind(found) for is_kind in kinds) and (
                kinds is not _LISTS or _is_alike(found.value_type, wanted.value_type)
            )
    return False


def with_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns that ``schema`` names cast to the types of ``schema``.

    Columns that ``schema`` does not name stay as they are; missing columns stay missing.

    Raises:
        ValueError: A column is of another kind, or cannot be cast without a loss.
    """
    for number, name in enumerate(table.column_names):
        if name not in schema.names:
            continue
        wanted = schema.field(name).type
        _check_kind(table.schema.field(number), wanted)
        try:
            column = table.column(number).cast(wanted)
        except pa.ArrowException:
            raise ValueError(
                f"column {name} is {table.column(number).type}, not {wanted}"
            ) from None
        table = table.set_column(number, name, column)
    return table


def check_files(folder: Path) -> None:
    """Check that a run's folder has regular files only and that no link leads out of it.

    Raises:
        BadInput: A file is not regular, a link leads out, or there are more than ``_MAX_FILES``.
    """
    num_files = 0
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place) / name
            num_files += 1
            if num_files > _MAX_FILES:
                raise BadInput(f"{folder}: has more than {_MAX_FILES} files: it is not a run")
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
                    raise BadInput(
                        f"{path} is a link that leads out of the run: copy the run with the "
                        "targets of its links (cp -rL)"
                    )
                mode = path.stat().st_mode if path.exists() else mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadInput(f"{path} is not a regular file: remove it from the run's folder")
