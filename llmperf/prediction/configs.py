"""Launches from a file of JSON lines, a JSON array, CSV or Parquet, recognised by its content.

Owns the formats and their messages. The prediction checks whether kernel and device allow a launch.
Its messages use the name that each launch gets here (``line 7``).
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf.prediction.model import Launch, Size
from llmperf_common.files.parquet_memory import check_memory
from trainer.errors import BadInput
from trainer.prediction.arguments import Value

STDIN = "-"
_KEYS = ("global_size", "local_size", "args", "id")
_NEEDED = _KEYS[:2]
_PARQUET_MAGIC = b"PAR1"
_ARGUMENT_PREFIX = "arg."
_MORE = "see docs/how-to/predict-many-configs.md"
_MAX_BYTES = 256 * 2**20
_MAX_LAUNCHES = 1_000_000
"""Maximum number of launches in one file. Each launch takes about 0.4 KiB of memory before the
first prediction."""
_MAX_SIZE = 2**63
_MOST_SHOWN = 80
"""Maximum number of characters of a faulty value in a message."""

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""The place of each row (``line 7``), and its values by key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One launch of a file.

    Attributes:
        id: the user's name for the launch; None if the file gives no name.
        launch: the launch; its ``name`` is its place in the file.
    """

    id: str | int | None
    launch: Launch


def read_configs(file: str | Path, shared: Mapping[str, Value] | None = None) -> list[Config]:
    """Read the launches of a file, in order.

    Args:
        file: path of the file; ``-`` reads standard input.
        shared: arguments for all launches; a launch's own arguments take precedence.

    Raises:
        BadInput: The file cannot be read, has no launch, or a launch is invalid.
    """
    where = "standard input" if str(file) == STDIN else str(file)
    content = _content(file, where)
    found: list[Config] = []
    try:
        for place, values in _rows(content, where):
            _check_number(len(found) + 1, where)
            found.append(_config(f"{where}, {place}", values, shared or {}))
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{where}: byte {error.start} is not UTF-8: save the file as UTF-8"
        ) from None
    if not found:
        raise BadInput(f"{where}: holds no launch: write one per line; {_MORE}")
    return found


def _check_number(number: int, where: str) -> None:
    if number > _MAX_LAUNCHES:
        raise BadInput(
            f"{where}: more than {_MAX_LAUNCHES:,} launches: write them to several files"
        )


def _content(file: str | Path, where: str) -> bytes:
    try:
        content = _start_of(file)
    except OSError as error:
        raise BadInput(
            f"{where}: {error.strerror}: name a readable file of launches, or - for standard input"
        ) from None
    if len(content) > _MAX_BYTES:
        raise BadInput(
            f"{where}: more than {_MAX_BYTES >> 20} MiB: give the launches in several files"
        )
    return content


def _start_of(file: str | Path) -> bytes:
    if str(file) != STDIN:
        with Path(file).open("rb") as stream:
            return stream.read(_MAX_BYTES + 1)  # any kind of file is allowed, including a pipe
    if sys.stdin is None:  # the parent process closed it
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return sys.stdin.buffer.read(_MAX_BYTES + 1)


def _rows(content: bytes, where: str) -> Rows:
    if content.startswith(_PARQUET_MAGIC):
        return _parquet_rows(content, where)
    text = content.decode("utf-8-sig")
    match text.lstrip()[:1]:
        case "":
            return iter(())
        case "[":
            return _array_rows(text, where)
        case "{":
            return _line_rows(text, where)
        case _:
            return _csv_rows(text, where)


_TOO_DEEP = "it is nested too deeply: give one flat JSON object per launch"


