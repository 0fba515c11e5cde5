"""Find texts in a dataset's tables that are longer than LLMPerf writes.

A text of many megabytes can be compressed to a few bytes, but every reader holds it in full.
Decides which limit of ``llmperf_common/text_limits.py`` a column has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.schemas import TABLES
from llmperf_common.text_limits import MAX_SOURCE_BYTES, MAX_TEXT_BYTES

_FROM_SOURCE = frozenset(
    {
        "source", "name", "args", "invented_macros", "analysis", "index_roles",
        "analysis_failure", "inputs", "build",
    }
)  # fmt: skip
"""Columns of ``kernels`` whose texts may be parts of a source, such as the name of an argument."""


def most_bytes(table: str, column: str) -> int:
    """Return the maximum bytes of a text in a column.

    >>> most_bytes("kernels", "source"), most_bytes("samples", "worker_id")
    (8388608, 65536)
    """
    is_from_source = table == "kernels" and column in _FROM_SOURCE
    return MAX_SOURCE_BYTES if is_from_source else MAX_TEXT_BYTES


def too_long_texts(table: str, found: pa.Table) -> list[str]:
    """Return a message for each known column of ``found`` with a text above its limit."""
    problems = []
    for wanted in TABLES[table]:
        if wanted.name not in found.column_names:
            continue
        most = most_bytes(table, wanted.name)
        longest = max(_lengths(found.column(wanted.name).chunks, most), default=0)
        if longest > most:
            problems.append(
                f"{table}: column {wanted.name!r} has a text of {longest:,} bytes, more than the "
                f"{most:,} that LLMPerf writes"
            )
    return problems


def _lengths(arrays: list[Any], most: int) -> Iterator[int]:
    """Yield the longest text of each array of texts in ``arrays`` that could exceed ``most``."""
    for array in arrays:
        if array.nbytes <= most:
            continue
        if pa.types.is_string(array.type):
            yield pc.max(pc.binary_length(array)).as_py() or 0
        elif pa.types.is_list(array.type):
            yield from _lengths([array.flatten()], most)
        elif pa.types.is_struct(array.type):
            yield from _lengths(array.flatten(), most)
