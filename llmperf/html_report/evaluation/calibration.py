"""The coverage of the prediction intervals, and the distribution of the residuals.

Owns the empirical coverage (against the nominal level, by power of ten of the measured time, and
for narrower and wider intervals) and the histogram of residuals. The uncertainty of a coverage
comes from a bootstrap over families, because rows of a kernel are not independent.
"""

from __future__ import annotations

import math

import numpy as np

from llmperf.html_report.charts.bars import IntervalRow, interval_chart
from llmperf.html_report.charts.distribution import (
    BOX_WORDS,
    BoxGroup,
    Layer,
    box_chart,
    histogram_chart,
    tallest_bin,
)
from llmperf.html_report.charts.markup import (
    Html,
    figure,
    join,
    nothing_to_show,
    section,
    shorten,
    table,
)
from llmperf.html_report.charts.points import (
    SMALL,
    Guides,
    PlotText,
    Series,
    Shape,
    point_chart,
)
from llmperf.html_report.charts.quantities import (
    DECADE_LABELS,
    NO_VALUE,
    Bools,
    Floats,
    Ints,
    count,
    factor,
    percent,
    quantiles,
    ratio_tick,
    share,
    short,
    significant,
)
from llmperf.html_report.charts.scales import Scale, linear_scale, log_scale, share_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.evaluation.facts import EvaluationFacts

_MAX_MODELS = 6
_DRAWS = 500
_FACTORS = np.geomspace(0.1, 10.0, 61)
_RESIDUAL_LIMIT = 4.0
_LEVEL = 0.95
_PANEL = Shape(width=380.0, height=240.0)


def calibration_section(facts: EvaluationFacts) -> Html:
    """Return coverage and residuals."""
    title, anchor = "Calibration and residuals", "calibration"
    if not any(facts.rows_of(model).any() for model in facts.models):
        reason = "no prediction has a usable measured and a usable predicted time"
        return section(title, anchor, nothing_to_show(title, reason))
    models = [model for model in facts.models if (facts.rows_of(model) & facts.has_interval).any()]
    if not models:
        missing = nothing_to_show("Interval coverage", "no model gave intervals (low_ns, high_ns)")
        return section(title, anchor, missing, _residuals(facts))
    return section(title, anchor, _coverage_figure(facts, models[:_MAX_MODELS]), _residuals(facts))


