"""Time against launch size: chosen kernels against work-groups, and footprint bandwidth.

Owns the rule that chooses the kernels (small multiples on common axes).
"""

from __future__ import annotations

import math

import numpy as np

from llmperf.html_report.charts.markup import (
    Html,
    details,
    figure,
    join,
    nothing_to_show,
    section,
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
    Bools,
    Floats,
    Ints,
    count,
    count_tick,
    median,
    nanoseconds,
    quantiles,
)
from llmperf.html_report.charts.scales import Scale, log_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.columns import floats, rows_by_code, texts
from llmperf.html_report.dataset.facts import DatasetFacts, rows_of_kernel
from llmperf.html_report.dataset.footprint import footprint_figure

NUM_KERNELS = 9
_ENOUGH_ROWS = 6
_POINTS_A_KERNEL = 300
GROUP_BINS = (
    (0, 32, "≤32"),
    (32, 128, "33\u2013128"),
    (128, 256, "129\u2013256"),
    (256, math.inf, ">256"),
)


def scaling_section(facts: DatasetFacts) -> Html:
    """Return time against work-groups for chosen kernels, and footprint bandwidth."""
    title, anchor = "Time against launch size", "scaling"
    if not _plottable(facts).any():
        reason = "no ok row has both a time and an NDRange"
        return section(title, anchor, nothing_to_show(title, reason))
    return section(title, anchor, _small_multiples(facts), footprint_figure(facts))


def _plottable(facts: DatasetFacts) -> Bools:
    """Return which rows are timed and of the commonest device class: one curve for each kernel."""
    samples = facts.samples
    of_class = samples.device_class.is_value(facts.commonest_class())
    return samples.timed & of_class & (samples.work_groups > 0)


