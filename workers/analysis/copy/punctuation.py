"""Find brackets and semicolons in a text without comments; those in literals are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterator

_PUNCTUATION = re.compile(rb"""[(){}\[\];]|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""")


def punctuation(raw: bytes, at: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield offset, sign and depth of each bracket and semicolon from ``at`` on.

    The depth is the number of brackets that are open after the sign.

    >>> [one[1:] for one in punctuation(b"f('{');", 0)]
    [(b'(', 1), (b')', 0), (b';', 0)]
    """
    depth = 0
    for found in _PUNCTUATION.finditer(raw, at):
        sign = found[0]
        if len(sign) == 1:
            depth += (sign in b"({[") - (sign in b")}]")
            yield found.start(), sign, depth


def closed_end(raw: bytes, start: int, end: int) -> int:
    """Return the end of a range with the closing brackets that libclang leaves out.

    libclang ends ``(float4)(x)`` before the last parenthesis.
    """
    depth = 0
    for offset, _, depth_after in punctuation(raw, start):
        if offset >= end and depth <= 0:
            return end
        depth = depth_after
        if offset >= end and depth == 0:
            return offset + 1
    return end
