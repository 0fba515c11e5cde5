"""The coverage of a dataset: kernels by outcome, regimes, strategies, dimensions, arguments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.distribution import Layer, histogram_chart
from llmperf.html_report.charts.markup import (
    Html,
    details,
    figure,
    join,
    nothing_to_show,
    section,
    side_by_side,
    table,
)
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import Floats, Ints, count, share
from llmperf.html_report.charts.scales import share_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.columns import array_of
from llmperf.html_report.dataset.facts import DatasetFacts, StatusPart, rows_of_kernel, words_of

_MAX_BARS = 72
_MAX_TABLE = 200
_MAX_SUITES = 20


def coverage_section(facts: DatasetFacts) -> Html:
    """Return the coverage figures with their tables."""
    title, anchor = "Coverage", "coverage"
    if not facts.samples.num_rows:
        return section(title, anchor, nothing_to_show(title, "the dataset has no rows"))
    return section(
        title, anchor, _by_kernel(facts), _regimes_and_strategies(facts), _dimensions(facts)
    )


def _status_counts(facts: DatasetFacts, parts: Sequence[StatusPart]) -> Ints:
    """Return the number of rows by kernel and status part, shape (kernels, parts)."""
    counts = [rows_of_kernel(facts.samples.kernel, facts.has_status(part)) for part in parts]
    return np.stack(counts, axis=1)


def _by_kernel(facts: DatasetFacts) -> Html:
    parts = facts.status_parts()
    counts = _status_counts(facts, parts)
    totals = counts.sum(axis=1)
    shares = counts[:, 0] / np.maximum(1, totals)
    names = facts.samples.kernel.names
    labels = [facts.kernels.label(name) for name in names]
    order = sorted(range(len(names)), key=lambda i: (shares[i], labels[i], names[i]))
    words = (
        f"{count(len(names))} kernels, {count(facts.samples.num_rows)} rows; every row of "
        f"{count(int((shares >= 1).sum()))} kernels is ok; no row of "
        f"{count(int((shares <= 0).sum()))} kernels is ok."
    )
    rows = [
        (
            facts.kernels.link(names[i]),
            names[i],
            count(float(totals[i])),
            *(count(float(n)) for n in counts[i]),
            share(float(counts[i, 0]), float(totals[i])),
        )
        for i in order[:_MAX_TABLE]
    ]
    which = (
        f"; the {_MAX_TABLE} with the lowest share of ok rows" if len(names) > _MAX_TABLE else ""
    )
    listed = details(
        "Table: rows by kernel and status",
        table(
            f"Rows by kernel and status (n = {count(len(names))} kernels{which}).",
            ("Kernel", "Kernel id", "Rows", *(part.label for part in parts), "Share ok"),
            rows,
            align="ll",
        ),
    )
    if len(names) > _MAX_BARS:
        return join([_share_histogram(facts, shares, parts, counts, words), listed])
    bars = [Bar(label=labels[i], counts=tuple(int(n) for n in counts[i])) for i in order]
    return join([_kernel_bars(bars, parts, words), listed])


def _kernel_bars(bars: list[Bar], parts: Sequence[StatusPart], words: str) -> Html:
    half = (len(bars) + 1) // 2 if len(bars) > 10 else len(bars)
    names = [part.label for part in parts]
    charts = [
        stacked_bar_chart(
            piece,
            names,
            PlotText(title="Status of rows by kernel", description=words),
            colours=[part.colour for part in parts],
        )
        for piece in (bars[:half], bars[half:])
        if piece
    ]
    caption = (
        "Status of the rows of each kernel. Kernels are sorted by their share of ok rows, lowest "
        f"first, down the columns. {words} Kernels without rows are not shown."
    )
    return figure(charts, caption, legend=legend(names, colours=[part.colour for part in parts]))


def _share_histogram(
    facts: DatasetFacts, shares: Floats, parts: Sequence[StatusPart], counts: Ints, words: str
) -> Html:
    chart = histogram_chart(
        [Layer(name="kernels", values=shares)],
        share_scale("Share of a kernel's rows that are ok"),
        PlotText(title="Share of ok rows by kernel", description=words, heading="All kernels"),
        num_bins=20,
        label="Kernels",
    )
    suites = np.array([_suite(facts, name) for name in facts.samples.kernel.names], dtype=object)
    by_suite = [(name, counts[suites == name].sum(axis=0)) for name in sorted(set(suites))]
    by_suite.sort(key=lambda item: (-int(item[1].sum()), item[0]))
    bars = [
        Bar(label=name, counts=tuple(int(n) for n in row)) for name, row in by_suite[:_MAX_SUITES]
    ]
    names = [part.label for part in parts]
    bar_chart = stacked_bar_chart(
        bars,
        names,
        PlotText(title="Status of rows by suite", description=words, heading="By suite"),
        colours=[part.colour for part in parts],
    )
    caption = (
        "Left: number of kernels by their share of ok rows. Right: status of the rows by suite, "
        f"largest first ({len(bars)} of {len(by_suite)} suites). {words} "
        f"Single kernels are drawn only in datasets of at most {_MAX_BARS} kernels."
    )
    return figure(
        [chart, bar_chart], caption, legend=legend(names, colours=[part.colour for part in parts])
    )


def _suite(facts: DatasetFacts, kernel_id: str) -> str:
    words = facts.kernels.by_id.get(kernel_id)
    return (words.suite if words else "") or "(no suite)"


def _regimes_and_strategies(facts: DatasetFacts) -> Html:
    samples, parts = facts.samples, facts.status_parts()
    in_regime = [(words_of(name), samples.regime.is_value(name)) for name in facts.regimes]
    strategy_masks = [samples.strategy.is_value(name) for name in facts.strategies]
    planned = [
        Bar(label=name, counts=tuple(int((rows & mask).sum()) for mask in strategy_masks))
        for name, rows in in_regime
    ]
    outcomes = [
        Bar(label=name, counts=tuple(int((rows & facts.has_status(p)).sum()) for p in parts))
        for name, rows in in_regime
    ]
    strategies = [words_of(name) for name in facts.strategies]
    words = "; ".join(f"{bar.label}: {count(sum(bar.counts))} rows" for bar in planned)
    left = stacked_bar_chart(
        planned,
        strategies,
        PlotText(title="Rows by regime and strategy", description=words, heading="Input strategy"),
        as_share=False,
        label="Rows",
    )
    right = stacked_bar_chart(
        outcomes,
        [part.label for part in parts],
        PlotText(title="Rows by regime and status", description=words, heading="Status"),
        colours=[part.colour for part in parts],
        label="Share of rows",
    )
    caption = (
        "Rows by regime (how full the device is: work-groups relative to compute units), "
        f"n = {count(samples.num_rows)}. Left: by the first strategy that planned the launch "
        "config, in the colours of the legend; a config planned by several strategies is counted "
        "once. Right: by status, in the colours of the figure before. Rows without a regime failed "
        "before any launch was planned."
    )
    listed = table(
        f"Rows by regime and input strategy (n = {count(samples.num_rows)}).",
        ("Regime", *strategies, "All"),
        [(bar.label, *(count(n) for n in bar.counts), count(sum(bar.counts))) for bar in planned],
    )
    return join([figure([left, right], caption, legend=legend(strategies)), listed])


def _dimensions(facts: DatasetFacts) -> Html:
    samples = facts.samples
    rows = []
    for dims in np.unique(samples.num_dims).tolist():
        chosen = samples.num_dims == dims
        kernels = len(samples.kernel.counts(chosen))
        name = f"{dims}-D" if dims else "no launch config"
        num_ok = int((chosen & samples.ok).sum())
        total = int(chosen.sum())
        rows.append((name, count(kernels), count(total), count(num_ok), share(num_ok, total)))
    by_dims = table(
        f"NDRange dimensions of the rows (n = {count(samples.num_rows)}).",
        ("NDRange", "Kernels", "Rows", "Ok", "Share ok"),
        rows,
    )
    return side_by_side(by_dims, _argument_kinds(facts))


def _argument_kinds(facts: DatasetFacts) -> Html:
    array = array_of(facts.view.kernels, "args")
    members = array.flatten() if array is not None and len(array) else None
    if members is None or not len(members):
        return nothing_to_show("Argument kinds", "no kernel row lists its arguments")
    kinds = pc.fill_null(pc.struct_field(members, "kind"), "(none)")
    kernel_rows = pc.list_parent_indices(array)
    rows = []
    for kind in sorted(pc.unique(kinds).to_pylist()):
        chosen = pc.equal(kinds, kind)
        having = len(pc.unique(pc.filter(kernel_rows, chosen)))
        rows.append(
            (words_of(kind), count(pc.sum(pc.cast(chosen, pa.int64())).as_py()), count(having))
        )
    without = int(len(array) - len(pc.unique(kernel_rows)))
    caption = (
        f"Argument kinds in {count(len(array))} rows of kernels (one per task). "
        f"{count(without)} of these rows list no argument."
    )
    return table(caption, ("Kind", "Arguments", "Kernel rows that have one"), rows)
