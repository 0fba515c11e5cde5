"""Reading of untrusted JSON: its size is checked before parsing, and numbers must be finite.

Owns the limits. The caller checks the content of the document.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

MAX_VALUES = 8_000_000
"""Maximum number of values of one document. Each takes about 80 bytes of memory: 640 MB in all."""
MAX_DEPTH = 200


def parse_json(data: bytes, *, max_values: int = MAX_VALUES) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: The data is not JSON, is nested too deeply, or has too many values or a number
            that is not finite.

    >>> parse_json(b'{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    if sum(map(data.count, (b",", b":", b"[", b"{"))) > max_values:
        raise ValueError(f"it has more than {max_values} values")
    try:
        value = json.loads(data, parse_float=_finite, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _is_deeper(value, MAX_DEPTH):
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    return value


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
