"""The memory accesses of one launch as heat maps: work-items across, bytes of a buffer upwards.

Owns the choice of the maps and their texts. ``llmperf/access_traces.py`` chooses what is traced,
and says why a kernel has no trace.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmperf.html_report.charts.csv_data import Cell, Drawn
from llmperf.html_report.charts.heat import Grid, byte_scale, heat_chart, runs, shades_of
from llmperf.html_report.charts.markup import (
    Chart,
    Html,
    figure,
    join,
    nothing_to_show,
    paragraph,
    shorten,
)
from llmperf.html_report.charts.points import PlotText, shade_legend, shade_words
from llmperf.html_report.charts.quantities import TIMES, count, counted, num_bytes
from llmperf.html_report.charts.scales import linear_scale
from llmperf.html_report.charts.svg import legend
from llmperf_common.features.accesses import AccessMap, AccessTrace, AccessUse, AccessView

HOW_TO_ASK = "Memory accesses are drawn only for kernels that the command names (--kernel NAME)."
_COLOURS = {AccessUse.LOAD: 0, AccessUse.STORE: 3, AccessUse.ATOMIC: 2, AccessUse.OTHER: 6}
_WORDS = {
    AccessUse.LOAD: "loads",
    AccessUse.STORE: "stores",
    AccessUse.ATOMIC: "atomic operations",
    AccessUse.OTHER: "accesses by built-in functions",
}
_LINE_BYTES = 128
"""Minimum number of bytes on an axis: a cache line, so that a broadcast appears as a thin row."""
_MOST_ROWS = 8
_NAME_CHARS = 24
_COLUMNS = (
    "first work-item", "last work-item", "first byte", "last byte", "bytes a row", "accesses a row",
)  # fmt: skip


def access_maps(found: AccessTrace | str | None, arguments: Sequence[Mapping[str, Any]]) -> Html:
    """Return the maps of a kernel's buffers, or why there are none; empty if none was requested.

    Args:
        found: trace of the kernel, or why it has no trace; None if the user did not ask for it.
        arguments: the kernel's rows of ``args``.
    """
    if found is None:
        return Html("")
    if isinstance(found, str):
        return paragraph(f"This kernel's memory accesses were not traced: {found}.")
    views = [found.launch, *([found.group] if found.group else [])]
    keys = sorted({_key(one) for view in views for one in view.maps if one.cells})
    if not keys:
        return paragraph(
            "The traced work-items of the kernel's middle launch access no global or constant "
            "memory within its buffers."
        )
    shown = keys[:_MOST_ROWS]
    # If work-groups are drawn side by side, a column holds more work-items than in the view of one
    # work-group, so its counts are larger. Each view therefore has its own shades.
    counts = [
        [n for one in view.maps if _key(one) in shown for _, _, n in one.cells] for view in views
    ]
    names = {one["position"]: str(one["name"] or one["position"]) for one in arguments}
    charts = [
        _chart_or_reason(found, view, key, names[key[0]], max(of_view, default=1))
        for key in shown
        for view, of_view in zip(views, counts, strict=True)
    ]
    uses = [use for number, use in enumerate(AccessUse) if number in {key[1] for key in shown}]
    keys_of_uses = legend([_WORDS[one] for one in uses], colours=[_COLOURS[one] for one in uses])
    shades = [
        _shades(f"{_where(view)}: accesses", of_view)
        for view, of_view in zip(views, counts, strict=True)
        if of_view
    ]
    return figure(charts, _caption(found, len(keys)), legend=join([keys_of_uses, *shades]))


def _key(one: AccessMap) -> tuple[int, int]:
    """Return the position and use of a map; they identify and order the maps of a view."""
    return one.position, list(AccessUse).index(one.use)


def _chart_or_reason(
    trace: AccessTrace, view: AccessView, key: tuple[int, int], name: str, most: int
) -> Html:
    """Return a map of a view, or a text in its place if only the other view has such a map."""
    found = next((one for one in view.maps if _key(one) == key and one.cells), None)
    if found is not None:
        return _chart(trace, view, found, name, most)
    words = _WORDS[list(AccessUse)[key[1]]]
    return nothing_to_show(f"{shorten(name, _NAME_CHARS)}[]: {words}", f"{_where(view)} has none")


def _shades(what: str, counts: Sequence[int]) -> Html:
    """Return the legend of a view's shades."""
    words = {
        shade: shade_words(fewest, above - 1)
        for shade, fewest, above in shades_of(max(counts))
        if any(fewest <= one < above for one in counts)
    }
    return shade_legend(words, what)


def _where(view: AccessView) -> str:
    if len(view.groups) == 1:
        return f"work-group {count(view.groups[0])}"
    return counted(len(view.groups), "work-group")


def _chart(trace: AccessTrace, view: AccessView, one: AccessMap, name: str, most: int) -> Chart:
    lanes = math.prod(trace.local_size)
    buffer = f"{shorten(name, _NAME_CHARS)}[]"
    low = float(one.first_byte)
    high = low + max(one.num_rows * one.bytes_a_row, _LINE_BYTES)
    y = byte_scale(low, high, f"Byte of {buffer}")
    where, num_groups = _where(view), len(view.groups)
    if num_groups == 1:
        x = linear_scale(0, lanes, f"Work-item of {where}", count, is_count=True)
        column_width = float(view.items_a_column)
    else:
        x = linear_scale(
            0,
            num_groups,
            f"Work-group ({_how_many(trace)})",
            lambda at: count(view.groups[round(at)]) if round(at) < num_groups else "",
            is_count=True,
        )
        column_width = view.items_a_column / lanes
    words = f"{buffer}: {_WORDS[one.use]}"
    text = PlotText(
        title=f"{words} of {where}, by work-item and byte",
        description=_description(one, view, num_groups * lanes),
        heading=words,
        hint=f"{name}[]: {_WORDS[one.use]}, {where}",
    )
    grid = Grid(column_width=column_width, row_height=float(one.bytes_a_row), first=low)
    return heat_chart(
        one.cells,
        grid,
        x,
        y,
        text,
        colour=_COLOURS[one.use],
        most=most,
        hints=_hints(one, view, lanes),
        drawn=Drawn(panel=text.panel, columns=_COLUMNS, rows=_rows(one, view, lanes)),
    )


