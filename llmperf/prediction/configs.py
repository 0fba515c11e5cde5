"""Launches from a file of JSON lines, a JSON array, CSV or Parquet, recognised by its content.

Owns the checks of each launch's values. ``config_rows.py`` owns the formats. The prediction checks
whether kernel and device allow a launch. Its messages use the name that each launch gets here
(``line 7``).
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmperf.prediction.config_rows import (
    MORE,
    NEEDED,
    example,
    not_an_object,
    rows_of,
    shown,
    too_many,
)
from llmperf.prediction.model import Launch, Size
from trainer.errors import BadInput
from trainer.prediction.arguments import Value

STDIN = "-"
_MAX_BYTES = 256 * 2**20
_MAX_LAUNCHES = 1_000_000
"""Maximum number of launches in one file."""
_MAX_KEPT_BYTES = 640 * 2**20
"""Maximum memory in bytes of all launches of a file, before the first prediction."""
_LAUNCH_BYTES, _ARGUMENT_BYTES = 330, 80
"""Measured memory in bytes of one launch, and of each of its arguments, without texts."""
_MAX_SIZE = 2**63
_MAX_VALUE = 2**64
_MAX_ID_CHARS = 1_000
_MAX_VALUE_CHARS = 100
"""Maximum number of characters of an argument's value that is given as a text."""
_DIGITS = re.compile(r"[0-9]{1,20}")


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
    kept_bytes = 0
    try:
        for place, values in rows_of(content, where, _MAX_LAUNCHES):
            if len(found) == _MAX_LAUNCHES:
                raise too_many(where, _MAX_LAUNCHES)
            found.append(_config(f"{where}, {place}", values, shared or {}))
            kept_bytes += _num_bytes(found[-1])
            if kept_bytes > _MAX_KEPT_BYTES:
                raise BadInput(
                    f"{where}, {place}: the launches up to here take more than "
                    f"{_MAX_KEPT_BYTES >> 20} MiB of memory: write the launches to several files, "
                    "and give arguments that all launches share by --arg NAME=VALUE"
                )
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{where}: byte {error.start} is not UTF-8: save the file as UTF-8"
        ) from None
    if not found:
        raise BadInput(f"{where}: holds no launch: write one per line; {MORE}")
    return found


def _num_bytes(one: Config) -> int:
    texts = [one.launch.name, one.id, *(one.launch.args or {}).values()]
    num_text_bytes = sum(sys.getsizeof(text) for text in texts if isinstance(text, str))
    return _LAUNCH_BYTES + num_text_bytes + _ARGUMENT_BYTES * len(one.launch.args or {})


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


def _config(where: str, values: Mapping[str, Any], shared: Mapping[str, Value]) -> Config:
    for key in NEEDED:
        if values.get(key) is None:
            raise BadInput(f"{where}: no {key}: give a launch as {example()}")
    return Config(
        id=_id(values.get("id"), where),
        launch=Launch(
            global_size=_size(values["global_size"], f"{where}: global_size"),
            local_size=_size(values["local_size"], f"{where}: local_size"),
            args={**shared, **_arguments(values.get("args"), where)},
            name=where,
        ),
    )


def _id(name: Any, where: str) -> str | int | None:
    if isinstance(name, bool) or not (name is None or isinstance(name, str | int)):
        raise BadInput(f"{where}: id {shown(name)}: give a text or a whole number")
    if isinstance(name, int) and abs(name) >= _MAX_VALUE:
        raise BadInput(f"{where}: id {shown(name)}: give a number of at most 64 bits, or a text")
    if isinstance(name, str) and len(name) > _MAX_ID_CHARS:
        raise BadInput(
            f"{where}: id {shown(name)}: {len(name):,} characters, more than the "
            f"{_MAX_ID_CHARS:,} that are allowed"
        )
    if isinstance(name, str) and not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"{where}: id {shown(ascii(name))} contains half of a character (a lone "
                "surrogate, \\ud800 to \\udfff): give another id"
            ) from None
    found: str | int | None = name
    return found


def _arguments(given: Any, where: str) -> dict[str, Value]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise not_an_object(given, f"{where}: args")
    return {
        sys.intern(name): _value(value, f"{where}: argument {shown(repr(name))}")
        for name, value in given.items()
    }


def _value(value: Any, where: str) -> Value:
    """Return the value of an argument; its type is checked with the kernel's signature."""
    if isinstance(value, str):
        is_plain = len(value) <= _MAX_VALUE_CHARS and value.isascii() and "_" not in value
    elif isinstance(value, int):
        is_plain = abs(value) < _MAX_VALUE
    else:
        is_plain = isinstance(value, float)
    if not is_plain:
        raise BadInput(
            f"{where} {shown(value)}: give a number of at most 64 bits: the value of a scalar, or "
            "the number of elements of a buffer"
        )
    found: Value = value
    return found


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
            f"{where} {shown(value)}: give one to three positive whole numbers, such as 1024 or "
            "[64, 64]"
        )
    return sizes


def _whole(part: Any) -> int:
    if isinstance(part, str):
        text = part.strip()  # int() would also accept 6_4 and digits such as the Arabic ones
        if not _DIGITS.fullmatch(text):
            raise ValueError(part)
        return int(text)
    if isinstance(part, bool):
        raise ValueError(part)
    number = int(part)
    if number != part:
        raise ValueError(part)
    return number
