"""Find values in a shard's table that LLMPerf never writes and no reader can use.

Owns the limits of texts, moments, NDRanges and arguments, and the check for nulls. The checks work
column by column. ``schemas.py`` owns the columns, ``store/upkeep/row_checks.py`` the rules that
only `llmperf dataset verify` checks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.failures import OK_STATUS
from llmperf_common.features.launch_columns import MAX_DIMS
from llmperf_common.features.table_columns import MAX_POSITION, flat_lists
from llmperf_common.files.python_rows import row_problem
from llmperf_common.launch import MOST_ELEMENTS
from llmperf_common.schemas import TABLES, missing_or_changed_columns
from llmperf_common.store.tables.text_lengths import too_long_texts

_NDRANGE = ("global_size", "local_size")
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""First and last moment of ``datetime`` in us since 1970: start of year 1, end of year 9999."""


def table_problems(table: str, stored: pa.Schema, found: pa.Table) -> list[str]:
    """Return why a reader cannot use a shard; if the list is empty, it can.

    Args:
        table: samples, kernels or devices.
        stored: the shard's schema, with all its columns.
        found: the columns that were read from it. Only their values are judged.
    """
    problems = missing_or_changed_columns(table, stored)
    if problems:  # stop here: a column that is there twice cannot be read by its name
        return problems
    # Check lengths of texts first: the check of the bytes of a long text takes long.
    problems = too_long_texts(table, found) or [
        *columns_without_values(table, found),
        *columns_of_impossible_values(table, found),
    ]
    return (
        problems
        or [*impossible_sizes(table, found), *impossible_arguments(table, found)]
        or too_large_rows(table, found)
    )


def columns_without_values(table: str, found: pa.Table) -> list[str]:
    """Return a message for each non-nullable column with nulls, and for lists that contain nulls."""
    problems = []
    for wanted in TABLES[table]:
        if wanted.name not in found.column_names:
            continue
        column = found.column(wanted.name)
        if not wanted.nullable and column.null_count:
            problems.append(f"{table}: column {wanted.name!r} has nulls")
        elif any(map(_lists_with_null, column.chunks)):
            row = _first_row_with_null(column)
            problems.append(f"{table}: column {wanted.name!r} has a null in a list (row {row})")
    return problems


def columns_of_impossible_values(table: str, found: pa.Table) -> list[str]:
    """Return a message for each column whose values Python cannot hold.

    These are texts that are not UTF-8, and moments outside of the years 1 to 9999. Arrow's check of
    the texts takes 2 to 4 % of the time in which the columns of a large shard are read.
    """
    problems = []
    for wanted in TABLES[table]:
        if wanted.name not in found.column_names:
            continue
        column = found.column(wanted.name)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            problems.append(f"{table}: column {wanted.name!r} is damaged: {error}")
            continue
        if pa.types.is_timestamp(wanted.type) and not _has_years(column):
            problems.append(f"{table}: column {wanted.name!r} has a time outside of years 1-9999")
    return problems


def impossible_sizes(table: str, found: pa.Table) -> list[str]:
    """Return a message for each column with an NDRange that no launch has."""
    there = [name for name in _NDRANGE if name in found.column_names]
    problems, lengths = [], {}
    for name in there:
        row, sizes = flat_lists(found.column(name))
        lengths[name] = np.bincount(row, minlength=found.num_rows)
        wrong = lengths[name] > MAX_DIMS
        wrong[row[~(sizes.to_numpy(zero_copy_only=False) >= 1)]] = True
        if wrong.any():
            what = f"has an NDRange without 1 to {MAX_DIMS} positive sizes"
            problems.append(_message(table, name, what, wrong))
    if len(there) == len(_NDRANGE):
        differ = lengths["global_size"] != lengths["local_size"]
        if differ.any():
            problems.append(
                _message(table, "local_size", "differs in length from global_size", differ)
            )
    if "global_size" in lengths and "status" in found.column_names:
        is_ok = pc.equal(found.column("status"), OK_STATUS).to_numpy(zero_copy_only=False)
        empty = is_ok.astype(bool) & (lengths["global_size"] == 0)
        if empty.any():
            problems.append(
                _message(table, "global_size", "is empty where the status is 'ok'", empty)
            )
    return problems


def impossible_arguments(table: str, found: pa.Table) -> list[str]:
    """Return a message if an argument has no possible position or number of elements."""
    if "args" not in found.column_names:
        return []
    row, items = flat_lists(found.column("args"))
    limits = {
        "position": (MAX_POSITION, "position"),
        "elements": (MOST_ELEMENTS, "number of elements"),
    }
    problems = []
    for name, (most, words) in limits.items():
        place = items.type.get_field_index(name)
        if place < 0:
            continue
        values = items.field(place)
        allowed = pc.and_(pc.greater_equal(values, 0), pc.less_equal(values, most))
        if name == "elements":  # null is valid: the argument is not a buffer
            allowed = pc.fill_null(allowed, True)
        wrong = np.zeros(found.num_rows, bool)
        wrong[row[~np.asarray(pc.fill_null(allowed, False), bool)]] = True
        if wrong.any():
            what = f"has an argument whose {words} is not from 0 to {most:,}"
            problems.append(_message(table, "args", what, wrong))
    return problems


def too_large_rows(table: str, found: pa.Table) -> list[str]:
    """Return a message if a row would take too much memory in Python, such as millions of lists."""
    problem = row_problem(found)
    return [] if problem is None else [f"{table}: {problem}"]


def _message(table: str, column: str, what: str, wrong: npt.NDArray[np.bool_]) -> str:
    return f"{table}: column {column!r} {what} (row {int(np.flatnonzero(wrong)[0]) + 1})"


def _has_years(column: pa.ChunkedArray) -> bool:
    """Whether ``datetime`` can hold all moments of a column, which are in us."""
    ends = pc.min_max(column.cast(pa.int64())).as_py()
    return ends["min"] is None or (ends["min"] >= _FIRST_US and ends["max"] <= _LAST_US)


def _lists_with_null(array: pa.Array) -> bool:
    """Whether a list of an array, at any depth, contains a null."""
    if pa.types.is_struct(array.type):
        return any(map(_lists_with_null, array.flatten()))
    if not pa.types.is_list(array.type):
        return False
    items = array.flatten()
    return items.null_count > 0 or _lists_with_null(items)


def _first_row_with_null(column: pa.ChunkedArray) -> int:
    """Return the number of the first row (from 1) for which ``_lists_with_null`` holds."""
    rows = column.combine_chunks()
    first, last = 0, len(rows)
    while last - first > 1:  # the row is one of ``first`` to ``last`` - 1
        middle = (first + last) // 2
        is_before = _lists_with_null(rows.slice(first, middle - first))
        first, last = (first, middle) if is_before else (middle, last)
    return first + 1
