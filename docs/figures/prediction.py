"""Draws docs/figures/prediction.svg: predicted against measured times of kernels that the model never saw.

The model is the one that comes with the package. The rows are those of its card: the test part of its dataset
(docs/how-to/rebuild-a-dataset.md makes ``runs/h200``), public suites apart. Run it from the repository's root
after the model has changed::

    python docs/figures/prediction.py runs/h200
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.models.shipped_model import Errors, Mask, errors, parts_scored, predictions
from llmperf_common.statistics.splits import Part
from trainer.data.dataset import TrainingData, load_data
from trainer.data.parts import row_parts
from trainer.run.loaded import load_run
from trainer.run.shipped import DEFAULT_MODEL, SHIPPED_FOLDER

FIGURE = Path(__file__).with_name("prediction.svg")
PANELS = {"test": "Kernels from GitHub", "both suites": "SHOC and Rodinia"}
"""Part of the card's table to the panel's title."""
CELLS_A_DECADE = 12
DECADES = (3, 8)
"""The axes run from 1 µs to 100 ms: log10 of nanoseconds."""
COUNTS = (1, 3, 10, 30, 100, 300, 1_000_000)
"""A cell's colour begins at each of these numbers of launches."""
COLOURS = ("#C6DBEF", "#9ECAE1", "#6BAED6", "#3182BD", "#08519C", "#08264D")
SIDE, LEFT, TOP, GAP = 350, 78, 64, 64
WIDTH, HEIGHT = LEFT + 2 * SIDE + GAP + 34, TOP + SIDE + 104
TICKS = ("1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms")
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One part of the data: log10(ns) measured and predicted, shape (n,) each, and its row of the card."""

    title: str
    measured: Floats
    predicted: Floats
    errors: Errors


def panels(folder: Path) -> list[Panel]:
    """Predict the held-out rows of the dataset in ``folder`` with the shipped model."""
    run, data = load_run(SHIPPED_FOLDER / DEFAULT_MODEL), load_data(folder)
    parts = row_parts(data, run.split)
    said = predictions(run, data, (parts == Part.TEST) & data.single_launch)[run.name]
    return [
        panel(PANELS[name], data, said, chosen & data.single_launch, run.name)
        for name, chosen in parts_scored(data, parts)
        if name in PANELS
    ]


def panel(title: str, data: TrainingData, said: Floats, chosen: Mask, model: str) -> Panel:
    """Take one part's rows."""
    return Panel(
        title=title,
        measured=data.log2_ns[chosen] * np.log10(2),
        predicted=said[chosen] * np.log10(2),
        errors=errors(model, title, "all", data, said, chosen),
    )


def place(log10_ns: float) -> float:
    """Return where a time lies along an axis, in pixels from its begin."""
    return SIDE * (log10_ns - DECADES[0]) / (DECADES[1] - DECADES[0])


def text(x: float, y: float, words: str, *, anchor: str = "middle", more: str = "") -> str:
    """Return a text element."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {more}>{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, look: str) -> str:
    """Return a line from (x1, y1) to (x2, y2)."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look}/>'


def runs(column: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return where each run of true values begins, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], column, [False]])))
    return [(int(begin), int(end - begin)) for begin, end in edges.reshape(-1, 2)]


def cells(shown: Panel, left: float) -> list[str]:
    """Draw how many launches lie in each cell: cells above one another as one thick line."""
    count = CELLS_A_DECADE * (DECADES[1] - DECADES[0])
    edges = np.linspace(*DECADES, count + 1)
    found, _, _ = np.histogram2d(
        np.clip(shown.measured, *DECADES), np.clip(shown.predicted, *DECADES), bins=(edges, edges)
    )
    step = SIDE / count
    drawn = []
    for (low, high), colour in zip(pairwise(COUNTS), COLOURS, strict=True):
        is_shown = (found >= low) & (found < high)
        columns = "".join(
            f"M{left + (x + 0.5) * step:.1f} {TOP + SIDE - first * step:.1f}v-{number * step:.1f}"
            for x, column in enumerate(is_shown)
            for first, number in runs(column)
        )
        drawn.append(f'<path stroke="{colour}" stroke-width="{step:.2f}" d="{columns}"/>')
    return drawn


