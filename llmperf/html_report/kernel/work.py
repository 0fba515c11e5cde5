"""Charts of a kernel's counted work: its analytic bound over size, and its work by kind.

Both need rows whose work was counted (``samples.work``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.markup import Html, figure, paragraph
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import Floats, Ints, count, counted
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.columns import struct_member
from llmperf.html_report.dataset.facts import DatasetFacts
from llmperf_common.features.features import features_from_tables, named_features
from llmperf_common.features.table_columns import WORK_COLUMN

BOUND = "analytic bound"
NOT_COUNTED = (
    "The work of the kernel's launches was not counted, so there is no analytic bound and no work "
    "by kind."
)
KINDS: dict[str, tuple[str, ...]] = {
    "floating point": ("fp32_ops", "fp64_ops", "fp16_ops"),
    "special functions": ("special_ops",),
    "integer": ("int_ops",),
    "global memory": ("global_loads", "global_stores"),
    "constant memory": ("constant_loads",),
    "local memory": ("local_loads", "local_stores"),
    "atomics": ("global_atomics", "local_atomics"),
}
"""Parts of a bar: kinds of operations and accesses, each a sum of fields of ``Work``."""
_BOUND_FEATURE = "counted_bound_ns"
_NEEDED = ("task_id", "device_id", "device_class", "global_size", "local_size", "args", WORK_COLUMN)


def bound_ns(facts: DatasetFacts, kernel_id: str, rows: Ints) -> Floats:
    """Return the analytic bound of a kernel's rows in ns, shape (n,); NaN where unknown.

    The bound needs counted work and the measured peaks of the device.
    """
    samples, kernels, devices = facts.view.samples, facts.view.kernels, facts.view.devices
    nothing = np.full(len(rows), np.nan)
    if not rows.size or not set(_NEEDED) <= set(samples.column_names):
        return nothing
    some = samples.select(list(_NEEDED)).take(pa.array(rows))
    own = kernels.filter(pc.equal(kernels.column("kernel_id"), kernel_id))
    is_known = pc.and_(
        pc.is_in(some.column("device_id"), value_set=devices.column("device_id").combine_chunks()),
        pc.is_in(some.column("task_id"), value_set=own.column("task_id").combine_chunks()),
    )
    if some.column(WORK_COLUMN).null_count == len(some) or not pc.all(is_known).as_py():
        return nothing
    bound = named_features(features_from_tables(some, own, devices), [_BOUND_FEATURE])[:, 0]
    return np.exp2(bound)


def work_by_kind(facts: DatasetFacts, rows: Ints) -> Html:
    """Return bars of the smallest, middle and largest counted launch, or why there are no bars."""
    samples = facts.view.samples.take(pa.array(rows))
    amounts = np.array(
        [
            np.sum([struct_member(samples, WORK_COLUMN, name) for name in names], axis=0)
            for names in KINDS.values()
        ]
    )
    items = facts.samples.work_items[rows]
    known = np.flatnonzero(np.isfinite(amounts).all(axis=0) & np.isfinite(items))
    if not known.size:
        return paragraph(NOT_COUNTED)
    ordered = known[np.argsort(items[known], kind="stable")]
    picked = [int(ordered[place]) for place in (0, len(ordered) // 2, -1)]
    chosen = {float(items[place]): place for place in picked}.values()
    bars = [
        Bar(
            label=counted(items[place], "work-item"),
            counts=tuple(int(n) for n in amounts[:, place].round()),
        )
        for place in chosen
    ]
    words = PlotText(
        title="Work by kind",
        description=f"{count(known.size)} launches were counted; shares of operations and "
        f"accesses of {len(bars)} of them.",
    )
    chart = stacked_bar_chart(bars, tuple(KINDS), words, label="Share of operations and accesses")
    caption = (
        "Work by kind: operations per lane and memory accesses of the smallest, the middle and the "
        "largest launch, counted by a virtual launch. n: total number of operations and accesses."
    )
    return figure([chart], caption, legend=legend(tuple(KINDS)), columns=1)
