"""Charts of points: scatter plots and lines with several series, and two-dimensional densities.

Large numbers of points are shown as bins of a density, or as an evenly spaced subset. Both depend
on the data only, so a page can be reproduced byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.csv_data import Cell, Drawn
from llmperf.html_report.charts.markup import Chart, Html
from llmperf.html_report.charts.quantities import Floats, Ints, count
from llmperf.html_report.charts.scales import Scale
from llmperf.html_report.charts.svg import (
    NUM_COLOURS,
    Canvas,
    Frame,
    draw_axes,
    frame_for,
    legend,
    marker_class,
    marker_path,
    number,
    polyline_path,
)

MAX_POINTS = 1_000
"""Maximum number of points that are drawn as dots. More dots would hide each other and make the
page large, so a plot with more points shows bins or a subset."""
_BINS = 44
SHADES = 5
"""Number of shades of a colour in a density plot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one colour; ``low`` and ``high``, if given, draw vertical interval bars."""

    name: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    style: int = 0
    joined: bool = False
    """Whether a line joins the points, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guides:
    """Reference lines: the line y = x, and values on either axis with a short text."""

    identity: bool = False
    at_x: tuple[tuple[float, str], ...] = ()
    at_y: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotText:
    """Texts of a plot: heading above it, title and description for screen readers."""

    title: str
    description: str
    heading: str = ""
    hint: str = ""

    @property
    def panel(self) -> str:
        """The name of the plot within its figure."""
        return self.hint or self.heading or self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Width and height of a chart in CSS pixels at full size."""

    width: float = 380.0
    height: float = 270.0


SMALL = Shape(width=262.0, height=205.0)
WIDE = Shape(width=790.0, height=230.0)
_NO_GUIDES = Guides()
_USUAL = Shape()


def thin(num_points: int, limit: int = MAX_POINTS) -> Ints:
    """Return the indices of the points to draw: all, or ``limit`` evenly spaced points."""
    if num_points <= limit:
        return np.arange(num_points)
    return np.unique(np.linspace(0, num_points - 1, limit).round().astype(np.int64))


def point_chart(
    series: Sequence[Series],
    x: Scale,
    y: Scale,
    text: PlotText,
    *,
    guides: Guides = _NO_GUIDES,
    shape: Shape = _USUAL,
) -> Chart:
    """Return a scatter or line chart; points must be finite."""
    canvas = Canvas(width=shape.width, height=shape.height)
    frame = frame_for(canvas, x, y, heading=text.heading)
    draw_axes(canvas, frame, heading=text.heading, hint=text.hint)
    _draw_guides(canvas, frame, guides)
    for one in series:
        _draw_series(canvas, frame, one)
    return Chart(canvas.render(text.title, text.description), _drawn_points(series, x, y, text))


def _drawn_points(series: Sequence[Series], x: Scale, y: Scale, text: PlotText) -> Drawn:
    with_ends = any(one.low is not None for one in series)
    rows: list[tuple[Cell, ...]] = []
    for one in series:
        columns = [one.x.tolist(), one.y.tolist()]
        if with_ends:
            nothing = np.full(len(one.x), np.nan)
            columns += [(nothing if end is None else end).tolist() for end in (one.low, one.high)]
        rows += [(one.name, *values) for values in zip(*columns, strict=True)]
    ends = ("low", "high") if with_ends else ()
    return Drawn(panel=text.panel, columns=("series", x.column, y.column, *ends), rows=rows)


def _draw_series(canvas: Canvas, frame: Frame, series: Series) -> None:
    xs, ys = frame.place_x(series.x), frame.place_y(series.y)
    colour = f"c{series.style % NUM_COLOURS}"
    if series.low is not None and series.high is not None:
        lows, highs = frame.place_y(series.low), frame.place_y(series.high)
        bars = "".join(
            f"M{number(px)} {number(a)}V{number(b)}"
            for px, a, b in zip(xs, lows, highs, strict=True)
        )
        canvas.path(bars, f"{colour} whisker")
    if series.joined:
        canvas.path(polyline_path(xs, ys), f"{colour} stroke dash{series.style % 4}")
    canvas.path(marker_path(xs, ys, series.style), marker_class(series.style))


def _draw_guides(canvas: Canvas, frame: Frame, guides: Guides) -> None:
    if guides.identity:
        low, high = max(frame.x.low, frame.y.low), min(frame.x.high, frame.y.high)
        if low < high:
            canvas.line(
                frame.at_x(low), frame.at_y(low), frame.at_x(high), frame.at_y(high), "guide"
            )
    for value, words in guides.at_x:
        if frame.x.low <= value <= frame.x.high:
            place = frame.at_x(value)
            canvas.line(place, frame.top, place, frame.bottom, "guide")
            canvas.text(place + 3, frame.bottom - 5, words, "note")
    shown = sorted(guide for guide in guides.at_y if frame.y.low <= guide[0] <= frame.y.high)
    for index, (value, words) in enumerate(shown):
        place = frame.at_y(value)
        canvas.line(frame.left, place, frame.right, place, "guide")
        # The text is below its line if this is the lowest of several lines, or is near the top,
        # where the axis label is. Otherwise the text is above its line.
        below = (len(shown) > 1 and index == 0) or place < frame.top + 14
        canvas.text(frame.left + 4, place + (11 if below else -4), words, "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Density:
    """A density plot, and the counts that its shades represent."""

    svg: Chart
    shades: dict[int, str]
    """Text of each shade that occurs, by its level."""


def density_chart(
    xs: Floats,
    ys: Floats,
    x: Scale,
    y: Scale,
    text: PlotText,
    *,
    guides: Guides = _NO_GUIDES,
    shape: Shape = _USUAL,
    most: int | None = None,
) -> Density:
    """Return a plot of the number of points per square bin, in logarithmic shades.

    ``most`` is the count of the darkest shade. Give panels the same number to make them comparable;
    None uses this panel's largest count.
    """
    canvas = Canvas(width=shape.width, height=shape.height)
    frame = frame_for(canvas, x, y, heading=text.heading)
    draw_axes(canvas, frame, heading=text.heading, hint=text.hint)
    cells, totals = _count_cells(xs, ys, x, y)
    edges = shade_edges(most or int(totals.max(initial=1)))
    levels = np.minimum(np.searchsorted(edges, totals, side="right") - 1, SHADES - 1)
    width, height = (frame.right - frame.left) / _BINS, (frame.bottom - frame.top) / _BINS
    shades: dict[int, str] = {}
    for level in range(SHADES):
        chosen = cells[levels == level]
        if not chosen.size:
            continue
        pieces = [
            f"M{number(frame.left + (cell // _BINS) * width)} "
            f"{number(frame.bottom - (cell % _BINS + 1) * height)}"
            f"h{number(width)}v{number(height)}h-{number(width)}z"
            for cell in chosen.tolist()
        ]
        canvas.path("".join(pieces), f"c0 fill shade{level}")
        shades[level] = shade_words(int(edges[level]), int(edges[level + 1]) - 1)
    _draw_guides(canvas, frame, guides)
    drawn = Drawn(
        panel=text.panel,
        columns=(f"{x.column}, middle of bin", f"{y.column}, middle of bin", "count"),
        rows=_cell_rows(cells, totals, x, y),
    )
    svg = Chart(canvas.render(text.title, text.description), drawn)
    return Density(svg=svg, shades=shades)


def _cell_rows(cells: Ints, totals: Ints, x: Scale, y: Scale) -> list[tuple[Cell, ...]]:
    columns = x.value_at((cells // _BINS + 0.5) / _BINS).tolist()
    rows = y.value_at((cells % _BINS + 0.5) / _BINS).tolist()
    return list(zip(columns, rows, totals.tolist(), strict=True))


def _count_cells(xs: Floats, ys: Floats, x: Scale, y: Scale) -> tuple[Ints, Ints]:
    columns = np.minimum((x.fraction(xs) * _BINS).astype(np.int64), _BINS - 1)
    rows = np.minimum((y.fraction(ys) * _BINS).astype(np.int64), _BINS - 1)
    cells, totals = np.unique(columns * _BINS + rows, return_counts=True)
    return cells.astype(np.int64), totals.astype(np.int64)


def densest_bin(xs: Floats, ys: Floats, x: Scale, y: Scale) -> int:
    """Return the largest bin count, for common shades of several panels."""
    return int(_count_cells(xs, ys, x, y)[1].max(initial=1))


def shade_edges(most: int) -> Ints:
    """Return the smallest count of each shade, followed by ``most`` + 1; whole numbers."""
    edges = np.geomspace(1, most + 1, SHADES + 1).round().astype(np.int64)
    return np.maximum.accumulate(np.maximum(edges, np.arange(1, SHADES + 2)))


def shade_legend(shades: dict[int, str], what: str) -> Html:
    """Return the legend of a density plot: the number of ``what`` per bin for each shade."""
    return legend(list(shades.values()), title=f"{what} per bin", shades=True, colours=list(shades))


def shade_words(fewest: int, most: int) -> str:
    """Return the counts that a shade stands for."""
    return count(fewest) if fewest == most else f"{count(fewest)}\u2013{count(most)}"
