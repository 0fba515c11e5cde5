"""Errors of models: predicted against measured times, and errors by group.

Owns a scatter plot per model, and the primary model's errors by regime, decade, suite and family.
"""

from __future__ import annotations

import numpy as np

from llmperf.html_report.charts.bars import IntervalRow, error_scale, interval_chart
from llmperf.html_report.charts.markup import (
    Html,
    details,
    figure,
    join,
    nothing_to_show,
    section,
    shorten,
    table,
)
from llmperf.html_report.charts.points import (
    MAX_POINTS,
    Guides,
    PlotText,
    Series,
    Shape,
    densest_bin,
    density_chart,
    point_chart,
    shade_legend,
)
from llmperf.html_report.charts.quantities import (
    DECADE_LABELS,
    Bools,
    Ints,
    count,
    counted,
    factor,
    median,
    nanoseconds_tick,
    percent,
    percent_tick,
    quantiles,
)
from llmperf.html_report.charts.scales import Scale, log_scale
from llmperf.html_report.columns import Categorical, rows_by_code
from llmperf.html_report.evaluation.facts import EvaluationFacts

_MAX_MODELS = 6
_MAX_GROUPS = 20
_MAX_TABLE = 300
_SQUARE = Shape(width=262.0, height=262.0)


def errors_section(facts: EvaluationFacts) -> Html:
    """Return plots of predicted against measured times, and the errors by group."""
    title, anchor = "Predictions and errors", "errors"
    if not facts.rows_of(facts.primary_model).any():
        reason = "the primary model has no prediction with usable measured and predicted times"
        return section(title, anchor, nothing_to_show(title, reason))
    return section(title, anchor, _scatters(facts), _groups_figure(facts), _families(facts))


def _scatters(facts: EvaluationFacts) -> Html:
    usable = [model for model in facts.models if facts.rows_of(model).any()]
    both = facts.usable & facts.split.is_value(facts.shown_split)
    x = log_scale(facts.measured_ns[both], "Measured", nanoseconds_tick)
    y = log_scale(facts.predicted_ns[both], "Predicted", nanoseconds_tick)
    charts, shades = [], {}
    large = [model for model in usable if int(facts.rows_of(model).sum()) > MAX_POINTS]
    most = max((_densest(facts, model, x, y) for model in large[:_MAX_MODELS]), default=1)
    for model in usable[:_MAX_MODELS]:
        rows = facts.rows_of(model)
        measured, predicted = facts.measured_ns[rows], facts.predicted_ns[rows]
        error = median(facts.ape[rows])
        text = PlotText(
            title=f"{model}: predicted against measured time",
            description=f"n = {count(measured.size)}, median error {percent(error)}; points on the "
            "dashed line are exact.",
            heading=f"{shorten(model, 22)}, median APE {percent(error)}",
            hint=model,
        )
        guides = Guides(identity=True)
        if measured.size > MAX_POINTS:
            density = density_chart(
                measured, predicted, x, y, text, guides=guides, shape=_SQUARE, most=most
            )
            charts.append(density.svg)
            shades.update(density.shades)
        else:
            series = [Series(name=model, x=measured, y=predicted)]
            charts.append(point_chart(series, x, y, text, guides=guides, shape=_SQUARE))
    rows = facts.rows_of(facts.primary_model)
    caption = (
        f"Predicted against measured warm median time on the {facts.shown_split} split, one panel "
        "per model, common logarithmic axes; dashed: equal times. "
        f"n = {counted(int(rows.sum()), 'launch', 'launches')} of "
        f"{counted(len(facts.kernel.counts(rows)), 'kernel')} (primary model, first panel). "
        f"A panel with more than {count(MAX_POINTS)} launches shows their number per bin: darker "
        "is more (logarithmic shades, the same in all panels)."
    )
    if len(usable) > _MAX_MODELS:
        caption += f" {len(usable) - _MAX_MODELS} further models are not drawn."
    key = shade_legend(dict(sorted(shades.items())), "Launches") if shades else ""
    return figure(charts, caption, columns=3, legend=key)


def _densest(facts: EvaluationFacts, model: str, x: Scale, y: Scale) -> int:
    rows = facts.rows_of(model)
    return densest_bin(facts.measured_ns[rows], facts.predicted_ns[rows], x, y)


def _error_row(facts: EvaluationFacts, label: str, rows: Ints | Bools) -> IntervalRow:
    errors = facts.ape[rows]
    low, middle, high = quantiles(errors, 0.25, 0.5, 0.75)
    return IntervalRow(label=label, value=middle, low=low, high=high, note=count(errors.size))


def _rows_by_name(facts: EvaluationFacts, column: Categorical) -> dict[str, Ints]:
    grouped = rows_by_code(column.codes, facts.rows_of(facts.primary_model))
    return {column.names[code] or "(none)": rows for code, rows in grouped.items()}


def _decade_column(facts: EvaluationFacts) -> Categorical:
    return Categorical(codes=facts.decade, names=DECADE_LABELS)


