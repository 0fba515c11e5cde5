"""The page around the sections: head, style, contents, foot.

Owns the document, which is one file without external resources. The style is inlined, and a content
security policy forbids everything else. So even text whose escaping was forgotten could not run or
fetch anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from llmperf.html_report.charts.markup import Html, escape, join, tag, void
from llmperf.html_report.views import Stamp

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_GENERATOR = "llmperf"
_HEAD_BYTES = 1024
"""Number of bytes of a page that are searched for the line that names its writer. That line is in
the first 400 bytes."""
_FIRST_LINES = (
    void("meta", charset="utf-8"),
    void("meta", http_equiv="Content-Security-Policy", content=_POLICY),
    void("meta", name_="viewport", content="width=device-width, initial-scale=1"),
    void("meta", name_="color-scheme", content="light dark"),
)
_UNNAMED_HEAD = f"<head>{join(_FIRST_LINES)}<title>LLMPerf "
"""The beginning of a page of earlier releases, which did not name the writer."""
_SECTION = re.compile(r'<section id="([^"]+)"><h2>(.*?)</h2>')


def document(
    title: str, subtitle: str, sections: Sequence[Html], stamp: Stamp, *, has_times: bool = True
) -> Html:
    """Return the whole page; its table of contents is made from the sections' headings."""
    head = tag(
        "head",
        *_FIRST_LINES,
        # A later `llmperf report --out` replaces an existing page only if the page has this line.
        void("meta", name_="generator", content=f"{_GENERATOR} {stamp.version}".strip()),
        tag("title", f"{title} · LLMPerf"),
        Html(f"<style>{_style()}</style>"),
    )
    header = tag("header", tag("h1", title), tag("p", subtitle, class_="subtitle"), _made(stamp))
    body = tag("body", header, _contents(sections), tag("main", *sections), _foot(has_times))
    return Html(f'<!DOCTYPE html>\n<html lang="en">{head}{body}</html>\n')


def is_report(path: Path) -> bool:
    """Whether ``path`` is a page that ``document`` made, in this release or an earlier one."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return False
    return f'<meta name="generator" content="{_GENERATOR}' in head or _UNNAMED_HEAD in head


def _style() -> str:
    return (files("llmperf.html_report") / "page.css").read_text(encoding="utf-8")


def _made(stamp: Stamp) -> Html:
    parts = []
    if stamp.made_at is not None:
        parts.append(f"Made {stamp.made_at:%Y-%m-%d %H:%M} {stamp.made_at.tzname() or ''}".strip())
    if stamp.version:
        parts.append(f"by LLMPerf {stamp.version}" if parts else f"Made by LLMPerf {stamp.version}")
    return tag("p", " ".join(parts), class_="stamp") if parts else Html("")


def _contents(sections: Sequence[Html]) -> Html:
    found = [match for part in sections if (match := _SECTION.match(part))]
    links = [tag("a", Html(match.group(2)), href=f"#{match.group(1)}") for match in found]
    return tag("nav", join(links), aria_label="Contents")


def _foot(has_times: bool) -> Html:
    times = (
        "Times are device event times of one warm launch: the median of a row's readings. "
        "Logarithms have base 10 on axes of time and base 2 in errors. "
    )
    words = (times if has_times else "") + (
        "Colours: Okabe and Ito (2008), which most colour-blind readers can distinguish; series "
        "also differ by marker. Hold the pointer over a bar or a shortened name to read it in "
        "full. Folded parts are printed only when they are open."
    )
    return tag("footer", tag("p", escape(words)))
