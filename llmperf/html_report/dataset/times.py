"""The times of a dataset: their distribution by regime and strategy, short launches, censoring.

Owns the histograms of warm medians and the table of their quantiles.
"""

from __future__ import annotations

import numpy as np

from llmperf.html_report.charts.distribution import Layer, histogram_chart, tallest_bin
from llmperf.html_report.charts.markup import Html, figure, join, nothing_to_show, section, table
from llmperf.html_report.charts.points import SMALL, Guides, PlotText, Shape
from llmperf.html_report.charts.quantities import (
    DECADE_LABELS,
    SHORT_LAUNCH_NS,
    Bools,
    count,
    nanoseconds,
    quantiles,
    share,
)
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.dataset.facts import DatasetFacts, words_of
from llmperf.html_report.dataset.failures import censored_code

_NUM_BINS = 36


def times_section(facts: DatasetFacts) -> Html:
    """Return the distribution of times with its tables."""
    title, anchor = "Times", "times"
    if not facts.samples.timed.any():
        return section(title, anchor, nothing_to_show(title, "no row is ok and has a time"))
    return section(title, anchor, _histograms(facts), _quantile_table(facts), _decade_table(facts))


def _histograms(facts: DatasetFacts) -> Html:
    samples = facts.samples
    regimes = facts.regimes
    groups = [samples.median_ns[samples.timed & samples.regime.is_value(name)] for name in regimes]
    pairs = [(name, times) for name, times in zip(regimes, groups, strict=True) if times.size]
    tallest = tallest_bin([times for _, times in pairs], facts.time_scale, _NUM_BINS)
    charts = []
    for regime, times in pairs:
        chosen = samples.timed & samples.regime.is_value(regime)
        layers = [
            Layer(
                name=words_of(strategy),
                values=samples.median_ns[chosen & samples.strategy.is_value(strategy)],
                style=style,
            )
            for style, strategy in enumerate(facts.strategies)
        ]
        low, middle, high = (nanoseconds(q) for q in quantiles(times, 0.05, 0.5, 0.95))
        text = PlotText(
            title=f"Times of the {words_of(regime)} regime",
            description=f"n = {count(times.size)}; 5 % below {low}, half below {middle}, 95 % "
            f"below {high}.",
            heading=f"{words_of(regime)}, n = {count(times.size)}",
        )
        charts.append(
            histogram_chart(
                layers,
                facts.time_scale,
                text,
                num_bins=_NUM_BINS,
                tallest=tallest,
                guides=Guides(at_x=((SHORT_LAUNCH_NS, "10 µs"),)),
                shape=Shape(width=SMALL.width, height=210.0),
            )
        )
    num_bare = int((samples.ok & ~samples.timed).sum())
    caption = (
        "Warm median time of one launch by regime, stacked by input strategy; logarithmic bins, "
        f"common y axis. n = {count(int(samples.timed.sum()))} ok rows. Not shown: failed rows, "
        "including launches whose time is only known to exceed the time limit (see the table)"
        + (f", and {count(num_bare)} ok rows without a positive time." if num_bare else ".")
    )
    return figure(
        charts, caption, columns=3, legend=legend([words_of(s) for s in facts.strategies])
    )


def _time_row(facts: DatasetFacts, name: str, chosen: Bools) -> tuple[str, ...]:
    samples = facts.samples
    times = samples.median_ns[chosen & samples.timed]
    censored = int((chosen & samples.status.is_value(censored_code())).sum())
    low, lower, middle, upper, high = quantiles(times, 0.05, 0.25, 0.5, 0.75, 0.95)
    return (
        name,
        count(times.size),
        *(nanoseconds(q) for q in (low, lower, middle, upper, high)),
        share(int((times < SHORT_LAUNCH_NS).sum()), times.size),
        count(censored),
        share(censored, times.size + censored),
    )


def _quantile_table(facts: DatasetFacts) -> Html:
    samples = facts.samples
    everything = np.ones(samples.num_rows, dtype=bool)
    rows = [_time_row(facts, "all rows", everything)]
    rows += [
        _time_row(facts, f"regime: {words_of(r)}", samples.regime.is_value(r))
        for r in facts.regimes
    ]
    rows += [
        _time_row(facts, f"strategy: {words_of(s)}", samples.strategy.is_value(s))
        for s in facts.strategies
    ]
    caption = (
        "Warm median times by regime and by input strategy. Censored: launches that took longer "
        "than the time limit, and launches that were skipped because smaller ones took longer or "
        "the kernel's time was used up. Share censored: censored ÷ (timed + censored)."
    )
    headers = (
        "Rows",
        "Timed",
        "5 %",
        "25 %",
        "Median",
        "75 %",
        "95 %",
        "Below 10 µs",
        "Censored",
        "Share censored",
    )
    return table(caption, headers, rows)


def _decade_table(facts: DatasetFacts) -> Html:
    samples = facts.samples
    regimes = facts.regimes
    rows = []
    for decade in facts.decades_met():
        inside = samples.timed & (facts.decade == decade)
        by_regime = (count(int((inside & samples.regime.is_value(r)).sum())) for r in regimes)
        total = int(inside.sum())
        rows.append(
            (
                DECADE_LABELS[decade],
                *by_regime,
                count(total),
                share(total, int(samples.timed.sum())),
            )
        )
    censored = samples.status.is_value(censored_code())
    if censored.any():
        by_regime = (count(int((censored & samples.regime.is_value(r)).sum())) for r in regimes)
        rows.append(("over the time limit", *by_regime, count(int(censored.sum())), "not timed"))
    headers = ("Warm median", *(words_of(name) for name in regimes), "All", "Share of timed")
    return join(
        [
            table(
                f"Timed rows by decade and regime (n = {count(int(samples.timed.sum()))}).",
                headers,
                rows,
            )
        ]
    )
