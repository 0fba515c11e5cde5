"""Heat maps: the shade of a colour shows how often something happens in each cell of a grid.

Owns the cells, the axis of bytes and the tooltips of columns. Neighbouring cells of one shade in a
column are drawn as one shape, so that a page with a dense map stays small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.csv_data import Drawn
from llmperf.html_report.charts.markup import Chart
from llmperf.html_report.charts.points import SHADES, PlotText, Shape, shade_edges
from llmperf.html_report.charts.quantities import SPACE, count
from llmperf.html_report.charts.scales import Scale
from llmperf.html_report.charts.svg import NUM_COLOURS, Canvas, Frame, draw_axes, frame_for, number

_SHAPE = Shape(width=380.0, height=232.0)
_TICKS = 5
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

Cells = Sequence[tuple[int, int, int]]
"""Column, row and count of each cell, in ascending order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The position of cells on the axes: column width, row height, and where row 0 begins."""

    column_width: float
    row_height: float
    first: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteScale(Scale):
    """A linear axis of bytes with its ticks at multiples of a power of two."""

    def _linear_ticks(self, target: int) -> list[float]:
        step = _step(self.low, self.high, target)
        first, last = math.ceil(self.low / step), math.floor(self.high / step)
        return [float(one * step) for one in range(first, last + 1)]


def byte_scale(low: float, high: float, label: str) -> ByteScale:
    r"""Return an axis of bytes whose ticks are whole numbers of B, KiB, MiB, GiB or TiB.

    >>> axis = byte_scale(2560, 3072, "Byte of a[]")
    >>> [text for _, text in axis.ticks()][:2]
    ['2\u202f560\xa0B', '2\u202f688\xa0B']
    """
    power = min(int(math.log2(_step(low, high, _TICKS))) // 10, len(_UNITS) - 1)

    def words(value: float) -> str:
        return f"{count(value / 1024**power)}{SPACE}{_UNITS[power]}" if value else "0"

    return ByteScale(low=low, high=high, is_log=False, label=label, formatter=words)


def _step(low: float, high: float, target: int) -> int:
    return 1 << max(0, math.ceil(math.log2((high - low) / target)))


def heat_chart(
    cells: Cells,
    grid: Grid,
    x: Scale,
    y: Scale,
    text: PlotText,
    *,
    colour: int,
    most: int,
    hints: Sequence[str],
    drawn: Drawn,
) -> Chart:
    """Return a map of counts; larger counts have darker shades (logarithmic).

    Args:
        cells: the count of each cell.
        grid: position of the cells on the axes.
        x: axis of the columns.
        y: axis of the rows.
        text: texts of the plot.
        colour: number of the cells' colour, counted as for series.
        most: the count of the darkest shade. All maps of a figure use the same number, so that they
            can be compared.
        hints: tooltip of each column; empty for a column without cells.
        drawn: the values that the map shows, for the CSV link.
    """
    canvas = Canvas(width=_SHAPE.width, height=_SHAPE.height)
    frame = frame_for(canvas, x, y, heading=text.heading)
    draw_axes(canvas, frame, heading=text.heading, hint=text.hint)
    for shade, fewest, above in shades_of(most):
        pieces = [
            _box(frame, grid, column, low, high) for column, low, high in runs(cells, fewest, above)
        ]
        canvas.path("".join(pieces), f"c{colour % NUM_COLOURS} fill cells shade{shade}")
    for column, hint in enumerate(hints):
        if hint:
            left, right = _sides(frame, grid, column)
            canvas.rect(left, frame.top, right - left, frame.bottom - frame.top, "hit", hint)
    return Chart(canvas.render(text.title, text.description), drawn)


def shades_of(most: int) -> list[tuple[int, int, int]]:
    """Return the shades of counts up to ``most``, which has the darkest shade.

    Returns:
        For each shade: its number, its smallest count, and its largest count plus 1.

    >>> shades_of(1), shades_of(2)
    ([(4, 1, 2)], [(3, 1, 2), (4, 2, 3)])
    """
    edges = shade_edges(most).tolist()
    levels = [level for level in range(SHADES) if edges[level] <= most]
    return [(SHADES - len(levels) + level, edges[level], edges[level + 1]) for level in levels]


def runs(cells: Cells, fewest: int, above: int) -> list[tuple[int, int, int]]:
    """Return runs of neighbouring cells in a column, with counts from ``fewest`` to ``above`` - 1.

    Returns:
        For each run: column, first row, and last row plus 1.

    >>> runs([(0, 1, 5), (0, 2, 5), (0, 4, 5), (1, 5, 5), (1, 6, 9)], 5, 6)
    [(0, 1, 3), (0, 4, 5), (1, 5, 6)]
    """
    chosen = [(column, row) for column, row, number_ in cells if fewest <= number_ < above]
    # The difference of a cell's row and its place in ``chosen`` stays the same as long as rows
    # follow each other.
    groups = itertools.groupby(enumerate(chosen), key=lambda one: (one[1][0], one[1][1] - one[0]))
    found = []
    for (column, _), members in groups:
        rows = [row for _, (_, row) in members]
        found.append((column, rows[0], rows[-1] + 1))
    return found


def _sides(frame: Frame, grid: Grid, column: int) -> tuple[float, float]:
    ends = np.array([column, column + 1]) * grid.column_width
    left, right = frame.place_x(ends).tolist()
    return left, right


def _box(frame: Frame, grid: Grid, column: int, low: int, high: int) -> str:
    left, right = _sides(frame, grid, column)
    ends = grid.first + np.array([low, high]) * grid.row_height
    bottom, top = frame.place_y(ends).tolist()
    return f"M{number(left)} {number(bottom)}H{number(right)}V{number(top)}H{number(left)}z"
