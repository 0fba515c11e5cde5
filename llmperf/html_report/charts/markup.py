"""HTML as values: escaping by type, and the elements of a report.

Owns escaping. Kernel names, paths, sources and compiler logs are untrusted text: these functions
escape every plain ``str`` in an element, but not :class:`Html`, which only these functions make.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from llmperf.html_report.charts.csv_data import Drawn, csv_address, grouped

# Control characters have no meaning in HTML. Bidirectional overrides can make a listing look
# different from what a compiler reads (CVE-2021-42574). All are shown as code points.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
)


_FILE_WORDS = 6
_MANY = 6
"""A table with at least this number of columns does not fit on a phone. Browsers that cannot detect
an overflow show a note that the table scrolls."""
_LONG_ROWS = 30
"""Number of rows above which a table may be split over pages in print."""


class Html(str):
    """Text that is already HTML; untrusted text becomes Html only through :func:`escape`."""

    __slots__ = ()


class Chart(Html):
    """An SVG with the data that it shows, so that a figure can offer the data as CSV."""

    __slots__ = ("drawn",)
    drawn: Drawn

    def __new__(cls, svg: Html, drawn: Drawn) -> Chart:
        """Return the chart; ``drawn`` holds the values of its shapes."""
        chart = super().__new__(cls, svg)
        chart.drawn = drawn
        return chart


def _visible(match: re.Match[str]) -> str:
    return "" if match.group() == "\r" else f"\\u{ord(match.group()):04x}"


def escape(text: str) -> Html:
    """Return :class:`Html` unchanged; escape other text, and show its invisible characters.

    >>> str(escape('<b>"x"</b>'))
    '&lt;b&gt;&quot;x&quot;&lt;/b&gt;'
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape(_INVISIBLE.sub(_visible, text), quote=True))


def shorten(text: str, limit_chars: int) -> str:
    """Return ``text`` in at most ``limit_chars`` characters; a longer text loses its middle.

    >>> shorten("abcdefghij", 7)
    'abc…hij'
    """
    if len(text) <= limit_chars:
        return text
    head = limit_chars // 2
    tail = limit_chars - head - 1
    return f"{text[:head]}…{text[len(text) - tail :]}"


def tag(name: str, *children: str, **attributes: str) -> Html:
    """Return one element; ``class_`` becomes ``class``, ``aria_label`` becomes ``aria-label``."""
    inner = "".join(escape(child) for child in children)
    return Html(f"{_opening(name, attributes)}{inner}</{name}>")


def void(name: str, **attributes: str) -> Html:
    """Return one element without an end tag (``meta``, ``col``)."""
    return Html(_opening(name, attributes))


def _opening(name: str, attributes: dict[str, str]) -> str:
    parts = [f' {key.rstrip("_").replace("_", "-")}="{escape(v)}"' for key, v in attributes.items()]
    return f"<{name}{''.join(parts)}>"


def join(parts: Iterable[str]) -> Html:
    """Return the parts joined, each escaped unless it is :class:`Html`."""
    return Html("".join(escape(part) for part in parts))


def paragraph(*parts: str) -> Html:
    """Return a paragraph."""
    return tag("p", *parts)


def nothing_to_show(what: str, reason: str) -> Html:
    """Return a line that replaces a figure and says why, so that no section is silently empty."""
    return tag("p", f"{what}: nothing to show because {reason}.", class_="nothing")


def figure(
    charts: Sequence[str], caption: str, *, legend: str = "", columns: int = 2, wide: bool = False
) -> Html:
    """Return charts in up to ``columns`` columns, with one caption and links to their data.

    ``wide`` charts scroll in a narrow window instead of shrinking to unreadable text.
    """
    shown = [_wide(chart) for chart in charts] if wide else charts
    panels = tag("div", *shown, class_=f"panels of{columns}")
    links = data_links([chart.drawn for chart in charts if isinstance(chart, Chart)], caption)
    return tag("figure", legend or Html(""), panels, tag("figcaption", caption, links))


def _wide(chart: str) -> Html:
    return tag("div", chart, class_="scroll wide", tabindex="0", role="region", aria_label="chart")


def data_links(panels: Sequence[Drawn], name: str) -> Html:
    """Return links that download the panels' data as CSV, one link for each set of columns."""
    files = grouped(panels)
    links: list[str] = []
    for number, (words, text) in enumerate(files, start=1):
        file_name = f"{_slug(name)}{f'-{number}' if number > 1 else ''}.csv"
        label = words if len(files) > 1 else "CSV"
        links += [" \u00b7 ", tag("a", label, href=csv_address(text), download=file_name)]
    return tag("span", "Data: ", *links[1:], class_="data") if links else Html("")


def _slug(text: str) -> str:
    """Return the first words of a caption as a file name."""
    words = re.findall(r"[a-z0-9]+", text.lower())[:_FILE_WORDS]
    return "-".join(words) or "data"


def table(
    caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]], *, align: str = ""
) -> Html:
    """Return a table that scrolls horizontally if it is too wide.

    Args:
        caption: Content of the table, with unit and n.
        headers: One text per column.
        rows: Cells; the first cell of a row is its header.
        align: One letter per column: ``l`` left, ``r`` right, ``w`` left, may break anywhere
            (untrusted text), ``p`` prose, kept wide enough to read. Missing letters: ``l`` for the
            first column, ``r`` for others.
    """
    letters = (align or "l").ljust(len(headers), "r")
    head = join(
        tag("th", text, scope="col", **_aligned(letter))
        for text, letter in zip(headers, letters, strict=True)
    )
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", **_aligned(letters[0])),
            *_cells(row[1:], letters[1:]),
        )
        for row in rows
    ]
    inner = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag("thead", tag("tr", head)),
        tag("tbody", *body),
    )
    scrolled = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label="table")
    # The outer box numbers the tables: CSS counters inside a size container are local to it.
    classes = ["tabled"] + ["long"] * (len(body) > _LONG_ROWS) + ["many"] * (len(headers) >= _MANY)
    return tag("div", scrolled, class_=" ".join(classes))


def _cells(cells: Sequence[str], letters: str) -> list[Html]:
    return [
        tag("td", cell, **_aligned(letter)) for cell, letter in zip(cells, letters, strict=True)
    ]


def _aligned(letter: str) -> dict[str, str]:
    # Most cells are numbers, so right is the default: large tables take a third less space.
    return {} if letter == "r" else {"class_": letter}


def side_by_side(*parts: str) -> Html:
    """Return parts in two columns, if the window is wide enough."""
    return tag("div", *parts, class_="panels of2")


def details(summary: str, *children: str) -> Html:
    """Return folded content with its summary."""
    return tag("details", tag("summary", summary), *children)


def listing(text: str) -> Html:
    """Return preformatted untrusted text: a source or a log."""
    return tag("pre", tag("code", text), tabindex="0")


def section(title: str, anchor: str, *children: str) -> Html:
    """Return a section with its heading; the table of contents links to ``anchor``."""
    return tag("section", tag("h2", title), *children, id=anchor)


def definition_table(caption: str, facts: Iterable[tuple[str, str]]) -> Html:
    """Return facts as a two-column table of names and values."""
    return table(caption, ("Fact", "Value"), list(facts), align="lw")
