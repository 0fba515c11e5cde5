"""Mutations of folders: bytes, JSON, Parquet, arrays and file kinds, so that readers meet all that a stranger can write."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.ids import sha256_hex

_ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, -(2**63), 10**40, 0.5, -0.0, 1e308, 5e-324, "", "x", "0", "../../../tmp/x", "/etc/passwd",
    "a\0b", "\x1b]52;c;aGk=\x07", "\x1b[31mred", "[red]x[/red]", "<script>alert(1)</script>", "\u202e", "\ud800", "x" * 5000,
    "1e999", [], {}, [[]], [None], {"": None}, [0] * 1000, {"a": {"b": {"c": []}}},
)  # fmt: skip
_RAW = (
    b"1e999", b"NaN", b"-Infinity", b"[" * 5000 + b"]" * 5000, b'{"a":' * 300 + b"1" + b"}" * 300, b"9" * 5000, b'"\\ud800"',
    b'"\xff"', b"", b"\0", b"tru",
)  # fmt: skip

Mutation = Callable[[Path, random.Random], None]


def bytes_of(path: Path, draw: random.Random) -> None:
    """Change some bytes: flip, cut, repeat, insert, blank."""
    data = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 1, 3, 20))):
        at = draw.randrange(len(data) + 1)
        length = draw.choice((1, 1, 4, 16, 200))
        match draw.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                data[at:at] = draw.randbytes(length)
            case 4:
                data[at : at + length] = b"\0" * min(length, len(data) - at)
            case _:
                del data[at : at + length]
    path.write_bytes(bytes(data))


def json_of(path: Path, draw: random.Random) -> None:
    """Change a value somewhere in a JSON document, or its text."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        bytes_of(path, draw)
        return
    for _ in range(draw.choice((1, 1, 2))):
        document = _changed(document, draw)
    text = json.dumps(document)
    data = text.encode("utf-8", "surrogatepass")
    if draw.random() < 0.3:
        marks = [i for i, byte in enumerate(data) if byte in b":,["]
        if marks:
            at = draw.choice(marks) + 1
            data = (
                data[:at] + draw.choice(_RAW) + data[at:]
                if draw.random() < 0.5
                else _with_raw(data, at, draw)
            )
    path.write_bytes(data)


def _with_raw(data: bytes, at: int, draw: random.Random) -> bytes:
    end = min(
        (i for i in (data.find(mark, at) for mark in (b",", b"}", b"]")) if i >= 0),
        default=len(data),
    )
    return data[:at] + draw.choice(_RAW) + data[end:]


def _changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        match draw.randrange(8):
            case 0:
                del value[key]
            case 1:
                value[draw.choice(("x", "", "../x", key + "_"))] = value.pop(key)
            case 2:
                value["unknown"] = _odd(draw)
            case _:
                value[key] = _changed(value[key], draw)
        return value
    if isinstance(value, list) and value and draw.random() < 0.9:
        at = draw.randrange(len(value))
        match draw.randrange(6):
            case 0:
                del value[at]
            case 1:
                value.insert(at, value[at])
            case 2:
                value.append(_odd(draw))
            case _:
                value[at] = _changed(value[at], draw)
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and draw.random() < 0.5:
        return draw.choice(
            (-value, value + 1, value * 10**6, value - 1, float(value), str(value), [value])
        )
    return _odd(draw)


def _odd(draw: random.Random) -> Any:
    """Return an odd value; a copy, for a mutant must not depend on those before it."""
    return copy.deepcopy(draw.choice(_ODD))


def kind_of(path: Path, draw: random.Random) -> None:
    """Put something else in a file's place."""
    path.unlink()
    match draw.randrange(8):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/dev/zero")
        case 2:
            path.symlink_to("/etc/passwd")
        case 3:
            path.mkdir()
        case 4:
            path.write_bytes(b"")
        case 5:
            path.symlink_to(path.name)
        case 6:
            with path.open("wb") as file:
                file.truncate(draw.choice((2**24, 2**33, 2**40)))
        case _:
            pass