class _RepeatedKeyError(Exception):
    """A JSON object has a key twice; Python's reader would silently keep the last value."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(next(name for name in names if names.count(name) > 1))
    return found


_TOO_LONG = "a number has thousands of digits: give sizes and arguments that a kernel takes"


def _line_rows(text: str, where: str) -> Rows:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                entry = json.loads(line, object_pairs_hook=_once)
            except json.JSONDecodeError as error:
                raise BadInput(
                    f"{where}, line {number}: {error.msg} (column {error.colno}): "
                    "write one JSON object per line"
                ) from None
            except RecursionError:
                raise BadInput(f"{where}, line {number}: {_TOO_DEEP}") from None
            except _RepeatedKeyError as error:
                raise BadInput(f"{where}, line {number}: {_repeated(error)}") from None
            except ValueError:  # Python's own limit of digits
                raise BadInput(f"{where}, line {number}: {_TOO_LONG}") from None
            yield f"line {number}", _mapping(entry, f"{where}, line {number}")


def _array_rows(text: str, where: str) -> Rows:
    try:
        entries = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{where}, line {error.lineno}: {error.msg} (column {error.colno}): correct the JSON "
            "array"
        ) from None
    except RecursionError:
        raise BadInput(f"{where}: {_TOO_DEEP}") from None
    except _RepeatedKeyError as error:
        raise BadInput(f"{where}: {_repeated(error)}") from None
    except ValueError:
        raise BadInput(f"{where}: {_TOO_LONG}") from None
    for number, entry in enumerate(entries, start=1):
        yield f"entry {number}", _mapping(entry, f"{where}, entry {number}")


def _repeated(error: _RepeatedKeyError) -> str:
    return f"the key {_shown(repr(error.args[0]))} appears twice in one object: keep one of them"


def _mapping(entry: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise BadInput(f"{where}: {_shown(entry)} is not an object: give a launch as {_example()}")
    unknown = [key for key in entry if key not in _KEYS]
    if unknown:
        raise BadInput(
            f"{where}: unknown key {unknown[0]!r}: a launch has {', '.join(_KEYS)}; put arguments "
            'of the kernel into args, as {"args": {"n": 1024}}'
        )
    return entry


def _csv_rows(text: str, where: str) -> Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(header, f"{where}, line 1")
        for cells in reader:
            line = f"line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                raise BadInput(
                    f"{where}, {line}: {len(cells)} cells, but {len(header)} columns: quote a cell "
                    'that holds commas, as "64,64"'
                )
            given = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            known = {name: cell for name, cell in given.items() if cell}
            yield line, _from_columns(known, f"{where}, {line}")
    except csv.Error as error:
        raise BadInput(f"{where}, line {reader.line_num}: {error}: correct the CSV") from None


def _parquet_rows(content: bytes, where: str) -> Rows:
    try:
        check_memory(pa.py_buffer(content))
        with pq.ParquetFile(pa.BufferReader(content)) as parquet:
            num_rows = parquet.metadata.num_rows
            table = parquet.read() if num_rows <= _MAX_LAUNCHES else None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{where}: no readable Parquet file: {error}") from None
    _check_number(num_rows, where)
    assert table is not None, "it was refused"
    _check_columns(table.column_names, where)
    number = 0
    for batch in table.to_batches():
        for row in _listed(batch, where):
            number += 1
            known = {name: value for name, value in row.items() if value is not None}
            yield f"row {number}", _from_columns(known, f"{where}, row {number}")


def _listed(batch: pa.RecordBatch, where: str) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError, pa.ArrowException) as error:  # a date beyond Python's limit
        raise BadInput(
            f"{where}: a column cannot be read: {error}: give numbers and texts"
        ) from None
    return rows


def _check_columns(names: list[str], where: str) -> None:
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise BadInput(
            f"{where}: no column {missing[0]}; its columns are "
            f"{_shown(', '.join(names)) or 'none'}. A file of launches needs the columns "
            "global_size and local_size. It may have a column id and one column for each argument "
            f"of the kernel; {_MORE}"
        )
    twice = {name for name in names if names.count(name) > 1}
    twice |= {name for name in names if f"{_ARGUMENT_PREFIX}{name}" in names and name not in _KEYS}
    if twice:
        raise BadInput(f"{where}: column {min(twice)!r} appears twice: keep one of the two")


def _from_columns(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a table row as a launch; columns other than the launch keys are kernel arguments."""
    values = {key: row[key] for key in _KEYS if key in row}
    arguments = {
        name.removeprefix(_ARGUMENT_PREFIX): value
        for name, value in row.items()
        if name not in _KEYS
    }
    given = values.get("args")
    if isinstance(given, str):
        try:
            given = json.loads(given, object_pairs_hook=_once)
        except _RepeatedKeyError as error:
            raise BadInput(f"{where}: args: {_repeated(error)}") from None
        except (ValueError, RecursionError):
            return values  # ``_config`` refuses the text with a message, because it is no object
    if isinstance(given, list):  # Arrow's form of a map
        if len(dict(given)) < len(given):
            raise BadInput(f"{where}: args: a name appears twice: keep one of them")
        given = dict(given)
    if isinstance(given, Mapping):
        named = {name: value for name, value in given.items() if value is not None}
        twice = arguments.keys() & named.keys()
        if twice:
            raise BadInput(
                f"{where}: argument {_shown(repr(min(twice)))} has a column and is in args, too: "
                "give it once"
            )
        arguments |= named
    elif given is not None:
        return values
    return {**values, "args": arguments}


def _config(where: str, values: Mapping[str, Any], shared: Mapping[str, Value]) -> Config:
    for key in _NEEDED:
        if values.get(key) is None:
            raise BadInput(f"{where}: no {key}: give a launch as {_example()}")
    given = values.get("args")
    if not (given is None or isinstance(given, Mapping)):
        raise BadInput(
            f"{where}: args {_shown(given)} is not an object: write argument names and values, "
            'as {"n": 1024}'
        )
    name = values.get("id")
    if isinstance(name, bool) or not (name is None or isinstance(name, str | int)):
        raise BadInput(f"{where}: id {_shown(name)}: give a text or a whole number")
    if isinstance(name, str) and not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"{where}: id {ascii(name)[:_MOST_SHOWN]}: contains a lone surrogate, which is no "
                "character: give another id"
            ) from None
    return Config(
        id=name,
        launch=Launch(
            global_size=_size(values["global_size"], f"{where}: global_size"),
            local_size=_size(values["local_size"], f"{where}: local_size"),
            args={**shared, **(given or {})},
            name=where,
        ),
    )


def _size(value: Any, where: str) -> Size:
    parts: Iterable[Any] = (
        value.replace("x", ",").split(",")
        if isinstance(value, str)
        else value
        if isinstance(value, list)
        else [value]
    )
    try:
        sizes = tuple(_whole(part) for part in parts)
    except (TypeError, ValueError, OverflowError):
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1 or max(sizes) >= _MAX_SIZE:
        raise BadInput(
            f"{where} {_shown(value)}: give one to three positive whole numbers, such as 1024 or "
            "[64, 64]"
        )
    return sizes


def _whole(part: Any) -> int:
    if isinstance(part, bool):
        raise ValueError(part)
    number = int(part)
    if not isinstance(part, str) and number != part:
        raise ValueError(part)
    return number


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} …"


def _example() -> str:
    return '{"global_size": [4096], "local_size": [64], "args": {"n": 1024}}'
