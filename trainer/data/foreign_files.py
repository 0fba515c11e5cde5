"""The files of a run that others may have made: what each may be, looked at before any is read.

Owns the limits on a run's folder and the reading of its JSON. What a file says is its reader's matter.
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
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RecursionError, TypeError, ValueError,
    pa.ArrowException,
)  # fmt: skip
"""What a reader meets in a file that is not as it was written."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what a damaged file makes its reader throw into BadInput; errors that have their message stay."""
    try:
        yield
    except LlmperfError:
        raise
    except _DAMAGE as error:
        detail = f"{type(error).__name__}: {error}"
        raise BadInput(f"{what} cannot be read: {detail[:500]}") from None


def read_json_value(path: Path) -> Any:
    """Return the value of a JSON file, packed by gzip if its name ends so. Raises OSError, ValueError."""
    try:
        data = read_plain(path, max_bytes=MAX_JSON_BYTES)
    except UnfitFileError as error:
        raise ValueError(str(error)) from None
    if path.suffix == PACKED_SUFFIX:
        data = _unpacked(data)
    return parse_json(data, max_values=_MAX_JSON_VALUES)


def _unpacked(data: bytes) -> bytes:
    """Return what gzip packed, never more than a JSON file may have."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: with gzip's header and checksum
    try:
        found = unpacker.decompress(data, MAX_JSON_BYTES + 1)
    except zlib.error as error:
        raise ValueError(f"damaged gzip data: {error}") from None
    if len(found) > MAX_JSON_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_JSON_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("damaged gzip data: it ends early, or more follows its end")
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
    """Return the table with the columns that ``schema`` names in its types; others, and missing ones, stay so.

    Raises:
        ValueError: A column's values have another meaning, such as texts for numbers.
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
    """Assert that a run's folder has regular files only, and that no link leads out of it.

    Raises:
        BadInput: One is none, or there are more than a run has.
    """
    num_files = 0
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place) / name
            num_files += 1
            if num_files > _MAX_FILES:
                raise BadInput(f"{folder}: has more than {_MAX_FILES} files: it is no run")
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
                    raise BadInput(
                        f"{path} is a link that leads out of the run: copy it with the targets of its links (cp -rL)"
                    )
                mode = path.stat().st_mode if path.exists() else mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadInput(f"{path} is not a regular file: it is not read")
