"""The files of a run that others may have made: what each may be, looked at before any is read.

Owns the limits on a run's folder and the reading of its JSON. What a file says is its reader's matter.
"""

from __future__ import annotations

import os
import stat
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
    """Return the value of a JSON file. Raises OSError, ValueError."""
    try:
        return parse_json(read_plain(path, max_bytes=MAX_JSON_BYTES), max_values=_MAX_JSON_VALUES)
    except UnfitFileError as error:
        raise ValueError(str(error)) from None


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
                        f"{path} is a link that leads out of the run: copy it with what its links mean (cp -rL)"
                    )
                mode = path.stat().st_mode if path.exists() else mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise BadInput(f"{path} is no regular file: it is not read")
