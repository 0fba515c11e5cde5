"""Names, families and sources of kernels by ``kernel_id``, for a report.

Owns the look-up of a kernel's texts by its id, and the display of its source. A kernel may have
several rows (one per task); the first row is used.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmperf.html_report.charts.markup import Html, details, listing, paragraph, shorten, tag
from llmperf.html_report.charts.quantities import count
from llmperf.html_report.columns import texts
from llmperf.html_report.views import ArrowTable

_SOURCE_CHARS = 6_000


def anchor(kernel_id: str) -> str:
    """Return the HTML anchor of a kernel's section."""
    return f"kernel-{kernel_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWords:
    """The texts of one kernel; ``row`` is its index in the table."""

    kernel_id: str
    name: str
    path: str
    family_id: str
    suite: str
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelsIndex:
    """All kernels of a table by id."""

    by_id: dict[str, KernelWords]
    table: ArrowTable | None
    shown: frozenset[str] = frozenset()
    """Ids of the kernels that have a section of their own on the page."""

    def label(self, kernel_id: str, limit_chars: int = 24) -> str:
        """Return a short name of the kernel for plots."""
        words = self.by_id.get(kernel_id)
        name = words.name if words else ""
        return shorten(name or kernel_id or "(unnamed)", limit_chars)

    def link(self, kernel_id: str, limit_chars: int = 24) -> str:
        """Return the kernel's label, as a link if the page has a section about it."""
        label = self.label(kernel_id, limit_chars)
        return tag("a", label, href=f"#{anchor(kernel_id)}") if kernel_id in self.shown else label

    def source(self, kernel_id: str) -> str | None:
        """Return the kernel's source; None where it is unknown or may not be published."""
        words = self.by_id.get(kernel_id)
        if words is None or self.table is None or "source" not in self.table.column_names:
            return None
        value = self.table.column("source")[words.row].as_py()
        return None if value is None else str(value)

    def source_listing(self, kernel_id: str, summary: str) -> Html:
        """Return the kernel's folded source; the middle of a long source is left out."""
        source = self.source(kernel_id)
        if source is None:
            return details(summary, paragraph("The dataset does not hold this kernel's source."))
        note = f"{shorten(self.by_id[kernel_id].path, 200)}, {count(len(source))} characters"
        if len(source) > _SOURCE_CHARS:
            note += f", of which {count(_SOURCE_CHARS)} are shown (the middle is left out)"
        return details(summary, paragraph(note), listing(shorten(source, _SOURCE_CHARS)))


def index_kernels(table: ArrowTable | None) -> KernelsIndex:
    """Return the index of a kernels table; an empty index for None."""
    if table is None:
        return KernelsIndex(by_id={}, table=None)
    columns = [texts(table, name) for name in ("kernel_id", "name", "path", "family_id", "suite")]
    by_id: dict[str, KernelWords] = {}
    for row, (kernel_id, name, path, family_id, suite) in enumerate(zip(*columns, strict=True)):
        if kernel_id not in by_id:
            by_id[kernel_id] = KernelWords(
                kernel_id=kernel_id, name=name, path=path, family_id=family_id, suite=suite, row=row
            )
    return KernelsIndex(by_id=by_id, table=table)
