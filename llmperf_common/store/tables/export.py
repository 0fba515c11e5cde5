"""Export a dataset as Arrow IPC files or CSV, for tools that read neither Parquet nor manifests.

Owns the files of both formats. Reads and writes shard by shard. A file gets its name only when it
is complete, and never replaces another file.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from llmperf_common.csv_cells import safe_texts
from llmperf_common.files.outputs import OutputTaken, is_folder
from llmperf_common.files.python_rows import parts
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import TEMPORARY_PREFIX, StoreError
from llmperf_common.store.manifests.run import RUN_FILE
from llmperf_common.store.tables.reader import Dataset

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class ExportFormat(StrEnum):
    """The formats that ``export`` writes."""

    ARROW = "arrow"
    """Arrow IPC files: ``samples.arrow``, ..."""
    CSV = "csv"
    """``samples.csv``, ...: lists and structs as JSON text, null as an empty unquoted field. A text
    that a spreadsheet could evaluate has an apostrophe before it (``csv_cells.py``)."""


def export(dataset: Dataset, out: Path, fmt: ExportFormat) -> list[Path]:
    """Write the dataset's three tables into the folder ``out`` and return the files' paths.

    Raises:
        OutputTaken: A file of that name exists, or ``out`` is not a folder.
        StoreError: ``out`` cannot be written, or a shard is damaged.
    """
    paths = [out / f"{table}.{fmt.value}" for table in TABLES]
    is_folder(out)
    if os.path.lexists(out / RUN_FILE):
        raise OutputTaken(f"--out: {out} is a dataset: choose another folder")
    for path in paths:
        if os.path.lexists(path):
            raise _exists(path)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for table, path in zip(TABLES, paths, strict=True):
            with _new_file(path) as temporary:
                _write(dataset, table, temporary, fmt)
    except OSError as error:
        raise StoreError(
            f"cannot export to {error.filename or out}: {error.strerror or error}; choose a folder "
            "with free space that you may write to"
        ) from error
    return paths


def _write(dataset: Dataset, table: str, path: Path, fmt: ExportFormat) -> None:
    schema = TABLES[table] if fmt is ExportFormat.ARROW else _flat_schema(TABLES[table])
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("xb"))  # Arrow refuses a path that is not UTF-8
        writer = stack.enter_context(
            pa.ipc.new_file(file, schema)
            if fmt is ExportFormat.ARROW
            else pyarrow.csv.CSVWriter(file, schema)
        )
        for part in dataset.iter_table(table):
            if fmt is ExportFormat.ARROW:
                writer.write_table(part)
                continue
            for rows in parts(part):
                writer.write_table(_flattened(rows, schema))


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; then link its file to ``path``, or raise OutputTaken if it exists."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
    try:
        yield temporary
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise _exists(path) from None
    finally:
        temporary.unlink(missing_ok=True)


def _exists(path: Path) -> OutputTaken:
    return OutputTaken(f"--out: {path} exists: choose another folder, or remove it first")


def _flat_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(f.name, pa.string() if pa.types.is_nested(f.type) else f.type) for f in schema]
    )


def _flattened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        pa.array([_json(value, field.type) for value in table.column(field.name).to_pylist()])
        if pa.types.is_nested(field.type)
        else table.column(field.name)
        for field in table.schema
    ]
    return pa.table(
        [
            safe_texts(column.cast(field.type))
            if pa.types.is_string(field.type)
            else column.cast(field.type)
            for column, field in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def _json(value: Any, kind: pa.DataType) -> str | None:
    if value is None:
        return None
    return _ENCODER.encode(value)
