"""Safe reading of a run's files, which may come from an untrusted place.

Owns the limits on a run's folder (kinds, number and sizes of files) and the reading of JSON, text
and Parquet files within them. The callers check the content.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.errors import LlmperfError
from llmperf_common.files.foreign_json import parse_json
from llmperf_common.files.parquet_memory import check_memory
from llmperf_common.files.plain_files import UnfitFileError, read_plain
from trainer.errors import BadInput

MAX_JSON_BYTES = 256 * 2**20
PACKED_SUFFIX = ".gz"
MAX_TABLE_BYTES = 2**30
_MAX_JSON_VALUES = 4_000_000
_MAX_FILES = 10_000
_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RecursionError,
    TypeError, ValueError, pa.ArrowException,
)  # fmt: skip
"""Exceptions that a library may raise on a damaged file."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn a reader's exception on a damaged file into BadInput; an LlmperfError passes through."""
    try:
        yield
    except LlmperfError:
        raise
    except _DAMAGE as error:
        detail = f"{type(error).__name__}: {error}"
        raise BadInput(f"{what} cannot be read: {detail[:500]}") from None


def read_json_value(path: Path) -> Any:
    """Return the value of a JSON file (``.gz``: unpacked). Raises OSError, ValueError."""
    try:
        data = read_plain(path, max_bytes=MAX_JSON_BYTES)
    except UnfitFileError as error:
        raise ValueError(str(error)) from None
    if path.suffix == PACKED_SUFFIX:
        data = _unpacked(data)
    return parse_json(data, max_values=_MAX_JSON_VALUES)


def _unpacked(data: bytes) -> bytes:
    """Return the unpacked bytes of gzip data. Raises ValueError above ``MAX_JSON_BYTES``."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: with gzip's header and checksum
    try:
        found = unpacker.decompress(data, MAX_JSON_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"damaged gzip data: {error}") from None
    if len(found) > MAX_JSON_BYTES:
        raise ValueError(f"the gzip data unpacks to more than {MAX_JSON_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("damaged gzip data: it ends early, or more data follows its end")
    return found


def read_text(path: Path) -> str:
    """Return the text of a file. Raises OSError, ValueError."""
    try:
        return read_plain(path, max_bytes=MAX_JSON_BYTES).decode("utf-8")
    except UnfitFileError as error:
        raise ValueError(str(error)) from None


def read_table(path: Path) -> pa.Table:
    """Return the table of a Parquet file. Raises OSError, ValueError, ArrowException."""
    try:
        data = pa.py_buffer(read_plain(path, max_bytes=MAX_TABLE_BYTES))
    except UnfitFileError as error:
        raise ValueError(str(error)) from None
    check_memory(data)
    return pq.read_table(pa.BufferReader(data))


def with_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the columns that ``schema`` names cast to the types of ``schema``.

    Columns that ``schema`` does not name stay as they are; missing columns stay missing.

    Raises:
        ValueError: A column cannot be cast, such as texts to numbers.
    """
    for number, name in enumerate(table.column_names):
        if name not in schema.names:
            continue
        wanted = schema.field(name).type
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