def choose_kernels(facts: DatasetFacts, num_kernels: int = NUM_KERNELS) -> list[int]:
    """Return the codes of kernels with short to long and steady to varied times, one per family.

    Kernels with enough rows are sorted by median time and cut into thirds. Each third contributes
    the kernels with the smallest, the median and the largest spread (95th ÷ 5th percentile).
    """
    rows = _plottable(facts)
    codes = facts.samples.kernel.codes
    num_rows = rows_of_kernel(facts.samples.kernel, rows)
    floor = min(_ENOUGH_ROWS, int(num_rows.max()))
    enough = [int(code) for code in np.flatnonzero(num_rows >= max(1, floor))]
    grouped = rows_by_code(codes, rows)
    by_kernel = {
        code: facts.samples.median_ns[grouped[code]]
        for code in _one_a_family(facts, enough, num_rows)
    }
    spread = {c: _spread(times) for c, times in by_kernel.items()}
    by_time = sorted(by_kernel, key=lambda c: (median(by_kernel[c]), facts.samples.kernel.names[c]))
    chosen: list[int] = []
    for third in np.array_split(np.array(by_time, dtype=np.int64), 3):
        ranked = sorted(third.tolist(), key=lambda c: (spread[c], facts.samples.kernel.names[c]))
        chosen += [ranked[i] for i in thin(len(ranked), num_kernels // 3).tolist()]
    return sorted(chosen, key=by_time.index)


def _one_a_family(facts: DatasetFacts, codes: list[int], num_rows: Ints) -> list[int]:
    names = facts.samples.kernel.names
    best: dict[str, int] = {}
    for code in sorted(codes, key=lambda c: (-int(num_rows[c]), names[c])):
        words = facts.kernels.by_id.get(names[code])
        best.setdefault(words.family_id if words and words.family_id else names[code], code)
    return list(best.values())


def _spread(times: Floats) -> float:
    low, high = quantiles(times, 0.05, 0.95)
    return high / low


def _small_multiples(facts: DatasetFacts) -> Html:
    samples = facts.samples
    chosen = choose_kernels(facts)
    rows = _plottable(facts)
    in_any = rows & np.isin(samples.kernel.codes, chosen)
    x = log_scale(samples.work_groups[in_any], "Work-groups", count_tick)
    y = log_scale(samples.median_ns[in_any], "Warm median", facts.time_scale.formatter)
    guides = _regime_guides(facts)
    charts = [
        _kernel_panel(facts, code, rows & (samples.kernel.codes == code), x, y, guides)
        for code in chosen
    ]
    caption = (
        f"Warm median time against work-groups for {len(chosen)} kernels on common logarithmic "
        "axes, coloured by work-items per work-group. The kernels are chosen by a rule: it takes "
        "one kernel per family, sorts these kernels into thirds by median time, and draws from "
        "each third those with the smallest, the median and the largest spread. Other arguments "
        "vary between points, so the points of a kernel need not form one curve. At most "
        f"{_POINTS_A_KERNEL} evenly spaced points per kernel are drawn."
    )
    if facts.num_classes() > 1:
        caption += (
            f" Only device class {facts.commonest_class()} is shown; it has the most timed rows."
        )
    if guides.at_x:
        caption += " Dashed: 1 and 20 work-groups per compute unit, where regimes change."
    names = [name for _, _, name in GROUP_BINS]
    listed = details("Table: the kernels of this figure", _chosen_table(facts, chosen, rows))
    return join(
        [
            figure(
                charts,
                caption,
                columns=3,
                legend=legend(names, title="Work-items per group", marks=True),
            ),
            listed,
        ]
    )


def _regime_guides(facts: DatasetFacts) -> Guides:
    """Return the numbers of work-groups at which regimes change; none if compute units differ."""
    units = floats(facts.view.devices, "compute_units")
    classes = texts(facts.view.devices, "device_class")
    wanted = facts.commonest_class()
    known = {float(u) for u, name in zip(units, classes, strict=True) if name == wanted and u > 0}
    if len(known) != 1:
        return Guides()
    num_units = known.pop()
    return Guides(at_x=((num_units, ""), (20 * num_units, "")))


def _kernel_panel(
    facts: DatasetFacts, code: int, rows: Bools, x: Scale, y: Scale, guides: Guides
) -> Html:
    samples = facts.samples
    indices = np.flatnonzero(rows)
    drawn = indices[thin(len(indices), _POINTS_A_KERNEL)]
    series = []
    for style, (low, high, name) in enumerate(GROUP_BINS):
        items = samples.work_items_per_group[drawn]
        chosen = drawn[(items > low) & (items <= high)]
        series.append(
            Series(
                name=name, x=samples.work_groups[chosen], y=samples.median_ns[chosen], style=style
            )
        )
    label = facts.kernels.label(samples.kernel.names[code], 30)
    low_ns, high_ns = quantiles(samples.median_ns[rows], 0.0, 1.0)
    text = PlotText(
        title=f"{label}: time against work-groups",
        description=f"{count(len(indices))} rows from {nanoseconds(low_ns)} to "
        f"{nanoseconds(high_ns)}.",
        heading=label,
        hint=samples.kernel.names[code],
    )
    return point_chart(series, x, y, text, guides=guides, shape=SMALL)


def _chosen_table(facts: DatasetFacts, chosen: list[int], rows: Bools) -> Html:
    samples = facts.samples
    body = []
    for code in chosen:
        kernel_id = samples.kernel.names[code]
        inside = rows & (samples.kernel.codes == code)
        low, middle, high = quantiles(samples.median_ns[inside], 0.05, 0.5, 0.95)
        words = facts.kernels.by_id.get(kernel_id)
        body.append(
            (
                facts.kernels.link(kernel_id, 40),
                kernel_id,
                (words.suite if words else "") or NO_VALUE,
                count(int(inside.sum())),
                *(nanoseconds(q) for q in (low, middle, high)),
            )
        )
    headers = ("Kernel", "Kernel id", "Suite", "Timed rows", "5 %", "Median", "95 %")
    return table("Kernels of the figure above, by median time.", headers, body, align="lll")
