"""Near duplicates in a corpus: the sizes of families, and the largest families.

A family is never divided between training and test, so large families make splits uneven.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.markup import (
    Html,
    details,
    figure,
    join,
    listing,
    nothing_to_show,
    paragraph,
    section,
    shorten,
    table,
)
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import count, counted, share
from llmperf.html_report.views import CorpusView
from llmperf_common.records import Kernel
from workers.corpus.stats import FAMILY_BINS, CorpusStats, family_bin_words

_MAX_FAMILIES = 20
_MAX_SOURCES = 5
_SOURCE_CHARS = 4000


def families_section(view: CorpusView, stats: CorpusStats) -> Html:
    """Return the distribution of family sizes and the largest families."""
    title, anchor = "Families", "families"
    if not view.corpus.kernels:
        return section(title, anchor, nothing_to_show(title, "the corpus has no kernel"))
    members: dict[str, list[Kernel]] = {}
    for kernel in view.corpus.kernels:
        members.setdefault(kernel.family_id, []).append(kernel)
    largest = sorted(members.values(), key=lambda one: (-len(one), one[0].family_id))
    return section(title, anchor, _sizes(members, stats), _largest(largest), _sources(largest))


def _sizes(members: dict[str, list[Kernel]], stats: CorpusStats) -> Html:
    families = Counter(_bin_of(len(one)) for one in members.values())
    words = list(stats.kernels_by_family_size)
    kernels = [Bar(label=name, counts=(stats.kernels_by_family_size[name],)) for name in words]
    charts = [
        _bars([Bar(label=name, counts=(families[name],)) for name in words], "Families"),
        _bars(kernels, "Kernels"),
    ]
    alone = stats.kernels_by_family_size[words[0]]
    caption = (
        f"Families by their number of kernels: {counted(stats.num_families, 'family', 'families')} "
        f"(left) with {counted(stats.num_kernels, 'kernel')} (right); "
        f"{share(alone, stats.num_kernels)} of the kernels have no near duplicate. Two sources are "
        "near duplicates if at least 85 % of their runs of five tokens are equal after comments "
        "are removed and names are replaced. Kernels that a chain of near duplicates connects are "
        "one family."
    )
    return figure(charts, caption)


def _bars(bars: Sequence[Bar], label: str) -> Html:
    words = "; ".join(f"size {bar.label}: {count(bar.counts[0])}" for bar in bars)
    text = PlotText(
        title=f"{label} by family size", description=words, heading="Kernels per family"
    )
    return stacked_bar_chart(bars, (label.lower(),), text, as_share=False, label=label)


def _bin_of(size: int) -> str:
    for low, high in FAMILY_BINS:
        if low <= size and (high is None or size <= high):
            return family_bin_words(low, high)
    return ""


def _largest(largest: Sequence[list[Kernel]]) -> Html:
    shown = [one for one in largest[:_MAX_FAMILIES] if len(one) > 1]
    if not shown:
        return nothing_to_show("Largest families", "no two kernels are near duplicates")
    rows = []
    for one in shown:
        suites = Counter(kernel.suite for kernel in one)
        names = Counter(kernel.name for kernel in one)
        rows.append(
            (
                one[0].family_id,
                count(len(one)),
                count(len({(kernel.suite, kernel.path) for kernel in one})),
                ", ".join(shorten(name, 30) for name, _ in names.most_common(4)),
                ", ".join(shorten(name, 24) for name, _ in suites.most_common(3)),
            )
        )
    caption = f"The {len(rows)} largest families, with their commonest names and suites."
    return table(caption, ("Family", "Kernels", "Files", "Names", "Suites"), rows, align="lrrwl")


def _sources(largest: Sequence[list[Kernel]]) -> Html:
    parts = []
    for one in largest[:_MAX_SOURCES]:
        first = min(one, key=lambda kernel: kernel.kernel_id)
        if len(one) > 1 and first.source:
            head = f"{shorten(first.name, 60)}, one of {counted(len(one), 'kernel')}"
            where = paragraph(f"{shorten(first.suite, 60)} · {shorten(first.path, 120)}")
            parts.append(details(head, where, listing(shorten(first.source, _SOURCE_CHARS))))
    return join(parts)
