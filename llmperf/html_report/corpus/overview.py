"""The head of a corpus's report: counts, provenance, and the chart of suites."""

from __future__ import annotations

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.markup import Html, definition_table, figure, join, section, tag
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import count, counted, share
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.dataset.overview import tile
from llmperf.html_report.views import CorpusView
from workers.corpus.stats import CorpusStats

_MAX_SUITES = 30
_OUTCOMES = ("can be launched", "arguments read, cannot be launched", "arguments not read")


def overview_section(view: CorpusView, stats: CorpusStats) -> Html:
    """Return counts, provenance and suites."""
    return section(
        "Corpus at a glance",
        "overview",
        _tiles(stats),
        _provenance(view, stats),
        _suites(view),
    )


def _tiles(stats: CorpusStats) -> Html:
    failed = stats.num_kernels - stats.num_usable
    tiles = [
        ("kernels", count(stats.num_kernels), counted(stats.num_families, "family", "families")),
        ("files", count(stats.num_files), f"{count(stats.num_skipped)} more skipped"),
        ("launchable", count(stats.num_usable), _of(stats.num_usable, stats)),
        ("arguments read", count(stats.num_signatures), _of(stats.num_signatures, stats)),
        ("cannot be launched", count(failed), _of(failed, stats)),
        ("with inferred macros", count(stats.num_with_macros), _of(stats.num_with_macros, stats)),
    ]
    return tag("div", *(tile(*words) for words in tiles), class_="tiles")


def _of(part: int, stats: CorpusStats) -> str:
    return f"{share(part, stats.num_kernels)} of kernels"


def _provenance(view: CorpusView, stats: CorpusStats) -> Html:
    facts = [
        ("Corpus", view.title),
        ("SHA-256 of its kernel ids", view.corpus.sha256),
        ("Suites", count(len(stats.kernels_by_suite))),
        ("Largest family", counted(stats.largest_family, "kernel")),
    ]
    analysed = sum(one.analysis is not None for one in view.corpus.kernels)
    facts.append(("Kernels with a memory analysis", count(analysed)))
    return definition_table("Identity of the corpus. The SHA-256 does not depend on paths.", facts)


def _suites(view: CorpusView) -> Html:
    counts: dict[str, list[int]] = {}
    for kernel in view.corpus.kernels:
        outcome = 0 if kernel.failure is None else 1 if kernel.signature is not None else 2
        counts.setdefault(kernel.suite, [0, 0, 0])[outcome] += 1
    ordered = sorted(counts.items(), key=lambda item: (-sum(item[1]), item[0]))
    bars = [Bar(label=name or "(no suite)", counts=tuple(row)) for name, row in ordered]
    shown = bars[:_MAX_SUITES]
    if len(bars) > len(shown):
        rest = bars[_MAX_SUITES:]
        total = tuple(sum(bar.counts[i] for bar in rest) for i in range(len(_OUTCOMES)))
        shown.append(Bar(label=f"{len(rest)} other suites", counts=total))
    words = "; ".join(f"{bar.label}: {count(sum(bar.counts))} kernels" for bar in shown)
    text = PlotText(title="Kernels by suite", description=words)
    charts = [
        stacked_bar_chart(shown, _OUTCOMES, text, as_share=False, label="Kernels", width=790.0)
    ]
    caption = (
        f"Kernels by suite, largest first (n = {count(len(view.corpus.kernels))}). A suite has "
        "the name that was given when the corpus was built, or else the name of the folder or "
        "archive."
    )
    return join([figure(charts, caption, legend=legend(_OUTCOMES), columns=1)])
