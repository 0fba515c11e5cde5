"""The reliability of times: spread of readings, cold and first launches, stop reasons, drift.

Owns the noise figures by time decade; ``dataset/drift.py`` owns the sentinel's drift.
"""

from __future__ import annotations

import numpy as np

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.distribution import BOX_WORDS, BoxGroup, box_chart
from llmperf.html_report.charts.markup import Html, figure, nothing_to_show, section, table
from llmperf.html_report.charts.points import Guides, PlotText
from llmperf.html_report.charts.quantities import (
    DECADE_LABELS,
    Bools,
    Floats,
    Formatter,
    count,
    factor,
    median,
    nanoseconds,
    percent,
    percent_tick,
    quantiles,
    ratio_tick,
    share,
    short,
)
from llmperf.html_report.charts.scales import Scale, linear_scale
from llmperf.html_report.charts.svg import NUM_COLOURS, legend
from llmperf.html_report.dataset.drift import drift_figure
from llmperf.html_report.dataset.facts import DatasetFacts, ordered, words_of
from llmperf_common.records import StopReason

_IQR_FLOOR = 1e-4
_WHISKER_FRACTIONS = (0.05, 0.95)


def noise_section(facts: DatasetFacts) -> Html:
    """Return the figures of spread, cold and first launches, stop reasons and drift."""
    title, anchor = "Noise and repeatability", "noise"
    if not facts.samples.timed.any():
        return section(
            title,
            anchor,
            nothing_to_show(title, "no row is ok and has a time"),
            drift_figure(facts),
        )
    return section(
        title,
        anchor,
        _spread_figure(facts),
        _spread_table(facts),
        _stop_figure(facts),
        drift_figure(facts),
    )


def _ratios(facts: DatasetFacts) -> dict[str, Floats]:
    samples = facts.samples
    base = np.where(samples.timed, samples.median_ns, np.nan)
    return {
        "iqr": samples.iqr_ns / base,
        "cold": samples.cold_median_ns / base,
        "first": samples.first_ns / base,
    }


def _groups(facts: DatasetFacts, values: Floats) -> list[BoxGroup]:
    samples = facts.samples
    return [
        BoxGroup(label=DECADE_LABELS[d], values=values[samples.timed & (facts.decade == d)])
        for d in facts.decades_met()
    ]


def _whisker_scale(
    groups: list[BoxGroup], label: str, formatter: Formatter, floor: float, ceiling: float
) -> Scale:
    """Return a log scale over all whiskers; outliers beyond them must not flatten the boxes."""
    ends = [q for group in groups for q in quantiles(group.values, *_WHISKER_FRACTIONS)]
    finite = [q for q in ends if np.isfinite(q) and q > 0] or [floor, ceiling]
    low, high = max(floor, min(finite)) * 0.9, max([*finite, floor * 2]) * 1.1
    return Scale(
        low=min(low, ceiling),
        high=max(high, ceiling),
        is_log=True,
        label=label,
        formatter=formatter,
    )


def _spread_figure(facts: DatasetFacts) -> Html:
    ratios = _ratios(facts)
    several = facts.samples.num_readings >= 3
    iqr = np.where(several, np.maximum(ratios["iqr"], _IQR_FLOOR), np.nan)
    panels: list[tuple[str, str, Floats, Formatter, float, float]] = [
        (
            "Spread of warm readings",
            "Interquartile range ÷ median",
            iqr,
            percent_tick,
            _IQR_FLOOR,
            0.1,
        ),
        ("Cold against warm", "Cold median ÷ warm median", ratios["cold"], ratio_tick, 0.1, 2.0),
        (
            "First launch against warm",
            "First launch ÷ warm median",
            ratios["first"],
            ratio_tick,
            0.1,
            2.0,
        ),
    ]
    charts = []
    for heading, label, values, formatter, floor, ceiling in panels:
        groups = _groups(facts, values)
        size = sum(int(np.isfinite(group.values).sum()) for group in groups)
        if not size:
            charts.append(nothing_to_show(heading, "no timed row has these readings"))
            continue
        guide = ((1.0 if formatter is ratio_tick else 0.01, ""),)
        text = PlotText(
            title=f"{heading} by time decade",
            description=f"Median over {count(size)} rows: {formatter(median(values))}.",
            heading=heading,
        )
        y = _whisker_scale(groups, label, formatter, floor, ceiling)
        charts.append(
            box_chart(groups, y, text, x_label="Warm median time", guides=Guides(at_y=guide))
        )
    charts.append(_readings_chart(facts))
    zero = int((several & facts.samples.timed & (ratios["iqr"] < _IQR_FLOOR)).sum())
    caption = (
        "Noise by decade of the warm median, on logarithmic axes; dashed: 1 % spread, or equal "
        f"times. {BOX_WORDS} Spread: rows with at least three readings; "
        f"{count(zero)} rows with a spread below {percent(_IQR_FLOOR)} (all readings equal within "
        "the timer's step) are drawn at that value. Cold: median of the readings after a flush of "
        "the last-level cache. First: the first launch of the config. Number of readings: linear "
        "axis. Values beyond the whiskers are not shown."
    )
    return figure(charts, caption)


