"""The checks of timed rows and their results.

Owns the texts that explain the checks to readers of the report.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from llmperf.html_report.charts.bars import Bar, stacked_bar_chart
from llmperf.html_report.charts.markup import (
    Html,
    details,
    figure,
    join,
    nothing_to_show,
    section,
    table,
)
from llmperf.html_report.charts.points import PlotText
from llmperf.html_report.charts.quantities import count, share
from llmperf.html_report.charts.svg import legend
from llmperf.html_report.columns import CHECK_NAMES, texts
from llmperf.html_report.dataset.facts import DatasetFacts, words_of
from llmperf_common.features.activity import Activity

_MEANINGS = {
    "writes_output": "The launch changed at least one byte of a buffer: it does some work.",
    "deterministic": "Two launches on the same inputs gave the same bytes.",
    "input_sensitive": "Other inputs gave other outputs: the result depends on the input data.",
    "stationary": "The warm readings show no trend: the last ones are not faster or slower.",
    "above_floor": "The median time is at least the bytes touched divided by the measured peak "
    "bandwidth.",
    "data_dependent": "A value read from memory decides an address or a loop, so the time depends "
    "on the data. This is a property, not a fault.",
}
_ACTIVITIES = {
    Activity.ACTIVE: "In most launches many work-items store something.",
    Activity.FEW_ITEMS: "In most launches at most a tenth of the work-items store anything; the "
    "others do far less work, or most of them touch no memory.",
    Activity.NOTHING: "No work-item stores anything, or no checked launch changed its output.",
}
_PARTS = ("yes", "no", "not checked")
_COLOURS = (0, 1, 7)
_MAX_LISTED = 20


def checks_section(facts: DatasetFacts) -> Html:
    """Return the number of ok rows that passed each check, and kernels that failed often."""
    title, anchor = "Checks", "checks"
    samples = facts.samples
    total = int(samples.ok.sum())
    if not total:
        return section(title, anchor, nothing_to_show(title, "no row is ok"))
    bars, rows = [], []
    for name in CHECK_NAMES:
        values = samples.checks[name][samples.ok]
        yes, no = int((values == 1).sum()), int((values == 0).sum())
        bars.append(Bar(label=words_of(name), counts=(yes, no, total - yes - no)))
        rows.append(
            (
                words_of(name),
                count(yes),
                count(no),
                count(total - yes - no),
                share(yes, yes + no),
                _MEANINGS[name],
            )
        )
    chart = stacked_bar_chart(
        bars,
        _PARTS,
        PlotText(
            title="Checks of ok rows",
            description="Shares of yes, no and not checked by check; numbers are in the table.",
        ),
        colours=_COLOURS,
        label="Share of ok rows",
    )
    caption = (
        f"Checks of the ok rows, n = {count(total)}. The first three checks need extra launches "
        "with other inputs. LLMPerf makes these launches for only three launch configs of a "
        "task (the smallest, the largest and another one), so most rows were not checked. "
        "A row that fails a check is kept and flagged."
    )
    headers = ("Check", "Yes", "No", "Not checked", "Yes, of checked", "Meaning")
    listed = table(f"Checks of the ok rows (n = {count(total)}).", headers, rows, align="lrrrrp")
    return section(
        title,
        anchor,
        figure([chart], caption, legend=legend(_PARTS, colours=_COLOURS)),
        listed,
        _activity(facts),
        _below_floor(facts),
    )


def _activity(facts: DatasetFacts) -> Html:
    """Return the number of kernels by activity, and the kernels that do nothing or little."""
    of_row = texts(facts.view.kernels, "activity")
    ids = texts(facts.view.kernels, "kernel_id")
    counts = Counter(one for one in of_row if one)
    if not counts:
        return Html("")
    known = counts.total()
    rows = [
        (words_of(name), count(counts[name]), share(counts[name], known), meaning)
        for name, meaning in _ACTIVITIES.items()
    ]
    caption = (
        f"Activity of kernels on their inputs (n = {count(known)} kernels with timed launches and "
        "known activity). Rows of kernels that do nothing are kept and flagged."
    )
    listed = table(caption, ("Kernel", "Number", "Share", "Meaning"), rows, align="lrrp")
    idle = [
        (facts.kernels.link(kernel, 40), kernel, words_of(one))
        for kernel, one in zip(ids, of_row, strict=True)
        if one in (Activity.NOTHING, Activity.FEW_ITEMS)
    ]
    if not idle:
        return listed
    shown = idle[:_MAX_LISTED]
    named = table(
        f"Kernels that do nothing or little on their inputs ({len(shown)} of {len(idle)}).",
        ("Kernel", "Kernel id", "Activity"),
        shown,
        align="lll",
    )
    return join([listed, details("Table: kernels that do nothing or little", named)])


def _below_floor(facts: DatasetFacts) -> Html:
    samples = facts.samples
    below = samples.ok & (samples.checks["above_floor"] == 0)
    if not below.any():
        return Html("")
    counts = samples.kernel.counts(below)
    of_ok = samples.kernel.counts(samples.ok)
    worst = sorted(counts, key=lambda name: (-counts[name], name))[:_MAX_LISTED]
    rows = [
        (facts.kernels.link(name, 40), name, count(counts[name]), share(counts[name], of_ok[name]))
        for name in worst
    ]
    num_kernels = int(np.count_nonzero(list(counts.values())))
    caption = (
        f"Kernels with rows faster than the bandwidth floor allows ({len(rows)} of {num_kernels}): "
        "the memory analysis overestimates the bytes touched, or the kernel skips work."
    )
    return details(
        "Table: kernels with rows below the floor",
        table(
            caption,
            ("Kernel", "Kernel id", "Rows below the floor", "Of its ok rows"),
            rows,
            align="ll",
        ),
    )
