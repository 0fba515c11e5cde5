"""Rows of a file of launches: JSON lines, a JSON array, CSV or Parquet, recognised by its content.

Owns the formats, their limits and their messages. ``configs.py`` checks the values of a row.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.files import foreign_json
from llmperf_common.files.parquet_memory import check_memory
from llmperf_common.files.python_rows import python_rows
from llmperf_common.files.visible import shortened
from trainer.errors import BadInput

KEYS = ("global_size", "local_size", "args", "id")
NEEDED = KEYS[:2]
MORE = "see docs/how-to/predict-many-configs.md"
MAX_KEYS = 1_000
"""Maximum number of columns of a table, or of keys of a JSON object."""
_MAX_ROW_BYTES = 2**20
"""Maximum number of bytes of a row of CSV, or of a line of JSON."""
_MAX_LINES = 4_000_000
_PARQUET_MAGIC = b"PAR1"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ARGUMENT_PREFIX = "arg."
_BATCH_ROWS = 4_096
_MOST_LEVELS = {"global_size": 1, "local_size": 1, "args": 2}
"""Maximum number of lists, structs and maps around a value of a Parquet column; 0 for the others. A
map is a list of structs."""
_ALLOWED_ARGUMENT = "give one number for each launch, or remove the column"
_ALLOWED = {
    "global_size": "give whole numbers, or lists of them",
    "local_size": "give whole numbers, or lists of them",
    "args": "give JSON texts, or structs or maps of numbers",
    "id": "give texts or whole numbers",
}
"""What a column of a Parquet file may hold, for messages."""

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""The place of each row (``line 7``), and its values by key."""


def rows_of(content: bytes, where: str, max_launches: int) -> Rows:
    """Return the rows of a file, in order.

    Args:
        content: the bytes of the file.
        where: name of the file in messages.
        max_launches: maximum number of rows of a Parquet file, checked before it is unpacked.

    Raises:
        BadInput: The file or a row cannot be read.
    """
    if content.startswith(_PARQUET_MAGIC):
        return _parquet_rows(content, where, max_launches)
    start = len(_BYTE_ORDER_MARK) if content.startswith(_BYTE_ORDER_MARK) else 0
    first = re.compile(rb"\s*+(.?)", re.DOTALL).match(content, start)
    assert first is not None, "it matches every text"
    match first[1]:
        case b"":
            return iter(())
        case b"[":
            return _array_rows(content, where)
        case b"{":
            return _line_rows(content, start, where)
        case _:
            return _csv_rows(content, start, where)


def shown(value: Any) -> str:
    """Return a faulty value as a message shows it."""
    return shortened(value if isinstance(value, str) else repr(value))


def example() -> str:
    """Return a launch as an example for messages."""
    return '{"global_size": [4096], "local_size": [64], "args": {"n": 1024}}'


_TOO_DEEP = "it is nested too deeply: give one flat JSON object per launch"
_TOO_LONG = "a number has thousands of digits: give sizes and arguments that a kernel takes"


class _ObjectError(Exception):
    """A JSON object has too many keys, or a key twice (Python would keep only the last value)."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise _ObjectError(
            f"an object has {len(pairs):,} keys: at most {MAX_KEYS:,} are allowed; give one launch "
            "per object, with arguments of the kernel only"
        )
    found = dict(pairs)
    if len(found) < len(pairs):
        name = _first_repeated([name for name, _ in pairs])
        raise _ObjectError(
            f"the key {shown(repr(name))} appears twice in one object: keep one of them"
        )
    return found


def _first_repeated(names: list[str]) -> str:
    return next(name for name, times in Counter(names).items() if times > 1)


def _lines(content: bytes, start: int, line_end: bytes, where: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line, with its line end; refuse long lines."""
    pattern = re.compile(rb"[^%b]*+(?:\r\n|[%b])|[^%b]++" % (line_end, line_end, line_end))
    for number, found in enumerate(pattern.finditer(content, start), start=1):
        if number > _MAX_LINES:
            raise BadInput(
                f"{where}: more than {_MAX_LINES:,} lines: remove empty lines, or write the "
                "launches to several files"
            )
        if found.end() - found.start() > _MAX_ROW_BYTES:
            raise BadInput(
                f"{where}, line {number}: longer than {_MAX_ROW_BYTES >> 20} MiB: write one launch "
                "per line"
            )
        try:
            yield number, found[0].decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadInput(
                f"{where}, line {number}: byte {found.start() + error.start} is not UTF-8: "
                "save the file as UTF-8"
            ) from None