def parquet_of(path: Path, draw: random.Random) -> None:  # noqa: PLR0912
    """Change a column of a Parquet file: values, type, name, or the rows."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        bytes_of(path, draw)
        return
    metadata = table.schema.metadata
    name = draw.choice(table.column_names)
    at = table.column_names.index(name)
    field = table.schema.field(at)
    try:
        match draw.randrange(10):
            case 0:
                table = table.drop_columns([name])
            case 1:
                table = table.rename_columns(
                    [one if one != name else one + "x" for one in table.column_names]
                )
            case 2:
                table = table.set_column(at, name, pa.nulls(len(table), field.type))
            case 3:
                table = pa.concat_tables([table, table.slice(0, draw.randrange(len(table) + 1))])
            case 4:
                table = table.slice(draw.randrange(len(table) + 1))
            case 5:
                other = draw.choice(
                    (pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.list_(pa.string()))
                )
                table = table.set_column(at, name, pa.nulls(len(table), other))
            case 6:
                table = table.append_column("more", pa.nulls(len(table), pa.int8()))
            case 7:
                metadata = {
                    **(metadata or {}),
                    b"llmperf": draw.choice((*_RAW, b'{"tasks": [[1]]}', b"{}")),
                }
            case _:
                values = table.column(at).to_pylist()
                for _ in range(draw.choice((1, 1, len(values)))):
                    if values:
                        where = draw.randrange(len(values))
                        values[where] = _changed(values[where], draw)
                table = table.set_column(at, name, pa.array(values, field.type))
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError):
        table = table.set_column(at, name, pa.nulls(len(table), field.type))
    pq.write_table(table.replace_schema_metadata(metadata), path)


def arrays_of(path: Path, draw: random.Random) -> None:
    """Change an array of a ``.npz`` file; of one that is damaged already, some bytes."""
    try:
        with np.load(path) as file:
            arrays = dict(file)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError):
        bytes_of(path, draw)
        return
    name = draw.choice(sorted(arrays))
    array = arrays[name]
    match draw.randrange(7):
        case 0:
            del arrays[name]
        case 1:
            arrays[name] = array.reshape(-1)[: draw.randrange(array.size + 1)]
        case 2:
            arrays[name] = array[None]
        case 3:
            arrays[name] = array.astype(
                draw.choice(("S4", "complex128", "float16", "int8", "bool", "U3"))
            )
        case _:
            flat = array.reshape(-1).copy()
            if flat.size and flat.dtype.kind in "iufb":
                for _ in range(draw.choice((1, 5, flat.size // 2 + 1))):
                    value = draw.choice(
                        (-1, 0, 1, 127, -128, 2**31 - 1, -(2**31), float("nan"), 1e30)
                    )
                    with np.errstate(all="ignore"):
                        flat[draw.randrange(flat.size)] = np.array(value).astype(flat.dtype)
            arrays[name] = flat.reshape(array.shape)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    path.write_bytes(packed.getvalue())


def words_of(path: Path, draw: random.Random) -> None:
    """Change a word of a text: a number of a tree, say."""
    words = path.read_text("utf-8", "replace").split(" ")
    for _ in range(draw.choice((1, 1, 5))):
        at = draw.randrange(len(words))
        match draw.randrange(4):
            case 0:
                del words[at]
            case 1:
                words.insert(at, words[draw.randrange(len(words))])
            case _:
                words[at] = draw.choice(
                    (
                        "-1",
                        "0",
                        "99999999",
                        "-99999999999999999999",
                        "nan",
                        "1e999",
                        "x",
                        "\0",
                        "2147483648",
                    )
                )
        if not words:
            break
    path.write_text(" ".join(words))


def mutate_file(path: Path, draw: random.Random) -> str:
    """Change one file as its kind allows; return what was done to what."""
    choices: list[Mutation] = [bytes_of]
    if draw.random() < 0.12:
        choices = [kind_of]
    elif path.suffix == ".json":
        choices = [json_of, json_of, json_of, json_of, bytes_of]
    elif path.suffix == ".parquet":
        choices = [parquet_of, parquet_of, parquet_of, bytes_of]
    elif path.suffix == ".npz":
        choices = [arrays_of, arrays_of, bytes_of]
    elif path.suffix == ".txt":
        choices = [words_of, words_of, words_of, bytes_of]
    mutation = draw.choice(choices)
    mutation(path, draw)
    return f"{mutation.__name__} {path.name}"


def is_plain(path: Path) -> bool:
    """Whether the fuzzer itself may read it."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 2**24


def mend_manifest(data: Path) -> None:
    """Let the newest manifest say what the shards are now, so that what reads them gets to see them."""
    newest = max(data.glob("manifest-*.json"), default=None)
    if newest is None or not is_plain(newest):
        return
    try:
        document = json.loads(newest.read_bytes())
        for entry in document["shards"]:
            path = data / entry["name"]
            if is_plain(path):
                content = path.read_bytes()
                entry.update(bytes=len(content), sha256=sha256_hex(content))
                with contextlib.suppress(pa.ArrowException, OSError):
                    entry["rows"] = pq.read_metadata(path).num_rows
        newest.write_text(json.dumps(document))
    except (ValueError, KeyError, TypeError, OSError, RecursionError):
        return


def mend_run(run: Path) -> None:
    """Let ``published.json`` list the files as they are now."""
    path = run / "published.json"
    if not is_plain(path):
        return
    try:
        document = json.loads(path.read_bytes())
        for name, facts in document["files"].items():
            file = run / name
            if is_plain(file):
                facts["bytes"] = file.stat().st_size
        path.write_text(json.dumps(document))
    except (ValueError, KeyError, TypeError, OSError, AttributeError, RecursionError):
        return


def add_odd_file(folder: Path, draw: random.Random) -> str:
    """Put a file beside the others that has no business there."""
    name = draw.choice(
        ("manifest-2000000000.json", "manifest-000000.json", "ledger", "epochs/000009", "epochs/x", ".run.lock", "samples/x.parquet",
         "kernels/.tmp-1-x", "README.md", "croissant.json", "ledger/ledger-000009.sqlite", "devices/x.parquet", "events/x.jsonl")
    )  # fmt: skip
    path = folder / name
    if not path.parent.is_dir():
        path.parent.unlink(missing_ok=True)
        path.parent.mkdir(parents=True)
    if path.is_dir():
        shutil.rmtree(path)
    others = [one for one in folder.rglob("*") if is_plain(one) and one != path]
    path.unlink(missing_ok=True)
    if draw.random() < 0.5 and others:
        shutil.copy(draw.choice(others), path, follow_symlinks=False)
    else:
        path.write_bytes(draw.randbytes(100))
    if draw.random() < 0.3 and not path.is_symlink():
        kind_of(path, draw)
    return f"add {name}"