def _item(view: AccessView, place: int, lanes: int) -> int:
    """Return the number of a traced work-item in the launch, counted group by group."""
    return view.groups[place // lanes] * lanes + place % lanes


def _ends(view: AccessView, column: int, lanes: int) -> tuple[int, int]:
    first = column * view.items_a_column
    last = min(first + view.items_a_column, len(view.groups) * lanes) - 1
    return _item(view, first, lanes), _item(view, last, lanes)


def _hints(one: AccessMap, view: AccessView, lanes: int) -> list[str]:
    by_column: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for column, row, number in one.cells:
        by_column[column].append((row, number))
    hints = [""] * (max(by_column) + 1)
    for column, found in by_column.items():
        first, last = _ends(view, column, lanes)
        items = f"work-item {count(first)}"
        if last > first:
            items = f"work-items {count(first)}\u2013{count(last)}"
        low, high = found[0][0], found[-1][0] + 1
        hints[column] = (
            f"{items}: {counted(sum(n for _, n in found), 'access', 'accesses')} to bytes "
            f"{count(one.first_byte + low * one.bytes_a_row)}\u2013"
            f"{count(one.first_byte + high * one.bytes_a_row - 1)}"
        )
    return hints


def _rows(one: AccessMap, view: AccessView, lanes: int) -> list[tuple[Cell, ...]]:
    found: list[tuple[Cell, ...]] = []
    for number in sorted({number for _, _, number in one.cells}):
        for column, low, high in runs(one.cells, number, number + 1):
            first = one.first_byte + low * one.bytes_a_row
            last = one.first_byte + high * one.bytes_a_row - 1
            items = _ends(view, column, lanes)
            found.append((*items, first, last, one.bytes_a_row, number))
    return sorted(found)


def _description(one: AccessMap, view: AccessView, items: int) -> str:
    """Return a map as text: how many accesses, where, and how addresses change between columns."""
    lowest: dict[int, int] = {}
    for column, row, _ in one.cells:
        lowest.setdefault(column, row)
    columns = sorted(lowest)
    end = one.first_byte + one.num_rows * one.bytes_a_row
    words = [
        f"{counted(one.num_accesses, 'access', 'accesses')} of {counted(items, 'work-item')} "
        f"to bytes {count(one.first_byte)} to {count(end - 1)}, "
        f"in {count(len(columns))} columns of {counted(view.items_a_column, 'work-item')} "
        f"and {count(len({row for _, row, _ in one.cells}))} rows of {num_bytes(one.bytes_a_row)}."
    ]
    steps = np.sign([lowest[b] - lowest[a] for a, b in itertools.pairwise(columns)])
    if len(steps):
        first, last = (
            one.first_byte + lowest[at] * one.bytes_a_row for at in (columns[0], columns[-1])
        )
        rises, stays, falls = (count((steps == sign).sum()) for sign in (1, 0, -1))
        words.append(
            f"The lowest row begins at byte {count(first)} in the first column and {count(last)} in the last; "
            f"from column to column it rises {rises} times, stays {stays} times and falls {falls} times."
        )
    return " ".join(words)


def _num_groups(trace: AccessTrace) -> int:
    return math.prod(trace.global_size) // math.prod(trace.local_size)


def _how_many(trace: AccessTrace) -> str:
    shown, total = len(trace.launch.groups), _num_groups(trace)
    return f"all {count(total)}" if shown == total else f"{count(shown)} of {count(total)}"


def _caption(trace: AccessTrace, num_keys: int) -> str:
    sizes = [
        f"\u202f{TIMES}\u202f".join(map(str, one)) for one in (trace.global_size, trace.local_size)
    ]
    num_shown, num_groups = len(trace.launch.groups), _num_groups(trace)
    spread = "" if num_shown == num_groups else ", evenly spread and drawn side by side"
    groups = f"{_how_many(trace)} work-groups" if num_groups > 1 else "its only work-group"
    words = [
        "Memory accesses of the launch whose number of work-items is the middle one, "
        f"global size {sizes[0]}, local size {sizes[1]}: {groups}{spread}"
    ]
    if trace.group is not None:
        words.append(f", and {_where(trace.group)} alone")
    words.append(
        ". Work-items of a group follow each other by local linear id, as in warps. "
        "The accesses were traced by a virtual launch on a CPU: they are those of the source, "
        "before any cache."
    )
    outside = sum(one.num_outside for one in trace.launch.maps)
    if outside:
        words.append(
            f" {counted(outside, 'access', 'accesses')} outside of the buffers are not drawn."
        )
    if num_keys > _MOST_ROWS:
        words.append(
            f" Only the first {_MOST_ROWS} of {num_keys} pairs of a buffer and a use are shown."
        )
    if trace.without_barriers:
        words.append(" In this trace, work-items did not wait for each other at barriers.")
    return "".join(words)