def _line_rows(content: bytes, start: int, where: str) -> Rows:
    for number, line in _lines(content, start, rb"\n", where):
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
            except _ObjectError as error:
                raise BadInput(f"{where}, line {number}: {error}") from None
            except ValueError:  # Python's own limit of digits
                raise BadInput(f"{where}, line {number}: {_TOO_LONG}") from None
            yield f"line {number}", _mapping(entry, f"{where}, line {number}")


def _array_rows(content: bytes, where: str) -> Rows:
    try:
        foreign_json.check_memory(content)
    except ValueError as error:
        raise BadInput(
            f"{where}: the JSON array is too large ({error}): write one object per line, without "
            "brackets and commas around them, or several files"
        ) from None
    try:
        entries = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_once)
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{where}, line {error.lineno}: {error.msg} (column {error.colno}): correct the JSON "
            "array"
        ) from None
    except RecursionError:
        raise BadInput(f"{where}: {_TOO_DEEP}") from None
    except _ObjectError as error:
        raise BadInput(f"{where}: {error}") from None
    except UnicodeDecodeError:
        raise
    except ValueError:
        raise BadInput(f"{where}: {_TOO_LONG}") from None
    for number, entry in enumerate(entries, start=1):
        yield f"entry {number}", _mapping(entry, f"{where}, entry {number}")


