"""Drawing of inline SVG: shapes have classes, never colours.

Owns the canvas, the frame of the axes and the markers. Colours come from ``page.css``, so that dark
mode and print need no second drawing. Series also differ by marker, so no chart depends on colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmperf.html_report.charts.markup import Html, join, shorten, tag
from llmperf.html_report.charts.quantities import Floats
from llmperf.html_report.charts.scales import Scale

NUM_COLOURS = 8
_LEGEND_CHARS = 40
CHARACTER_WIDTH = 5.9
"""Mean width of a character in px at the charts' font size of 10.5 px; slightly too large, because
fonts differ by machine."""


def number(value: float) -> str:
    """Return a coordinate as SVG text, rounded to at most one decimal.

    Raises:
        ValueError: The value is not finite; a browser would silently drop the shape.
    """
    if not math.isfinite(value):
        raise ValueError(f"coordinate {value} is not finite")
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


class Canvas:
    """Collects the shapes of one SVG."""

    def __init__(self, *, width: float, height: float) -> None:
        self.width = width
        self.height = height
        self._shapes: list[str] = []

    def _shape(self, name: str, class_: str, hint: str, **places: float) -> None:
        attributes = {key: number(value) for key, value in places.items()}
        hints = [tag("title", hint)] if hint else []
        self._shapes.append(tag(name, *hints, class_=class_, **attributes))

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str, hint: str = "") -> None:
        """Draw a straight line."""
        self._shape("line", class_, hint, x1=x1, y1=y1, x2=x2, y2=y2)

    def rect(
        self, x: float, y: float, width: float, height: float, class_: str, hint: str = ""
    ) -> None:
        """Draw a rectangle; ``hint`` is its tooltip."""
        self._shape("rect", class_, hint, x=x, y=y, width=max(0.0, width), height=max(0.0, height))

    def text(self, x: float, y: float, text: str, class_: str = "t", hint: str = "") -> None:
        """Write text; the class sets its anchor (``start`` unless ``mid`` or ``end``)."""
        hints = [tag("title", hint)] if hint else []
        self._shapes.append(tag("text", text, *hints, x=number(x), y=number(y), class_=class_))

    def path(self, data: str, class_: str) -> None:
        """Draw a path; its coordinates must come from :func:`number`."""
        if data:
            self._shapes.append(tag("path", class_=class_, d=data))

    def render(self, title: str, description: str) -> Html:
        """Return the SVG with its title, and a description of its content for screen readers."""
        return tag(
            "svg",
            tag("title", title),
            tag("desc", description),
            join(Html(shape) for shape in self._shapes),
            viewBox=f"0 0 {number(self.width)} {number(self.height)}",
            role="img",
            aria_label=title,
            style=f"max-width:{number(self.width * 1.2)}px",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The plot area of a canvas with its two scales."""

    left: float
    top: float
    right: float
    bottom: float
    x: Scale
    y: Scale

    def place_x(self, values: Floats) -> Floats:
        """Return horizontal positions in px."""
        return self.left + self.x.fraction(values) * (self.right - self.left)

    def place_y(self, values: Floats) -> Floats:
        """Return vertical positions in px (SVG counts downwards)."""
        return self.bottom - self.y.fraction(values) * (self.bottom - self.top)

    def at_x(self, value: float) -> float:
        """Return the horizontal position of one value."""
        return float(self.place_x(np.array([value]))[0])

    def at_y(self, value: float) -> float:
        """Return the vertical position of one value."""
        return float(self.place_y(np.array([value]))[0])


def frame_for(
    canvas: Canvas, x: Scale, y: Scale, *, heading: str = "", left: float | None = None
) -> Frame:
    """Return a plot area with margins for tick texts, labels and a heading."""
    widest = max((len(text) for _, text in y.ticks()), default=1)
    margin = left if left is not None else 10 + widest * CHARACTER_WIDTH
    return Frame(
        left=margin,
        top=38.0 if heading else 22.0,
        right=canvas.width - 12,
        bottom=canvas.height - 36,
        x=x,
        y=y,
    )


def draw_axes(canvas: Canvas, frame: Frame, *, heading: str = "", hint: str = "") -> None:
    """Draw grid lines, ticks and labels; the y label is horizontal, above the axis."""
    if heading:
        canvas.text(0, 12, heading, "heading", hint)
    canvas.text(0, frame.top - 9, frame.y.label, "label")
    canvas.text((frame.left + frame.right) / 2, canvas.height - 4, frame.x.label, "label mid")
    for value, text in frame.y.ticks():
        y = frame.at_y(value)
        canvas.line(frame.left, y, frame.right, y, "grid")
        canvas.text(frame.left - 6, y + 3.5, text, "tick end")
    for value, text in _spaced(frame):
        x = frame.at_x(value)
        canvas.line(x, frame.top, x, frame.bottom, "grid")
        canvas.text(x, frame.bottom + 14, text, "tick mid")
    canvas.line(frame.left, frame.bottom, frame.right, frame.bottom, "axis")


def _spaced(frame: Frame) -> list[tuple[float, str]]:
    ticks = frame.x.ticks()
    for target in (5, 4, 3, 2):
        ticks = frame.x.ticks(target)
        room = (frame.right - frame.left) / max(1, len(ticks))
        if max((len(text) for _, text in ticks), default=0) * CHARACTER_WIDTH + 6 <= room:
            break
    return ticks


def marker_path(xs: Floats, ys: Floats, shape: int, size: float = 4.0) -> str:
    """Return all markers of a series as one path; the shapes repeat after four series."""
    half = size / 2
    top, side = number(half), number(size)
    pieces = (
        # A disc is a line of length 0 with round caps, whose stroke width is the diameter.
        "h0",
        f"m-{top}-{top}h{side}v{side}h-{side}z",
        f"m0-{top}l{top} {side}h-{side}z",
        f"m0-{number(half * 1.3)}l{number(half * 1.3)} {number(half * 1.3)}-{number(half * 1.3)} "
        f"{number(half * 1.3)}-{number(half * 1.3)}-{number(half * 1.3)}z",
    )
    piece = pieces[shape % len(pieces)]
    return "".join(f"M{number(x)} {number(y)}{piece}" for x, y in zip(xs, ys, strict=True))


def marker_class(series: int) -> str:
    """Return the CSS classes of a series' markers."""
    return f"c{series % NUM_COLOURS} {'disc' if series % 4 == 0 else 'mark'}"


def polyline_path(xs: Floats, ys: Floats) -> str:
    """Return the path of a line through the points."""
    return "".join(
        f"{'M' if i == 0 else 'L'}{number(x)} {number(y)}"
        for i, (x, y) in enumerate(zip(xs, ys, strict=True))
    )


def legend(
    names: Sequence[str],
    *,
    title: str = "",
    marks: bool = False,
    shades: bool = False,
    colours: Sequence[int] | None = None,
) -> Html:
    """Return the legend of a figure in HTML: colour, marker or shade of each series."""
    items = [tag("span", title, class_="legend-title")] if title else []
    for index, name in zip(colours or range(len(names)), names, strict=True):
        key = Canvas(width=12, height=12)
        if marks:
            place = np.array([6.0])
            key.path(marker_path(place, place, index, 6.0), f"{marker_class(index)} key")
        else:
            key.rect(
                1, 1, 10, 10, f"c0 fill shade{index}" if shades else f"c{index % NUM_COLOURS} fill"
            )
        items.append(tag("span", key.render(name, f"Mark of {name}"), shorten(name, _LEGEND_CHARS)))
    return tag("div", *items, class_="legend")