def _spread_table(facts: DatasetFacts) -> Html:
    ratios = _ratios(facts)
    samples = facts.samples
    several = samples.num_readings >= 3
    rows = []
    for decade in facts.decades_met():
        inside = samples.timed & (facts.decade == decade)
        iqr_median, iqr_high = quantiles(ratios["iqr"][inside & several], 0.5, 0.95)
        rows.append(
            (
                DECADE_LABELS[decade],
                count(int(inside.sum())),
                percent(iqr_median),
                percent(iqr_high),
                *_ratio_cells(ratios["cold"][inside]),
                *_ratio_cells(ratios["first"][inside]),
                short(median(samples.num_readings[inside])),
                share(int((samples.launches_per_reading[inside] > 1).sum()), int(inside.sum())),
                share(int((samples.throttled[inside] == 1).sum()), int(inside.sum())),
            )
        )
    headers = (
        "Warm median",
        "Timed",
        "IQR, median",
        "IQR, 95\u00a0%",
        "Cold, median",
        "Cold, 95\u00a0%",
        "First, median",
        "First, 95\u00a0%",
        "Readings, median",
        "Batched",
        "Throttled",
    )
    caption = (
        "Noise by time decade: interquartile range, cold and first launches, all relative to the "
        "warm median. Batched: readings that average several launches, because the timer is too "
        "coarse."
    )
    return table(caption, headers, rows)


def _ratio_cells(values: Floats) -> tuple[str, str]:
    middle, high = quantiles(values, 0.5, 0.95)
    return factor(middle), factor(high)


def _stop_figure(facts: DatasetFacts) -> Html:
    samples = facts.samples
    reasons = _present(ordered(samples.stop_reason, tuple(r.value for r in StopReason)), facts)
    if not reasons:
        return nothing_to_show("Stop reasons", "no timed row has a stop reason")
    names = [words_of(reason) for reason in reasons]
    is_reason = [samples.stop_reason.is_value(reason) for reason in reasons]
    bars = [
        Bar(
            label=DECADE_LABELS[d],
            counts=tuple(
                int((samples.timed & (facts.decade == d) & rows).sum()) for rows in is_reason
            ),
        )
        for d in facts.decades_met()
    ]
    left = stacked_bar_chart(
        bars,
        names,
        PlotText(
            title="Why readings ended, by time decade",
            description="Shares of each decade's rows.",
            heading="",
        ),
        label="Share of timed rows",
    )
    caption = (
        f"Why no further reading was taken, by decade of the warm median; n = "
        f"{count(int(samples.timed.sum()))} timed rows."
    )
    return figure([left, _stop_table(facts, reasons)], caption, legend=legend(names))


def _readings_chart(facts: DatasetFacts) -> Html:
    readings = facts.samples.num_readings
    groups = _groups(facts, np.where(readings > 0, readings, np.nan))
    middle = short(median(readings[facts.samples.timed]))
    return box_chart(
        groups,
        _readings_scale(groups),
        PlotText(
            title="Number of warm readings by time decade",
            description=f"Median {middle}.",
            heading="Number of readings",
        ),
        x_label="Warm median time",
    )


def _present(reasons: list[str], facts: DatasetFacts) -> list[str]:
    met = facts.samples.stop_reason.counts(facts.samples.timed)
    return [reason for reason in reasons if reason in met][:NUM_COLOURS]


def _readings_scale(groups: list[BoxGroup]) -> Scale:
    most = max((quantiles(group.values, 0.95)[0] for group in groups), default=1.0)
    return linear_scale(0, most * 1.05, "Warm readings per row", is_count=True)


def _stop_table(facts: DatasetFacts, reasons: list[str]) -> Html:
    samples = facts.samples
    rows = []
    for reason in reasons:
        chosen: Bools = samples.timed & samples.stop_reason.is_value(reason)
        total = int(chosen.sum())
        rows.append(
            (
                words_of(reason),
                count(total),
                share(total, int(samples.timed.sum())),
                short(median(samples.num_readings[chosen])),
                nanoseconds(median(samples.median_ns[chosen])),
            )
        )
    headers = ("Stop reason", "Rows", "Share", "Readings, median", "Time, median")
    return table("Timed rows by stop reason.", headers, rows)
