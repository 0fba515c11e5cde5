"""The kernels with the largest errors of the primary model: plots, numbers and sources.

Owns the choice of the worst kernels. Sources are untrusted text: escaped, shortened and folded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
    point_chart,
    thin,
)
from llmperf.html_report.charts.quantities import (
    NO_VALUE,
    Floats,
    Ints,
    count,
    count_tick,
    counted,
    factor,
    median,
    nanoseconds,
    nanoseconds_tick,
    percent,
    quantiles,
    significant,
)
from llmperf.html_report.charts.scales import Scale, linear_scale, log_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.columns import rows_by_code
from llmperf.html_report.evaluation.facts import EvaluationFacts
from llmperf_common.statistics.ranking import spearman_by_group

_NUM_WORST = 9
_MIN_ROWS = 5
_MAX_POINTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstKernel:
    """One kernel with its rows and median error."""

    kernel_id: str
    name: str
    """The kernel id; with several device classes, followed by the class."""
    rows: Ints
    median_ape: float


def worst_kernels(facts: EvaluationFacts, limit: int = _NUM_WORST) -> list[WorstKernel]:
    """Return the kernels with the largest median error, if possible with at least 5 rows each."""
    grouped = rows_by_code(facts.launched.codes, facts.rows_of(facts.primary_model))
    most = max((len(rows) for rows in grouped.values()), default=0)
    errors = facts.ape
    found = [
        WorstKernel(
            kernel_id=facts.kernel.names[int(facts.kernel.codes[rows[0]])],
            name=facts.launched.names[code],
            rows=rows,
            median_ape=median(errors[rows]),
        )
        for code, rows in grouped.items()
        if len(rows) >= min(_MIN_ROWS, most)
    ]
    return sorted(found, key=lambda kernel: (-kernel.median_ape, kernel.name))[:limit]


def kernels_section(facts: EvaluationFacts) -> Html:
    """Return plots, a table and the sources of the worst kernels."""
    title, anchor = "Worst kernels", "worst-kernels"
    worst = worst_kernels(facts)
    if not worst:
        reason = "the primary model has no prediction with usable measured and predicted times"
        return section(title, anchor, nothing_to_show(title, reason))
    charts = [_panel(facts, kernel) for kernel in worst]
    has_sizes = bool(np.isfinite(facts.work_groups[facts.rows_of(facts.primary_model)]).any())
    against = (
        "work-groups"
        if has_sizes
        else "the rank of the measured time, because the report was made without samples"
    )
    caption = (
        f"{counted(len(worst), 'kernel')} with the largest median error of "
        f"{shorten(facts.primary_model, 40)} on the {facts.shown_split} split (if possible, "
        f"kernels with at least {_MIN_ROWS} launches): measured and predicted time against "
        f"{against}, logarithmic; bars: predicted interval, if given. Axes differ between panels; "
        f"at most {_MAX_POINTS} evenly spaced launches per kernel are drawn."
    )
    key = legend(("measured", "predicted"), marks=True)
    # A kernel's own section, if it has one, shows its source; the table links to that section.
    apart = [kernel.kernel_id for kernel in worst if kernel.kernel_id not in facts.kernels.shown]
    sources = join(_source(facts, kernel_id) for kernel_id in apart)
    return section(
        title, anchor, figure(charts, caption, columns=3, legend=key), _table(facts, worst), sources
    )


def _places(facts: EvaluationFacts, rows: Ints) -> tuple[Floats, Scale]:
    """Return the launches' x values: work-groups, or ranks where work-groups are unknown."""
    work_groups = facts.work_groups[rows]
    if np.isfinite(work_groups).all() and (work_groups > 0).all():
        return work_groups, log_scale(work_groups, "Work-groups", count_tick)
    ranks = np.argsort(np.argsort(facts.measured_ns[rows])).astype(np.float64) + 1
    return ranks, linear_scale(
        0, len(rows) + 1, "Launches by measured time", count_tick, is_count=True
    )


def _panel(facts: EvaluationFacts, kernel: WorstKernel) -> Html:
    ordered = kernel.rows[np.argsort(facts.measured_ns[kernel.rows], kind="stable")]
    rows = ordered[thin(len(ordered), _MAX_POINTS)]
    places, x = _places(facts, rows)
    measured, predicted = facts.measured_ns[rows], facts.predicted_ns[rows]
    bounded = facts.has_interval[rows]
    low = np.where(bounded, facts.low_ns[rows], predicted)
    high = np.where(bounded, facts.high_ns[rows], predicted)
    y = log_scale(np.concatenate([measured, predicted, low, high]), "Time", nanoseconds_tick)
    series = [
        Series(name="predicted", x=places, y=predicted, low=low, high=high, style=1),
        Series(name="measured", x=places, y=measured, style=0),
    ]
    label = facts.kernels.label(kernel.kernel_id, 20)
    text = PlotText(
        title=f"{label}: measured and predicted",
        description=f"n = {count(len(kernel.rows))}, median error {percent(kernel.median_ape)}.",
        heading=f"{label}, {percent(kernel.median_ape)}",
        hint=kernel.name,
    )
    return point_chart(series, x, y, text, guides=Guides(), shape=SMALL)


def _table(facts: EvaluationFacts, worst: list[WorstKernel]) -> Html:
    body = []
    for kernel in worst:
        rows = kernel.rows
        ratio = median(facts.log2_ratio[rows])
        group = np.zeros(len(rows), dtype=np.int64)
        _, rho = spearman_by_group(facts.measured_ns[rows], facts.predicted_ns[rows], group, 3)
        low, high = quantiles(facts.measured_ns[rows], 0.0, 1.0)
        suite = facts.suite.names[int(facts.suite.codes[rows[0]])]
        body.append(
            (
                facts.kernels.link(kernel.kernel_id, 40),
                kernel.name,
                shorten(suite, 24),
                count(len(rows)),
                f"{nanoseconds(low)} to {nanoseconds(high)}",
                percent(kernel.median_ape),
                factor(2.0**ratio),
                significant(float(rho[0]), 2) if rho.size else NO_VALUE,
            )
        )
    headers = (
        "Kernel",
        "Kernel id",
        "Suite",
        "Launches",
        "Measured",
        "Median APE",
        "Predicted ÷ measured, median",
        "Spearman",
    )
    num_kernels = len(facts.launched.counts(facts.rows_of(facts.primary_model)))
    caption = f"Kernels with the largest median error ({len(body)} of {count(num_kernels)})."
    return table(caption, headers, body, align="lll")


def _source(facts: EvaluationFacts, kernel_id: str) -> Html:
    label = facts.kernels.label(kernel_id, 60)
    return facts.kernels.source_listing(kernel_id, f"Source of {label}")
