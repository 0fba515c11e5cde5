"""Pages, tables and lists of values in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_NOTE = "<!-- Written by `make docs` from the code. Do not edit: a test compares it. -->"


def page(title: str, lines: Iterable[str]) -> str:
    """Return a generated page with its title."""
    return "\n".join([_NOTE, "", f"# {title}", "", *lines]).rstrip() + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table; cells may hold any text."""
    escaped = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in escaped),
    ]


def listed(values: Iterable[str]) -> str:
    """Return the values as code, with commas between."""
    return ", ".join(f"`{value}`" for value in values)
