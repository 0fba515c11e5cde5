"""A section for each kernel: times, work, accesses, launches, failures, extents, source.

Owns the content of a section, the index of the sections, and the limit of their number
(``KernelChoice``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from llmperf.html_report.charts.markup import (
    Html,
    join,
    nothing_to_show,
    paragraph,
    section,
    shorten,
    table,
    tag,
)
from llmperf.html_report.charts.points import PlotText, Series, Shape, point_chart, thin
from llmperf.html_report.charts.quantities import (
    NO_VALUE,
    Bools,
    Ints,
    bytes_tick,
    count,
    count_tick,
    counted,
    nanoseconds,
    nanoseconds_tick,
    percent,
    quantiles,
    share,
)
from llmperf.html_report.charts.scales import log_scale
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.dataset.facts import DatasetFacts
from llmperf.html_report.evaluation.facts import EvaluationFacts
from llmperf.html_report.kernel.accesses import HOW_TO_ASK, access_maps
from llmperf.html_report.kernel.analysis import extents_table
from llmperf.html_report.kernel.choice import (
    KernelRows,
    Predicted,
    named_kernels,
    ordered_kernels,
    predictions_by_sample,
)
from llmperf.html_report.kernel.index import anchor
from llmperf.html_report.kernel.launches import failures_of, launch_table, launches_of
from llmperf.html_report.kernel.work import BOUND, bound_ns, work_by_kind
from llmperf.html_report.views import KernelChoice

ANCHOR = "kernels"
_BOUND_WORDS = (
    "The analytic bound is the longest of several times: the times that memory, caches, arithmetic "
    "units, atomics and the busiest warp would each need for the launch's counted work, and the "
    "time of an empty launch. It is drawn for launches whose work was counted."
)
_MAX_POINTS = 120
_MAX_CLASSES = 4
_SHAPE = Shape(width=440.0, height=250.0)
_ROW_COLUMNS = ("global_size", "local_size", "args", "failure_detail")
_KERNEL_COLUMNS = ("args", "analysis", "analysis_failure", "data_dependent", "dims", "registers")


def kernel_sections(
    facts: DatasetFacts, evaluation: EvaluationFacts | None, choice: KernelChoice
) -> tuple[Html, frozenset[str]]:
    """Return an index of kernels with a folded section for each, and the ids of these kernels.

    Raises:
        UnknownKernelError: The choice names a kernel that the dataset lacks.
    """
    title = "Kernels one by one"
    predicted = predictions_by_sample(facts, evaluation)
    found = ordered_kernels(facts, predicted)
    chosen = named_kernels(facts.kernels, found, choice.names) if choice.names else found
    if not chosen:
        reason = nothing_to_show(title, "the dataset has no rows")
        return section(title, ANCHOR, reason), frozenset()
    parts: list[Html] = []
    num_bytes_used = 0
    for part in _sections(facts, predicted, chosen):
        num_bytes_used += len(part.encode("utf-8", "replace"))
        if parts and _is_full(choice, len(parts), num_bytes_used):
            break
        parts.append(part)
    shown = chosen[: len(parts)]
    html = section(
        title,
        ANCHOR,
        paragraph(_rule(choice, predicted, len(shown), len(found))),
        _index(facts, shown, evaluation is not None),
        _legend(is_scored=evaluation is not None),
        paragraph(_BOUND_WORDS if choice.names else f"{_BOUND_WORDS} {HOW_TO_ASK}"),
        *parts,
    )
    return html, frozenset(kernel.kernel_id for kernel in shown)


def _legend(*, is_scored: bool) -> Html:
    if is_scored:
        return legend(("measured", "predicted", BOUND), marks=True)
    return legend(("measured", BOUND), marks=True, colours=(0, 2))


def _is_full(choice: KernelChoice, num_kernels: int, used_bytes: int) -> bool:
    if choice.names or choice.limit is None:
        return False
    too_heavy = choice.limit_bytes is not None and used_bytes > choice.limit_bytes
    return num_kernels >= choice.limit or too_heavy


def _rule(choice: KernelChoice, predicted: Predicted, num_shown: int, num_all: int) -> str:
    order = "most rows first"
    if predicted.model:
        order = f"largest median error of {shorten(predicted.model, 40)} first, then most rows"
    if num_shown == num_all:
        return f"All {counted(num_all, 'kernel')}, {order}."
    words = f"{count(num_shown)} of {counted(num_all, 'kernel')}, {order}."
    if choice.names:
        return f"{words} They were selected by name."
    limits = counted(choice.limit or 0, "kernel")
    if choice.limit_bytes is not None:
        limits += f" or {bytes_tick(choice.limit_bytes)} of them, whichever is reached first"
    return (
        f"{words} {count(num_all - num_shown)} are left out: the limit is {limits}. To see them, "
        "write the report again with --kernel NAME for single kernels, or with --kernels all."
    )


def _index(facts: DatasetFacts, shown: list[KernelRows], is_scored: bool) -> Html:
    samples = facts.samples
    body = []
    for kernel in shown:
        timed = kernel.rows[samples.timed[kernel.rows]]
        low, middle, high = quantiles(samples.median_ns[timed], 0.0, 0.5, 1.0)
        num_ok = int(samples.ok[kernel.rows].sum())
        words = facts.kernels.by_id.get(kernel.kernel_id)
        body.append(
            (
                tag(
                    "a",
                    facts.kernels.label(kernel.kernel_id, 40),
                    href=f"#{anchor(kernel.kernel_id)}",
                ),
                shorten((words.suite if words else "") or NO_VALUE, 24),
                count(len(kernel.rows)),
                share(num_ok, len(kernel.rows)),
                nanoseconds(low),
                nanoseconds(middle),
                nanoseconds(high),
                *([percent(kernel.median_ape)] if is_scored else []),
            )
        )
    headers = ("Kernel", "Suite", "Rows", "Ok", "Shortest", "Median", "Longest")
    caption = (
        f"Index of the kernels below (n = {count(len(body))}); times are warm medians of a launch."
    )
    if is_scored:
        return table(caption, (*headers, "Median APE"), body, align="ll")
    return table(caption, headers, body, align="ll")


def _sections(
    facts: DatasetFacts, predicted: Predicted, kernels: list[KernelRows]
) -> Iterator[Html]:
    """Yield the sections one by one, so that the caller can stop when the page is full."""
    samples = facts.view.samples
    present = [name for name in _ROW_COLUMNS if name in samples.column_names]
    columns = samples.select(present).combine_chunks()
    for kernel in kernels:
        row = _kernel_row(facts, kernel.kernel_id)
        launches = launches_of(facts, columns, kernel, row.get("args") or ())
        label = facts.kernels.label(kernel.kernel_id, 60)
        inside = tag(
            "div",
            _words(facts, kernel, row),
            *_charts(facts, kernel, predicted),
            work_by_kind(facts, kernel.rows),
            access_maps(facts.view.accesses.get(kernel.kernel_id), row.get("args") or ()),
            launch_table(facts, launches, predicted),
            failures_of(facts, launches),
            extents_table(row),
            facts.kernels.source_listing(kernel.kernel_id, "Source"),
            tag("p", tag("a", "Back to the index of kernels", href=f"#{ANCHOR}"), class_="back"),
            # The id is inside the folded element, because browsers unfold a link target's parents.
            id=anchor(kernel.kernel_id),
        )
        summary = join([tag("b", label), f" {_summary(facts, kernel)}"])
        yield tag("details", tag("summary", summary), inside, class_="kernel")


def _kernel_row(facts: DatasetFacts, kernel_id: str) -> dict[str, Any]:
    words = facts.kernels.by_id.get(kernel_id)
    table_ = facts.view.kernels
    if words is None:
        return {}
    return {
        name: table_.column(name)[words.row].as_py()
        for name in _KERNEL_COLUMNS
        if name in table_.column_names
    }


def _summary(facts: DatasetFacts, kernel: KernelRows) -> str:
    num_ok = int(facts.samples.ok[kernel.rows].sum())
    parts = [counted(len(kernel.rows), "row")]
    if num_ok < len(kernel.rows):
        parts.append(f"{count(len(kernel.rows) - num_ok)} failed")
    if np.isfinite(kernel.median_ape):
        parts.append(f"median error {percent(kernel.median_ape)}")
    return ", ".join(parts)


def _words(facts: DatasetFacts, kernel: KernelRows, row: dict[str, Any]) -> Html:
    words = facts.kernels.by_id.get(kernel.kernel_id)
    if words is None:
        return paragraph(f"{kernel.kernel_id}: not in the kernels table.")
    parts = [shorten(words.path, 120), f"suite {shorten(words.suite, 40)}"]
    if row.get("dims"):
        parts.append(f"{row['dims']}-D")
    if row.get("registers"):
        parts.append(f"{count(row['registers'])} registers per work-item")
    family = "" if words.family_id in {"", kernel.kernel_id} else f", family {words.family_id}"
    return paragraph(f"{', '.join(parts)}; id {kernel.kernel_id}{family}.")


def _charts(facts: DatasetFacts, kernel: KernelRows, predicted: Predicted) -> list[Html]:
    """Return plots of time against work-items, one per device class."""
    samples = facts.samples
    drawn = samples.timed[kernel.rows] & (samples.work_items[kernel.rows] > 0)
    rows = kernel.rows[drawn]
    counts = samples.device_class.counts(_mask(samples.num_rows, rows))
    classes = sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_CLASSES]
    return [
        _chart(facts, kernel, rows[samples.device_class.is_value(name)[rows]], predicted, name)
        for name in classes
    ]


def _mask(num_rows: int, rows: Ints) -> Bools:
    mask = np.zeros(num_rows, dtype=bool)
    mask[rows] = True
    return mask


def _chart(
    facts: DatasetFacts, kernel: KernelRows, rows: Ints, predicted: Predicted, device_class: str
) -> Html:
    samples = facts.samples
    kept = rows[thin(len(rows), _MAX_POINTS)]
    said = kept[np.isfinite(predicted.predicted_ns[kept])]
    guess = predicted.predicted_ns[said]
    low = np.where(np.isfinite(predicted.low_ns[said]), predicted.low_ns[said], guess)
    high = np.where(np.isfinite(predicted.high_ns[said]), predicted.high_ns[said], guess)
    measured = samples.median_ns[kept]
    series = [Series(name="measured", x=samples.work_items[kept], y=measured, style=0)]
    if said.size:
        bars = Series(
            name="predicted", x=samples.work_items[said], y=guess, low=low, high=high, style=1
        )
        series.insert(0, bars)
    bound = bound_ns(facts, kernel.kernel_id, kept)
    by_size = np.argsort(samples.work_items[kept], kind="stable")
    bounded = by_size[np.isfinite(bound[by_size])]
    if bounded.size:
        line = Series(name=BOUND, x=samples.work_items[kept][bounded], y=bound[bounded], style=2)
        series.insert(0, line)
    label = facts.kernels.label(kernel.kernel_id, 40)
    x = log_scale(samples.work_items[kept], "Work-items", count_tick)
    y = log_scale(
        np.concatenate([measured, guess, low, high, bound[bounded]]),
        "Warm median",
        nanoseconds_tick,
    )
    shortest, longest = quantiles(measured, 0.0, 1.0)
    text = PlotText(
        title=f"{label} on {device_class}: time against work-items",
        description=f"{counted(len(rows), 'launch', 'launches')} from {nanoseconds(shortest)} to "
        f"{nanoseconds(longest)}; {counted(bounded.size, BOUND)}.",
        heading=device_class if facts.num_classes() > 1 else "",
    )
    return point_chart(series, x, y, text, shape=_SHAPE)
