"""Draws docs/explanation/packing.svg from a real batch: run it from the repository's root after a change.

::

    python docs/figures/packing.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainer.data.tokens import Tokens
from trainer.packing.batch import PackBatch
from trainer.packing.layout import pack_batch
from trainer.packing.packs import Packs

FIGURE = Path(__file__).parents[1] / "explanation" / "packing.svg"
BLUE, LIGHT_BLUE = "#0072B2", "#A9D1EA"
ORANGE, LIGHT_ORANGE = "#C77700", "#F6D79B"
GREY, LINE = "#EEEEEE", "#BBBBBB"
COLOURS = ((BLUE, LIGHT_BLUE), (ORANGE, LIGHT_ORANGE))
LEFT, WIDTH, HEIGHT = 130, 780, 610
CELL, MASK_CELL = 26, 17
BAR_TOP, MASK_TOP = 58, 158


def example() -> PackBatch:
    """One pack: kernel A with three launches, kernel B with two, two tokens of padding."""
    ones = np.ones(100, dtype=np.int32)
    tokens = Tokens(
        prefix_ids=ones[:10],
        prefix_start=np.array([0, 6, 10]),
        suffix_ids=ones[:12],
        suffix_values=np.zeros(12),
        suffix_start=np.array([0, 2, 4, 7, 9, 12]),
        group=np.array([0, 0, 0, 1, 1]),
    )
    packs = Packs(
        length=np.array([24]),
        part_start=np.array([0, 2]),
        kernel=np.array([0, 1]),
        launch_start=np.array([0, 3, 5]),
        launch=np.arange(5),
    )
    return pack_batch(packs, tokens)


def colour(batch: PackBatch, place: int) -> str:
    """Return a token's colour: dark in a prefix, light in a suffix."""
    kernel, suffix = batch.kernel[0, place], batch.suffix[0, place]
    return GREY if kernel < 0 else COLOURS[kernel][min(1, suffix)]


def text(x: float, y: float, words: str, *, anchor: str = "middle", size: int = 13) -> str:
    """Return a text element."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def square(x: float, y: float, side: float, fill: str) -> str:
    """Return a square."""
    return f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="{fill}" stroke="{LINE}"/>'


def sequence(batch: PackBatch) -> list[str]:
    """Draw the tokens of the pack, what they are, and their position ids."""
    drawn = [text(LEFT - 12, BAR_TOP + 18, "tokens", anchor="end")]
    drawn += [text(LEFT - 12, BAR_TOP + 46, "position ids", anchor="end")]
    names = [(0, 6, "prefix of A"), (6, 2, "a1"), (8, 2, "a2"), (10, 3, "a3")]
    names += [(13, 4, "prefix of B"), (17, 2, "b1"), (19, 3, "b2"), (22, 2, "padding")]
    for begin, count, name in names:
        drawn.append(text(LEFT + (begin + count / 2) * CELL, BAR_TOP - 10, name))
    for place in range(batch.ids.shape[1]):
        x = LEFT + place * CELL
        drawn.append(square(x, BAR_TOP, CELL, colour(batch, place)))
        if batch.kernel[0, place] >= 0:
            drawn.append(text(x + CELL / 2, BAR_TOP + 46, str(batch.position[0, place]), size=12))
    for query in batch.query[0]:
        drawn.append(text(LEFT + (query + 0.5) * CELL, BAR_TOP + 19, "&#9679;", size=12))
    return drawn


def mask(batch: PackBatch) -> list[str]:
    """Draw which token (row) may attend to which (column)."""
    kernel, suffix = batch.kernel[0], batch.suffix[0]
    count = len(kernel)
    of_colour: dict[str, str] = {}
    for row in range(count):
        for column in range(count):
            same = kernel[row] == kernel[column] >= 0
            seen = same and column <= row and suffix[column] in (0, suffix[row])
            seen = seen or row == column
            x, y = LEFT + column * MASK_CELL, MASK_TOP + row * MASK_CELL
            fill = colour(batch, column) if seen else "white"
            cell = f"M{x} {y}h{MASK_CELL}v{MASK_CELL}h-{MASK_CELL}z"
            of_colour[fill] = of_colour.get(fill, "") + cell
    drawn = [f'<path fill="{fill}" stroke="{LINE}" d="{d}"/>' for fill, d in of_colour.items()]
    names = [(0, 6, "prefix of A"), (6, 2, "a1"), (8, 2, "a2"), (10, 3, "a3")]
    names += [(13, 4, "prefix of B"), (17, 2, "b1"), (19, 3, "b2"), (22, 2, "padding")]
    for begin, size, name in names:
        y = MASK_TOP + (begin + size / 2) * MASK_CELL + 4
        drawn.append(text(LEFT - 12, y, name, anchor="end"))
    return drawn


def legend() -> list[str]:
    """Say what the colours mean."""
    x = LEFT + 24 * MASK_CELL + 24
    lines = (
        (BLUE, "kernel A: its source, once"),
        (LIGHT_BLUE, "its launches a1, a2, a3"),
        (ORANGE, "kernel B: its source, once"),
        (LIGHT_ORANGE, "its launches b1, b2"),
        (GREY, "padding"),
    )
    drawn = []
    for number, (fill, words) in enumerate(lines):
        y = MASK_TOP + 8 + number * 26
        drawn += [square(x, y, 16, fill), text(x + 24, y + 13, words, anchor="start")]
    y = MASK_TOP + 8 + len(lines) * 26
    drawn.append(text(x + 8, y + 13, "&#9679;", size=12))
    drawn.append(text(x + 24, y + 13, "read by the head", anchor="start"))
    drawn.append(text(x, y + 52, "A row is a token,", anchor="start"))
    drawn.append(text(x, y + 70, "a coloured field a token", anchor="start"))
    drawn.append(text(x, y + 88, "that it may attend to.", anchor="start"))
    return drawn


def figure() -> str:
    """Return the whole picture as SVG."""
    batch = example()
    parts = [*sequence(batch), *mask(batch), *legend()]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">'
    )
    title = "<title>A pack of two kernels with five launches, and its attention mask</title>"
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, title, background, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FIGURE.write_text(figure(), encoding="utf-8")
