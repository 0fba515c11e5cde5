"""Reading of untrusted JSON: its memory is estimated before parsing, and numbers must be finite.

Owns the limits. The caller checks the content of the document.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_VALUES = 4_000_000
"""Maximum number of values of one document."""
MAX_MEMORY_BYTES = 640 * 2**20
"""Maximum memory in bytes for parsing one document. With the 200 MiB of a command's own libraries,
a process stays below 1 GiB. A manifest may list 300,000 shards, or 190,000 if it has a character
outside of ASCII."""
MAX_DEPTH = 200
_VALUE_BYTES = 130
"""Memory in bytes of a value with its place in a list or table, without a string's text. Measured:
at most 112 (strings as keys of large objects, and objects with one number)."""
_PLAIN_COPIES = 3
"""Bytes of memory for each byte of an ASCII document: one byte each for the file, its text and the
strings in it."""
_WIDE_COPIES = 9
"""The same for a document with a character outside of ASCII. One such character, even as an escape
(\\u...), makes Python store a whole text with up to four bytes for each character of the file. The
text and the strings in it need eight, the file itself needs one."""


def check_memory(data: bytes, *, max_values: int = MAX_VALUES) -> None:
    """Check a JSON document before it is parsed.

    Raises:
        ValueError: The document has too many values, or parsing it may need too much memory.
    """
    num_values = sum(map(data.count, (b",", b":", b"[", b"{")))
    if num_values > max_values:
        raise ValueError(f"it has more than {max_values} values")
    copies = _PLAIN_COPIES if data.isascii() and b"\\u" not in data else _WIDE_COPIES
    num_bytes = copies * len(data) + _VALUE_BYTES * num_values
    if num_bytes > MAX_MEMORY_BYTES:
        raise ValueError(
            f"reading it could take {num_bytes // 2**20} MiB of memory, more than the "
            f"{MAX_MEMORY_BYTES // 2**20} MiB that are allowed"
        )


def parse_json(data: bytes, *, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: The data is not JSON, is nested too deeply, needs too much memory, or has too
            many values or a number that is not finite.

    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    check_memory(data, max_values=max_values)
    try:
        value = json.loads(data, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return value


def check_characters(value: Any) -> None:
    r"""Check the texts of a document. An escape such as ``\ud800`` may stand for half a character.

    Raises:
        ValueError: A text has half of a surrogate pair, so it cannot be written as UTF-8.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a text has half of a surrogate pair, which is no character") from None


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def whole_number(value: object) -> int:
    """Return a whole number of a document as it is.

    Raises:
        TypeError: It is another value, such as ``true`` or 1.0, of which ``int`` makes 1.
    """
    if type(value) is not int:
        raise TypeError(f"{ascii(value)[:80]} is not a whole number")
    return value