def bootstrap_share(inside: Bools, family: Ints, *, draws: int = _DRAWS) -> tuple[float, float]:
    """Return the ends of a share's 95 % bootstrap interval; families are resampled, not rows."""
    _, dense = np.unique(family, return_inverse=True)
    rows = np.bincount(dense)
    if len(rows) < 2:
        return math.nan, math.nan
    hits = np.bincount(dense, weights=inside.astype(np.float64))
    generator = np.random.default_rng(0)
    weights = generator.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=draws)
    shares = (weights @ hits) / np.maximum(1, weights @ rows)
    low, high = np.quantile(shares, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def _inside(facts: EvaluationFacts, rows: Bools) -> Bools:
    measured = facts.measured_ns[rows]
    return (facts.low_ns[rows] <= measured) & (measured <= facts.high_ns[rows])


def _coverage_row(facts: EvaluationFacts, label: str, rows: Bools) -> IntervalRow:
    inside = _inside(facts, rows)
    low, high = bootstrap_share(inside, facts.family.codes[rows])
    return IntervalRow(
        label=label, value=float(inside.mean()), low=low, high=high, note=count(inside.size)
    )


def _family_row(facts: EvaluationFacts, model: str) -> IntervalRow:
    """Return the mean over families of each family's coverage."""
    rows = facts.rows_of(model) & facts.has_interval
    _, family = np.unique(facts.family.codes[rows], return_inverse=True)
    shares = np.bincount(family, _inside(facts, rows)) / np.bincount(family)
    generator = np.random.default_rng(0)
    means = shares[generator.integers(0, len(shares), (_DRAWS, len(shares)))].mean(axis=1)
    ends = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    low, high = ends.tolist() if len(shares) > 1 else (math.nan, math.nan)
    label = f"{model}, mean over {count(len(shares))} families"
    return IntervalRow(
        label=label, value=float(shares.mean()), low=low, high=high, note=count(family.size)
    )


def _coverage_figure(facts: EvaluationFacts, models: list[str]) -> Html:
    level = facts.view.interval_level
    guide = (level, f"nominal {percent(level)}") if level is not None else None
    by_model = [_coverage_row(facts, m, facts.rows_of(m) & facts.has_interval) for m in models]
    primary = facts.primary_model if facts.primary_model in models else models[0]
    rows = facts.rows_of(primary) & facts.has_interval
    decades = [int(d) for d in np.unique(facts.decade[rows])]
    by_decade = [
        _coverage_row(facts, DECADE_LABELS[d], rows & (facts.decade == d)) for d in decades
    ]
    charts = [
        _coverage_chart("Coverage by model", by_model, guide),
        _coverage_chart(f"Coverage by time decade, {shorten(primary, 20)}", by_decade, guide),
        _width_curve(facts, models, level),
        _width_boxes(facts, rows, decades),
    ]
    nominal = f"nominal {percent(level)}" if level is not None else "the nominal level is unknown"
    caption = (
        "Coverage: share of launches whose measured time lies in the predicted interval "
        f"({nominal}), {facts.shown_split} split; line: 95 % bootstrap interval over kernel "
        f"families ({_DRAWS} draws; none for fewer than two families). Lower left: the coverage of "
        "intervals that are narrower or wider by a factor, on the log scale around the prediction; "
        "calibrated intervals reach the nominal level at 1\u00d7. "
        f"Lower right: width of the intervals of {shorten(primary, 30)}. {BOX_WORDS}"
    )
    return join(
        [
            figure(charts, caption, legend=legend(models, title="Lower left", marks=True)),
            _coverage_table(
                [*by_model, *(_family_row(facts, model) for model in models)], by_decade, level
            ),
        ]
    )


def _coverage_chart(heading: str, rows: list[IntervalRow], guide: tuple[float, str] | None) -> Html:
    words = "; ".join(f"{row.label}: {percent(row.value)} (n = {row.note})" for row in rows)
    text = PlotText(title=heading, description=words, heading="")
    scale = share_scale(heading)
    return interval_chart(rows, scale, text, guide=guide)


def _coverage_table(
    by_model: list[IntervalRow], by_decade: list[IntervalRow], level: float | None
) -> Html:
    body = [
        (
            shorten(row.label, 60),
            row.note,
            percent(row.value),
            f"{percent(row.low)} to {percent(row.high)}" if math.isfinite(row.low) else NO_VALUE,
            percent(row.value - level) if level is not None else NO_VALUE,
        )
        for row in (*by_model, *by_decade)
    ]
    headers = (
        "Model, or time decade of the primary model",
        "Launches",
        "Coverage",
        "95 % bootstrap interval",
        "Minus nominal",
    )
    return table("Interval coverage.", headers, body)


def relative_distance(facts: EvaluationFacts, rows: Bools) -> Floats:
    """Return |log(measured / predicted)| in units of the half width of the interval."""
    measured, predicted = np.log(facts.measured_ns[rows]), np.log(facts.predicted_ns[rows])
    above = np.log(facts.high_ns[rows]) - predicted
    below = predicted - np.log(facts.low_ns[rows])
    width = np.where(measured >= predicted, above, below)
    distance: Floats = np.abs(measured - predicted) / np.maximum(width, 1e-12)
    return distance


def _width_curve(facts: EvaluationFacts, models: list[str], level: float | None) -> Html:
    series = []
    for style, model in enumerate(models):
        distance = np.sort(relative_distance(facts, facts.rows_of(model) & facts.has_interval))
        covered = np.searchsorted(distance, _FACTORS, side="right") / distance.size
        kept = slice(None, None, 5)
        series.append(
            Series(name=model, x=_FACTORS[kept], y=covered[kept], style=style, joined=True)
        )
    x = Scale(
        low=0.1,
        high=10.0,
        is_log=True,
        label="Interval width ÷ predicted width",
        formatter=ratio_tick,
    )
    text = PlotText(
        title="Coverage if intervals were narrower or wider",
        description="; ".join(
            f"{one.name}: {percent(float(one.y[len(one.y) // 2]))} at 1\u00d7" for one in series
        ),
    )
    guides = Guides(
        at_x=((1.0, "as predicted"),), at_y=((level, "nominal"),) if level is not None else ()
    )
    return point_chart(series, x, share_scale("Launches inside"), text, guides=guides, shape=_PANEL)


def _width_boxes(facts: EvaluationFacts, rows: Bools, decades: list[int]) -> Html:
    width = facts.high_ns / np.where(facts.has_interval, facts.low_ns, np.nan)
    groups = [
        BoxGroup(label=DECADE_LABELS[d], values=width[rows & (facts.decade == d)]) for d in decades
    ]
    ends = np.array([q for group in groups for q in quantiles(group.values, 0.05, 0.95)])
    scale = log_scale(ends, "Interval's upper ÷ lower end", ratio_tick)
    middle = significant(quantiles(width[rows], 0.5)[0])
    text = PlotText(
        title="Interval width by time decade", description=f"Median {middle}\u00d7.", heading=""
    )
    return box_chart(groups, scale, text, x_label="Measured time", shape=_PANEL)


def _residuals(facts: EvaluationFacts) -> Html:
    models = [model for model in facts.models if facts.rows_of(model).any()]
    drawn = models[:_MAX_MODELS]
    ratio = facts.log2_ratio
    values = [ratio[facts.rows_of(model)] for model in drawn]
    scale = linear_scale(-_RESIDUAL_LIMIT, _RESIDUAL_LIMIT, "Predicted ÷ measured", _power_tick)
    tallest = tallest_bin(values, scale)
    charts = []
    for model, residuals in zip(drawn, values, strict=True):
        low, middle, high = (significant(2.0**q) for q in quantiles(residuals, 0.05, 0.5, 0.95))
        text = PlotText(
            title=f"Residuals of {model}",
            description=f"n = {count(residuals.size)}; median ratio {middle}, 5 % below {low}, "
            f"95 % below {high}.",
            heading=f"{shorten(model, 24)}, median {middle}\u00d7",
            hint=model,
        )
        guides = Guides(at_x=((0.0, ""),))
        charts.append(
            histogram_chart(
                [Layer(name=model, values=residuals)],
                scale,
                text,
                tallest=tallest,
                guides=guides,
                shape=SMALL,
                label="Launches",
            )
        )
    beyond = {
        m: int((np.abs(v) > _RESIDUAL_LIMIT).sum()) for m, v in zip(drawn, values, strict=True)
    }
    caption = (
        f"Residuals by model: predicted ÷ measured time on a logarithmic axis, {facts.shown_split} "
        "split, common y axis. Left of the line, predictions are too short. "
        "Ratios beyond 16\u00d7 are counted in the outermost bins (primary model: "
        f"{share(beyond[drawn[0]], values[0].size)})."
    )
    if len(models) > len(drawn):
        caption += f" {len(models) - len(drawn)} further models are not drawn."
    return join([figure(charts, caption, columns=3), _residual_table(drawn, values)])


def _power_tick(log2_ratio: float) -> str:
    return ratio_tick(2.0**log2_ratio) if log2_ratio >= 0 else f"1/{short(2.0**-log2_ratio)}"


def _residual_table(models: list[str], values: list[Floats]) -> Html:
    body = [
        (
            shorten(model, 40),
            count(residuals.size),
            *(factor(2.0**q) for q in quantiles(residuals, 0.05, 0.25, 0.5, 0.75, 0.95)),
            share(int((np.abs(residuals) <= 1).sum()), residuals.size),
        )
        for model, residuals in zip(models, values, strict=True)
    ]
    headers = ("Model", "Launches", "5 %", "25 %", "Median", "75 %", "95 %", "Within a factor of 2")
    return table(
        "Predicted ÷ measured time by model: quantiles, and the share within a factor of two.",
        headers,
        body,
    )