def _groups_figure(facts: EvaluationFacts) -> Html:
    panels: list[tuple[str, dict[str, Ints]]] = [
        ("Time decade", _rows_by_name(facts, _decade_column(facts)))
    ]
    notes = []
    if facts.regime is not None:
        panels.append(("Regime", _rows_by_name(facts, facts.regime)))
    else:
        notes.append(
            nothing_to_show("Error by regime", "the report was made without the dataset's samples")
        )
    panels.append(("Suite", _largest(_rows_by_name(facts, facts.suite))))
    charts = []
    for name, groups in panels:
        rows = [_error_row(facts, label, members) for label, members in groups.items()]
        words = "; ".join(f"{row.label}: {percent(row.value)} (n = {row.note})" for row in rows)
        scale = error_scale(rows, "Absolute percentage error", percent_tick)
        text = PlotText(title=f"Error by {name.lower()}", description=words, heading=name)
        charts.append(interval_chart(rows, scale, text))
    caption = (
        f"Absolute percentage error of {shorten(facts.primary_model, 40)} on the "
        f"{facts.shown_split} split by group. Logarithmic axes. Dot: median; line: quartiles; "
        f"right: number of launches. Suites: the {_MAX_GROUPS} with the most launches. Axes differ "
        "between panels."
    )
    return join([figure([*charts, _model_table(facts)], caption), *notes])


def _largest(groups: dict[str, Ints]) -> dict[str, Ints]:
    order = sorted(groups, key=lambda name: (-len(groups[name]), name))
    return {name: groups[name] for name in order[:_MAX_GROUPS]}


def _model_table(facts: EvaluationFacts) -> Html:
    """Return a table of the median error of every model by decade and regime."""
    columns = [("", _decade_column(facts))] + (
        [("", facts.regime)] if facts.regime is not None else []
    )
    rows = []
    for _, column in columns:
        for code, name in enumerate(column.names):
            inside = column.codes == code
            chosen = [facts.rows_of(model) & inside for model in facts.models[:_MAX_MODELS]]
            if any(mask.any() for mask in chosen):
                size = int(chosen[0].sum())
                rows.append(
                    (name, count(size), *(percent(median(facts.ape[mask])) for mask in chosen))
                )
    headers = ("Group", "Launches", *(shorten(model, 24) for model in facts.models[:_MAX_MODELS]))
    caption = (
        f"Median absolute percentage error by time decade and regime, {facts.shown_split} split. "
        "The column Launches counts those of the primary model."
    )
    return table(caption, headers, rows)


def _families(facts: EvaluationFacts) -> Html:
    groups = _rows_by_name(facts, facts.family)
    names = {name: _family_label(facts, rows) for name, rows in groups.items()}
    rows = {name: _error_row(facts, names[name], members) for name, members in groups.items()}
    order = sorted(rows, key=lambda name: (-rows[name].value, name))
    worst, best = order[:_MAX_GROUPS], order[_MAX_GROUPS:][-_MAX_GROUPS:]
    charts = []
    for heading, chosen in (("Largest median error", worst), ("Smallest median error", best)):
        if not chosen:
            continue
        shown = [rows[name] for name in chosen]
        scale = error_scale(shown, "Absolute percentage error", percent_tick)
        words = (
            f"{heading}: {shown[0].label} at {percent(shown[0].value)} to {shown[-1].label} at "
            f"{percent(shown[-1].value)}."
        )
        charts.append(
            interval_chart(
                shown,
                scale,
                PlotText(
                    title=f"Error by family: {heading.lower()}", description=words, heading=heading
                ),
            )
        )
    middle_words = quantiles(np.array([row.value for row in rows.values()]), 0.25, 0.5, 0.75)
    caption = (
        f"Absolute percentage error of {shorten(facts.primary_model, 40)} by kernel family "
        f"(near-duplicate kernels), {len(worst) + len(best)} of "
        f"{counted(len(rows), 'family', 'families')}. Logarithmic axes. Dot: median; line: "
        "quartiles; right: number of launches. Axes differ. The quartiles of the families' median "
        "errors are "
        f"{percent(middle_words[0])}, {percent(middle_words[1])} and {percent(middle_words[2])}."
    )
    body = [
        (
            rows[name].label,
            name,
            rows[name].note,
            *(percent(v) for v in (rows[name].low, rows[name].value, rows[name].high)),
            _bias(facts, groups[name]),
        )
        for name in order[:_MAX_TABLE]
    ]
    headers = (
        "Family",
        "Family id",
        "Launches",
        "25 %",
        "Median APE",
        "75 %",
        "Predicted ÷ measured, median",
    )
    listed = table(
        f"Error by family, worst first ({len(body)} of {count(len(rows))}).",
        headers,
        body,
        align="ll",
    )
    return join([figure(charts, caption), details("Table: error by family", listed)])


def _family_label(facts: EvaluationFacts, rows: Ints) -> str:
    """Return the name of the family's commonest kernel, and the number of its other kernels."""
    codes, counts = np.unique(facts.kernel.codes[rows], return_counts=True)
    label = facts.kernels.label(facts.kernel.names[int(codes[np.argmax(counts)])], 20)
    return label if len(codes) == 1 else f"{label} +{len(codes) - 1}"


def _bias(facts: EvaluationFacts, rows: Ints) -> str:
    middle = median(facts.log2_ratio[rows])
    return factor(2.0**middle)
