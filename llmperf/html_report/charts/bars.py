"""Charts of categories, one row per category: stacked bars, and values with an interval.

Names of kernels are long and untrusted. They are shortened, and a tooltip shows the whole name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.csv_data import Drawn
from llmperf.html_report.charts.markup import Chart, shorten
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import Formatter, count, share
from llmperf.html_report.charts.scales import Scale, linear_scale, log_scale, share_scale
from llmperf.html_report.charts.svg import CHARACTER_WIDTH, NUM_COLOURS, Canvas, Frame, number

_ROW_HEIGHT = 17.0
_BAR_HEIGHT = 11.0
_MAX_LABEL = 22
_LOW_ENDS = 100.0
"""Largest ratio of the smallest value to the start of the axis; lower interval ends are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One row of a stacked bar chart: counts in the order of the chart's parts."""

    label: str
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRow:
    """One row of an interval chart; ``low`` and ``high`` are NaN where there is no interval."""

    label: str
    value: float
    low: float
    high: float
    note: str
    """Text at the end of the row, usually the number of values."""


def _row_frame(canvas: Canvas, labels: Sequence[str], x: Scale, note_chars: int) -> Frame:
    widest = max((min(len(label), _MAX_LABEL) for label in labels), default=1)
    rows = linear_scale(0, max(1, len(labels)), "")
    return Frame(
        left=12 + widest * CHARACTER_WIDTH,
        top=24.0,
        right=canvas.width - 14 - note_chars * CHARACTER_WIDTH,
        bottom=canvas.height - 34,
        x=x,
        y=rows,
    )


def _canvas_for(num_rows: int, width: float) -> Canvas:
    return Canvas(width=width, height=24 + 34 + _ROW_HEIGHT * max(1, num_rows))


def _draw_row_axes(canvas: Canvas, frame: Frame, text: PlotText) -> None:
    canvas.text(0, 12, text.heading, "heading")
    for value, words in frame.x.ticks(4):
        place = frame.at_x(value)
        canvas.line(place, frame.top, place, frame.bottom, "grid")
        canvas.text(place, frame.bottom + 14, words, "tick mid")
    canvas.text((frame.left + frame.right) / 2, canvas.height - 3, frame.x.label, "label mid")


def _draw_label(canvas: Canvas, frame: Frame, row: int, label: str) -> float:
    middle = frame.top + (row + 0.5) * _ROW_HEIGHT
    words = shorten(label, _MAX_LABEL)
    canvas.text(frame.left - 6, middle + 3.5, words, "t end", "" if words == label else label)
    return middle


def stacked_bar_chart(
    bars: Sequence[Bar],
    parts: Sequence[str],
    text: PlotText,
    *,
    as_share: bool = True,
    label: str = "Share of rows",
    colours: Sequence[int] | None = None,
    width: float = 380.0,
) -> Chart:
    """Return horizontal stacked bars that show shares of each row, or counts on a common scale."""
    colour_of = list(colours) if colours is not None else list(range(len(parts)))
    most = max((sum(bar.counts) for bar in bars), default=1)
    x = share_scale(label) if as_share else linear_scale(0, most, label, count, is_count=True)
    canvas = _canvas_for(len(bars), width)
    notes = [count(sum(bar.counts)) for bar in bars]
    frame = _row_frame(
        canvas, [bar.label for bar in bars], x, max((len(note) for note in notes), default=1)
    )
    _draw_row_axes(canvas, frame, text)
    for row, (bar, note) in enumerate(zip(bars, notes, strict=True)):
        middle = _draw_label(canvas, frame, row, bar.label)
        total = sum(bar.counts)
        whole = (total or 1) if as_share else 1
        start = 0.0
        for part, amount, colour in zip(parts, bar.counts, colour_of, strict=True):
            if amount:
                left, right = frame.at_x(start / whole), frame.at_x((start + amount) / whole)
                hint = f"{bar.label}, {part}: {count(amount)} ({share(amount, total)})"
                top = middle - _BAR_HEIGHT / 2
                shade = f"c{colour % NUM_COLOURS} fill bar"
                canvas.rect(left, top, right - left, _BAR_HEIGHT, shade, hint)
            start += amount
        canvas.text(canvas.width - 2, middle + 3.5, note, "tick end")
    canvas.text(canvas.width - 2, 12, "n", "label end")
    drawn = Drawn(
        panel=text.panel,
        columns=("group", *parts),
        rows=[(bar.label, *map(float, bar.counts)) for bar in bars],
    )
    return Chart(canvas.render(text.title, text.description), drawn)


def interval_chart(
    rows: Sequence[IntervalRow],
    x: Scale,
    text: PlotText,
    *,
    guide: tuple[float, str] | None = None,
    style: int = 0,
    note_heading: str = "n",
    width: float = 380.0,
) -> Chart:
    """Return one dot per row with its interval, and a guide line if given."""
    canvas = _canvas_for(len(rows), width)
    notes = max([len(row.note) for row in rows] + [len(note_heading)])
    frame = _row_frame(canvas, [row.label for row in rows], x, notes)
    _draw_row_axes(canvas, frame, text)
    if guide is not None:
        place = frame.at_x(guide[0])
        canvas.line(place, frame.top, place, frame.bottom, "guide")
        canvas.text(place, frame.top - 3, guide[1], "note mid")
    for index, row in enumerate(rows):
        middle = _draw_label(canvas, frame, index, row.label)
        colour = f"c{style % NUM_COLOURS}"
        if math.isfinite(row.low) and math.isfinite(row.high):
            canvas.line(
                frame.at_x(row.low), middle, frame.at_x(row.high), middle, f"{colour} stroke"
            )
        if math.isfinite(row.value):
            dot = f"M{number(frame.at_x(row.value))} {number(middle)}h0"
            canvas.path(dot, f"{colour} disc big")
        canvas.text(canvas.width - 2, middle + 3.5, row.note, "tick end")
    canvas.text(canvas.width - 2, 12, note_heading, "label end")
    drawn = Drawn(
        panel=text.panel,
        columns=("group", x.column, "low", "high", note_heading),
        rows=[(row.label, row.value, row.low, row.high, row.note) for row in rows],
    )
    return Chart(canvas.render(text.title, text.description), drawn)


def error_scale(rows: Sequence[IntervalRow], label: str, formatter: Formatter) -> Scale:
    """Return a logarithmic scale over all values and interval ends.

    A baseline can have an error of 1,500 % where a good model has 5 %, so on a linear axis good
    models could not be told apart. Interval ends below a hundredth of the smallest value are drawn
    at the left edge.
    """
    values = np.array([row.value for row in rows])
    positive = values[np.isfinite(values) & (values > 0)]
    lows = np.array([row.low for row in rows])
    shown = lows[lows >= positive.min() / _LOW_ENDS] if positive.size else lows[:0]
    highs = np.array([row.high for row in rows])
    return log_scale(np.concatenate([positive, shown, highs]), label, formatter)