def _mapping(entry: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise BadInput(f"{where}: {shown(entry)} is not an object: give a launch as {example()}")
    unknown = [key for key in entry if key not in KEYS]
    if unknown:
        raise BadInput(
            f"{where}: unknown key {shown(repr(unknown[0]))}: a launch has {', '.join(KEYS)}; put "
            'arguments of the kernel into args, as {"args": {"n": 1024}}'
        )
    return entry


class _CsvLines(Iterator[str]):
    """The lines of a CSV file for ``csv.reader``; quoted line breaks give a row several lines."""

    def __init__(self, content: bytes, start: int, where: str) -> None:
        self._lines = _lines(content, start, rb"\r\n", where)
        self._where = where
        self.row_chars = 0
        """Number of characters of the row so far; the caller resets it at the end of each row."""

    def __next__(self) -> str:
        number, line = next(self._lines)
        self.row_chars += len(line)
        if self.row_chars > _MAX_ROW_BYTES:
            raise BadInput(
                f"{self._where}, line {number}: the row is longer than {_MAX_ROW_BYTES >> 20} MiB, "
                "perhaps because a quote is not closed: correct the quotes"
            )
        return line


def _csv_rows(content: bytes, start: int, where: str) -> Rows:
    lines = _CsvLines(content, start, where)
    reader = csv.reader(lines, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_columns(header, f"{where}, line 1")
        for cells in reader:
            lines.row_chars = 0
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


def _parquet_rows(content: bytes, where: str, max_launches: int) -> Rows:
    unreadable = f"{where}: no readable Parquet file"
    try:
        parquet = pq.ParquetFile(pa.BufferReader(content))
        _check_columns(parquet.schema_arrow.names, where)
        _check_types(parquet.schema_arrow, where)
        check_memory(pa.py_buffer(content))
    except BadInput:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{unreadable}: {error}") from None
    if parquet.metadata.num_rows > max_launches:
        raise too_many(where, max_launches)
    batches = parquet.iter_batches(_BATCH_ROWS)
    number = 0
    while True:
        try:
            batch = next(batches, None)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise BadInput(f"{unreadable}: {error}") from None
        if batch is None:
            return
        for row in _python_rows(batch, number, where):
            number += 1
            known = {name: value for name, value in row.items() if value is not None}
            yield f"row {number}", _from_columns(known, f"{where}, row {number}")


def too_many(where: str, max_launches: int) -> BadInput:
    """Return the error of a file with too many launches."""
    return BadInput(f"{where}: more than {max_launches:,} launches: write them to several files")


def _python_rows(batch: pa.RecordBatch, num_before: int, where: str) -> Iterator[dict[str, Any]]:
    try:
        yield from python_rows(batch, num_before=num_before)
    except UnicodeDecodeError:
        raise BadInput(f"{where}: a text is not UTF-8: write texts as UTF-8") from None
    except (ValueError, OverflowError, pa.ArrowException) as error:  # a date beyond Python's limit
        raise BadInput(
            f"{where}: a column cannot be read: {error}: give numbers and texts"
        ) from None


def _check_types(schema: pa.Schema, where: str) -> None:
    """Refuse a column that is nested more deeply than any of its values may be.

    No value is converted before: a file of 2 KB may have a list of millions of structs, each of
    which takes hundreds of bytes in Python. What is left in the file is needed: each column is
    a key of a launch or an argument.
    """
    for field in schema:
        if _num_levels(field.type) > _MOST_LEVELS.get(field.name, 0):
            raise BadInput(
                f"{where}: column {shown(repr(field.name))} has values of the type "
                f"{shown(str(field.type))}: {_ALLOWED.get(field.name, _ALLOWED_ARGUMENT)}"
            )


def _num_levels(kind: pa.DataType) -> int:
    """Return how many lists, structs and maps there are around a value of a type, at most."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return _num_levels(kind.value_type)
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return max((1 + _num_levels(one) for one in inner), default=int(pa.types.is_nested(kind)))


def _check_columns(names: list[str], where: str) -> None:
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise BadInput(
            f"{where}: no column {missing[0]}; its columns are "
            f"{shown(', '.join(names[:MAX_KEYS])) or 'none'}. A file of launches needs the columns "
            "global_size and local_size. It may have a column id and one column for each argument "
            f"of the kernel; {MORE}"
        )
    if len(names) > MAX_KEYS:
        raise BadInput(
            f"{where}: {len(names):,} columns: at most {MAX_KEYS:,} are allowed; keep those of the "
            "kernel's arguments"
        )
    there = set(names)
    twice = {name for name, times in Counter(names).items() if times > 1}
    twice |= {name for name in there if f"{_ARGUMENT_PREFIX}{name}" in there and name not in KEYS}
    if twice:
        raise BadInput(
            f"{where}: column {shown(repr(min(twice)))} appears twice: keep one of the two"
        )


def _from_columns(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a table row as a launch; columns other than the launch keys are kernel arguments."""
    values = {key: row[key] for key in KEYS if key in row}
    arguments = {
        name.removeprefix(_ARGUMENT_PREFIX): value
        for name, value in row.items()
        if name not in KEYS
    }
    if "args" not in values:
        return {**values, "args": arguments}
    named = {
        name: value
        for name, value in _named_arguments(values["args"], f"{where}: args").items()
        if value is not None
    }
    twice = arguments.keys() & named.keys()
    if twice:
        raise BadInput(
            f"{where}: argument {shown(repr(min(twice)))} has a column and is in args, too: give it "
            "once"
        )
    return {**values, "args": arguments | named}


def _named_arguments(given: Any, where: str) -> dict[str, Any]:
    """Return the column ``args``: JSON text, a struct, or a map (Arrow's form is pairs)."""
    found = given
    if isinstance(given, str):
        try:
            found = json.loads(given, object_pairs_hook=_once)
        except _ObjectError as error:
            raise BadInput(f"{where}: {error}") from None
        except (ValueError, RecursionError):
            found = None
    elif isinstance(given, list) and all(isinstance(pair, tuple) for pair in given):
        found = dict(given)
        if len(found) < len(given):
            raise BadInput(f"{where}: a name appears twice: keep one of them")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise not_an_object(given, where)
    return found


def not_an_object(given: Any, where: str) -> BadInput:
    """Return the error of arguments that are not names with values."""
    return BadInput(
        f"{where} {shown(given)} is not an object: write argument names and values, as "
        '{"n": 1024}'
    )
