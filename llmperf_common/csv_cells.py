"""Texts in CSV files that a spreadsheet must not evaluate as formulas.

Owns the rule for such texts. The writers of CSV apply it to each cell of text.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

_PLAIN_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
_UNSAFE = r"^[=+\-@\t\r']"
_IS_UNSAFE, _IS_NUMBER = re.compile(_UNSAFE), re.compile(_PLAIN_NUMBER)


def safe_text(text: str) -> str:
    """Return a text with an apostrophe before it if a spreadsheet could evaluate it.

    A text that begins with an apostrophe gets another one. So removing the apostrophe from each
    cell that begins with one gives the texts back. Plain numbers stay as they are.

    >>> [safe_text(text) for text in ("=1+1", "-1", "'a", "a=b")]
    ["'=1+1", '-1', "''a", 'a=b']
    """
    is_unsafe = _IS_UNSAFE.match(text) and not _IS_NUMBER.fullmatch(text)
    return f"'{text}" if is_unsafe else text


def safe_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of texts with ``safe_text`` applied to each."""
    is_unsafe = pc.and_not(
        pc.match_substring_regex(column, _UNSAFE),
        pc.match_substring_regex(column, f"^(?:{_PLAIN_NUMBER})\\z"),
    )
    if not pc.any(is_unsafe).as_py():
        return column
    return pc.if_else(is_unsafe, pc.binary_join_element_wise("'", column, ""), column)
