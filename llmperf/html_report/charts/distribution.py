"""Charts of distributions: stacked histograms and boxes of quantiles.

Owns the reduction of many values to shapes: the page holds counts and quantiles, not the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.csv_data import Cell, Drawn
from llmperf.html_report.charts.markup import Chart
from llmperf.html_report.charts.points import Guides, PlotText, Shape
from llmperf.html_report.charts.quantities import Floats, count, count_tick, quantiles
from llmperf.html_report.charts.scales import Scale, linear_scale
from llmperf.html_report.charts.svg import (
    CHARACTER_WIDTH,
    NUM_COLOURS,
    Canvas,
    Frame,
    draw_axes,
    frame_for,
)

_USUAL = Shape()
_NO_GUIDES = Guides()
_BOX_FRACTIONS = (0.05, 0.25, 0.5, 0.75, 0.95)
_BOX_NAMES = ("5 %", "25 %", "median", "75 %", "95 %")
BOX_WORDS = "Box: quartiles; line: median; whiskers: 5th and 95th percentile."


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The values of one colour of a stacked histogram."""

    name: str
    values: Floats
    style: int = 0


def bin_edges(x: Scale, num_bins: int) -> Floats:
    """Return bin edges with equal distances on the scale."""
    if x.is_log:
        return np.geomspace(x.low, x.high, num_bins + 1)
    return np.linspace(x.low, x.high, num_bins + 1)


def histogram_chart(
    layers: Sequence[Layer],
    x: Scale,
    text: PlotText,
    *,
    num_bins: int = 40,
    tallest: int | None = None,
    guides: Guides = _NO_GUIDES,
    shape: Shape = _USUAL,
    label: str = "Rows",
) -> Chart:
    """Return a stacked histogram; values beyond the scale are counted in its outermost bins.

    Args:
        layers: Layers, stacked from the bottom.
        x: The x scale; bins have equal widths on it.
        text: Texts of the plot.
        num_bins: Number of bins.
        tallest: Top of the y axis, for panels on a common axis; None uses this panel's tallest bin.
        guides: Vertical reference lines.
        shape: Size of the drawing.
        label: Label of the y axis.
    """
    edges = bin_edges(x, num_bins)
    counted = [_count_bins(layer.values, edges) for layer in layers]
    top = tallest or max(1, int(np.sum(counted, axis=0).max(initial=0)) if counted else 1)
    canvas = Canvas(width=shape.width, height=shape.height)
    frame = frame_for(
        canvas, x, linear_scale(0, top, label, count_tick, is_count=True), heading=text.heading
    )
    draw_axes(canvas, frame, heading=text.heading, hint=text.hint)
    base = np.zeros(num_bins)
    lefts = frame.place_x(edges)
    for layer, counts in zip(layers, counted, strict=True):
        for i in np.flatnonzero(counts):
            low, high = frame.at_y(float(base[i])), frame.at_y(float(base[i] + counts[i]))
            hint = f"{layer.name}: {count(float(counts[i]))} at {_range_words(x, edges, int(i))}"
            width = float(lefts[i + 1] - lefts[i])
            canvas.rect(
                float(lefts[i]),
                high,
                width,
                low - high,
                f"c{layer.style % NUM_COLOURS} fill bar",
                hint,
            )
        base += counts
    for value, words in guides.at_x:
        if x.low <= value <= x.high:
            place = frame.at_x(value)
            canvas.line(place, frame.top, place, frame.bottom, "guide")
            canvas.text(place + 3, frame.top + 9, words, "note")
    drawn = Drawn(
        panel=text.panel,
        columns=("series", f"{x.column} from", "to", label),
        rows=_bin_rows(layers, edges, counted),
    )
    return Chart(canvas.render(text.title, text.description), drawn)


def _bin_rows(
    layers: Sequence[Layer], edges: Floats, counted: Sequence[Floats]
) -> list[tuple[Cell, ...]]:
    return [
        (layer.name, float(edges[i]), float(edges[i + 1]), float(counts[i]))
        for layer, counts in zip(layers, counted, strict=True)
        for i in np.flatnonzero(counts)
    ]


