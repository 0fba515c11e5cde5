"""The longest texts that a corpus and a dataset may hold.

Owns the limits. Writers stay below them (``workers/corpus/``, ``store/tables/rows.py``), so that
readers may refuse longer texts (``store/tables/text_lengths.py``).
"""

from __future__ import annotations

MAX_SOURCE_BYTES = 8 * 2**20
"""Maximum bytes of a source, and of each text that may be a part of it, such as an argument's name.
No hand-written kernel is larger, and parsing a larger file would take minutes."""
MAX_TEXT_BYTES = 64 * 2**10
"""Maximum bytes of any other text: an id, a path, the name of a suite, the evidence of a failure. A
failure's evidence has at most 8 KB, a path at most 4,096 characters."""


def length_problem(what: str, text: str, most: int) -> str | None:
    """Return why a text is too long; None if it is not.

    >>> length_problem("the suite", "x" * 70_000, MAX_TEXT_BYTES)
    'the suite has 70000 bytes, more than 65536'
    """
    if len(text) <= most // 4:  # a character takes at most four bytes
        return None
    num_bytes = len(text.encode("utf-8", "replace"))
    return f"{what} has {num_bytes} bytes, more than {most}" if num_bytes > most else None
