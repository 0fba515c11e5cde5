"""HTML tables for ``_repr_html_`` of results in notebooks: escaped text, no script, no style."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table.

    >>> html_table("times", ["kernel", "rows"], [("a<b", 1200)])
    '<table><caption>times</caption><tr><th>kernel</th><th>rows</th></tr><tr><td>a&lt;b</td><td>1,200</td></tr></table>'
    """
    heading = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{escape(title)}</caption><tr>{heading}</tr>{body}</table>"


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Return an HTML table of two columns: names and values."""
    return html_table(title, ("what", "value"), facts.items())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items()) or "-"
    return str(value)
