"""Where words go: results to stdout, everything else to stderr, one JSON document with ``--json``."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any


def say(text: str = "") -> None:
    """Write a line for the user to stderr."""
    with contextlib.suppress(BrokenPipeError):  # `collect 2>&1 | head` must not end the run
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def answer(text: str = "") -> None:
    """Write a line of the result to stdout."""
    sys.stdout.write(text + "\n")


def answer_json(document: Any) -> None:
    """Write the one JSON document of a ``--json`` command to stdout."""
    sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n")


def answer_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table to stdout, columns aligned; numbers to the right."""
    from rich.console import Console  # noqa: PLC0415  (keeps `--help` fast)
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left", title_style="bold")
    cells = [[_cell(value) for value in row] for row in rows]
    for index, name in enumerate(header):
        numeric = bool(cells) and all(
            row[index][:1].isdigit() or row[index] in ("", "-") for row in cells
        )
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    Console(file=sys.stdout).print(table, markup=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value)