def _range_words(x: Scale, edges: Floats, index: int) -> str:
    return f"{x.formatter(float(edges[index]))} to {x.formatter(float(edges[index + 1]))}"


def _count_bins(values: Floats, edges: Floats) -> Floats:
    inside = np.clip(values[np.isfinite(values)], edges[0], edges[-1])
    return np.histogram(inside, bins=edges)[0].astype(np.float64)


def tallest_bin(groups: Sequence[Floats], x: Scale, num_bins: int = 40) -> int:
    """Return the largest bin count of all groups, for panels on a common y axis."""
    edges = bin_edges(x, num_bins)
    return (
        max((int(_count_bins(values, edges).max(initial=0)) for values in groups), default=1) or 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxGroup:
    """One box: a category and its values (NaNs are ignored)."""

    label: str
    values: Floats


def box_chart(
    groups: Sequence[BoxGroup],
    y: Scale,
    text: PlotText,
    *,
    x_label: str,
    guides: Guides = _NO_GUIDES,
    shape: Shape = _USUAL,
) -> Chart:
    """Return one vertical box for each group, with its number of values (n) below it.

    A quantile outside the scale is drawn at the nearer end of the scale.
    """
    canvas = Canvas(width=shape.width, height=shape.height)
    x = linear_scale(0, max(1, len(groups)), x_label)
    plain = frame_for(canvas, x, y, heading=text.heading)
    frame = Frame(
        left=plain.left, top=plain.top, right=plain.right, bottom=plain.bottom - 10, x=x, y=y
    )
    canvas.text(0, 12, text.heading, "heading")
    canvas.text(0, frame.top - 9, y.label, "label")
    for value, words in y.ticks():
        canvas.line(frame.left, frame.at_y(value), frame.right, frame.at_y(value), "grid")
        canvas.text(frame.left - 6, frame.at_y(value) + 3.5, words, "tick end")
    for value, words in guides.at_y:
        if y.low <= value <= y.high:
            canvas.line(frame.left, frame.at_y(value), frame.right, frame.at_y(value), "guide")
            canvas.text(frame.right - 2, frame.at_y(value) - 4, words, "note end")
    for index, group in enumerate(groups):
        _draw_box(canvas, frame, index, group)
    canvas.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")
    canvas.text((frame.left + frame.right) / 2, canvas.height - 3, x_label, "label mid")
    drawn = Drawn(
        panel=text.panel,
        columns=(x_label, *(f"{y.column}, {name}" for name in _BOX_NAMES), "n"),
        rows=[_box_row(group) for group in groups],
    )
    return Chart(canvas.render(text.title, text.description), drawn)


def _box_row(group: BoxGroup) -> tuple[Cell, ...]:
    num_values = float(np.isfinite(group.values).sum())
    return (group.label, *quantiles(group.values, *_BOX_FRACTIONS), num_values)


def _draw_box(canvas: Canvas, frame: Frame, index: int, group: BoxGroup) -> None:
    middle = frame.at_x(index + 0.5)
    column = (frame.right - frame.left) / max(1, frame.x.high)
    size = int(np.isfinite(group.values).sum())
    wide = len(group.label) * CHARACTER_WIDTH <= column
    canvas.text(middle, frame.bottom + 13, group.label, "tick mid" if wide else "note mid")
    canvas.text(middle, frame.bottom + 25, f"n {count_tick(size)}", "note mid")
    if not size:
        return
    values = quantiles(group.values, *_BOX_FRACTIONS)
    p5, p25, p50, p75, p95 = (frame.at_y(value) for value in values)
    half = min(13.0, column * 0.3)
    words = " · ".join(frame.y.formatter(value) for value in values)
    canvas.line(middle, p5, middle, p95, "c0 stroke")
    canvas.rect(
        middle - half,
        p75,
        half * 2,
        max(1.0, p25 - p75),
        "c0 box",
        f"{group.label}: {words}; n = {count(size)}",
    )
    canvas.line(middle - half, p50, middle + half, p50, "c0 stroke strong")