def axes(shown: Panel, left: float, *, first: bool) -> list[str]:
    """Draw frame, ticks, the line of exact predictions and those of a factor of two."""
    base = TOP + SIDE
    two = SIDE * np.log10(2) / (DECADES[1] - DECADES[0])
    dashed = 'stroke="#C77700" stroke-dasharray="5 4"'
    drawn = [
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#777"/>',
        line(left, base, left + SIDE, TOP, 'stroke="#C77700"'),
        line(left, base - two, left + SIDE - two, TOP, dashed),
        line(left + two, base, left + SIDE, TOP + two, dashed),
        text(left + SIDE / 2, base + 42, "measured time"),
    ]
    for number, words in enumerate(TICKS):
        at = place(DECADES[0] + number)
        drawn += [line(left + at, base, left + at, base + 5, 'stroke="#777"')]
        drawn += [line(left - 5, base - at, left, base - at, 'stroke="#777"')]
        drawn += [text(left + at, base + 20, words, more='font-size="12"')]
        if first:
            y = base - at + 4
            drawn += [text(left - 9, y, words, anchor="end", more='font-size="12"')]
    score = shown.errors
    drawn += [
        text(left + SIDE / 2, TOP - 30, shown.title, more='font-weight="bold"'),
        text(
            left + SIDE / 2,
            TOP - 11,
            f"{score.rows:,} launches of {score.kernels} kernels, none in training",
        ),
    ]
    figures = (
        f"error of the median kernel {score.median_kernel:.1f} %",
        f"mean error over kernels {score.macro:.1f} %",
        f"within a factor of 2: {score.within_2:.1f} %",
    )
    for number, words in enumerate(figures):
        drawn.append(text(left + 10, TOP + 22 + 18 * number, words, anchor="start"))
    return drawn


def legend() -> list[str]:
    """Say what colours and lines mean."""
    y = TOP + SIDE + 76
    x = LEFT
    drawn = [text(x, y + 12, "launches in a cell:", anchor="start")]
    x += 124
    for low, colour in zip(COUNTS, COLOURS, strict=False):
        drawn.append(f'<rect x="{x}" y="{y}" width="15" height="15" fill="{colour}"/>')
        drawn.append(text(x + 20, y + 12, f"{low}+", anchor="start"))
        x += 64
    drawn.append(line(x + 18, y + 8, x + 48, y + 8, 'stroke="#C77700"'))
    drawn.append(text(x + 54, y + 12, "exact", anchor="start"))
    drawn.append(line(x + 108, y + 8, x + 138, y + 8, 'stroke="#C77700" stroke-dasharray="5 4"'))
    drawn.append(text(x + 144, y + 12, "factor of 2", anchor="start"))
    return drawn


def figure(shown: list[Panel]) -> str:
    """Return the whole picture as SVG."""
    words = "Predicted against measured times of launches on an NVIDIA H200"
    middle = TOP + SIDE / 2
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f"<title>{words}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(16, middle, "predicted time", more=f'transform="rotate(-90 16 {middle:g})"'),
    ]
    for number, one in enumerate(shown):
        left = LEFT + number * (SIDE + GAP)
        drawn += [*cells(one, left), *axes(one, left, first=number == 0)]
    return "\n".join([*drawn, *legend(), "</svg>"]) + "\n"


def main() -> None:
    """Draw the figure from the dataset that the command line names."""
    shown = panels(Path(sys.argv[1]))
    for one in shown:
        print(one.errors)
    FIGURE.write_text(figure(shown), encoding="utf-8")


if __name__ == "__main__":
    main()
