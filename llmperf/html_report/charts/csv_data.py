"""CSV links that contain the numbers of a chart, so that a page needs no script or second file.

Owns the record of drawn rows, the CSV text and its ``data:`` address. Values are plain numbers in
the unit that the column's name states. They have six significant digits, which is finer than any
timer used.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from llmperf_common.csv_cells import safe_text

Cell = str | float

_SAFE = ",;:/()+*=!$@"
"""Characters that have no special meaning in a ``data:`` address. They are not escaped, because an
escape takes three bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The data that one panel of a figure shows.

    Args:
        panel: Name of the panel, unique in its figure.
        columns: One name per column, with the unit in brackets.
        rows: One row per drawn shape.
    """

    panel: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    r"""Return CSV text with a header; NaN becomes an empty cell.

    >>> csv_text(("name", "time [ns]"), [("a", 1234.5678), ("b", float("nan"))])
    'name,time [ns]\na,1234.57\nb,\n'
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return safe_text(value)
    if value != value:  # noqa: PLR0124
        return ""
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def csv_address(text: str) -> str:
    """Return the ``data:`` address of a CSV text."""
    return "data:text/csv;charset=utf-8," + quote(text, safe=_SAFE)


def grouped(panels: Iterable[Drawn]) -> list[tuple[str, str]]:
    """Return the name and CSV text of each file; panels with the same columns share a file."""
    groups: dict[tuple[str, ...], list[Drawn]] = {}
    for panel in panels:
        if panel.rows:
            groups.setdefault(panel.columns, []).append(panel)
    return [_together(members) for members in groups.values()]


def _together(members: list[Drawn]) -> tuple[str, str]:
    names = list(dict.fromkeys(member.panel for member in members))
    columns = members[0].columns
    if len(names) == 1:
        return names[0], csv_text(columns, (row for member in members for row in member.rows))
    rows = ((member.panel, *row) for member in members for row in member.rows)
    return f"{len(members)} panels", csv_text(("panel", *columns), rows)
