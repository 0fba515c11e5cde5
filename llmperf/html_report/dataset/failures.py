"""Failures of a dataset: counts by code, the meanings of codes, and a few examples.

Owns the failure table and its examples. All texts in it are untrusted (logs, paths) and shortened.
"""

from __future__ import annotations

import numpy as np

from llmperf.html_report.charts.markup import (
    Html,
    details,
    join,
    listing,
    nothing_to_show,
    paragraph,
    section,
    shorten,
    table,
)
from llmperf.html_report.charts.quantities import count, share
from llmperf.html_report.dataset.facts import DatasetFacts, words_of
from llmperf_common.failures import FAILURE_MEANINGS, OK_STATUS, RETRY_RULES, FailureCode

_EXAMPLES_A_CODE = 3
_DETAIL_CHARS = 900
_UNKNOWN = "Unknown code: a later version wrote the row, or the row is damaged."


def failures_section(facts: DatasetFacts) -> Html:
    """Return failures by code, with meanings and folded examples."""
    title, anchor = "Failures", "failures"
    samples = facts.samples
    codes = [name for name in facts.statuses if name != OK_STATUS]
    if not codes:
        reason = "every row is ok" if samples.num_rows else "the dataset has no rows"
        return section(title, anchor, nothing_to_show(title, reason))
    num_failed = int((~samples.ok).sum())
    rows = []
    for code in codes:
        chosen = samples.status.is_value(code)
        rows.append(
            (
                code,
                count(int(chosen.sum())),
                share(int(chosen.sum()), samples.num_rows),
                count(len(samples.kernel.counts(chosen))),
                _meaning(code),
                _retry(code),
            )
        )
    caption = (
        f"Failed rows by code (n = {count(num_failed)} of {count(samples.num_rows)} rows). "
        "A failure is a row with its evidence, never a missing row. A kernel that fails before any "
        "launch is planned gives one row."
    )
    headers = ("Code", "Rows", "Share of all rows", "Kernels", "Meaning", "Tried again")
    return section(
        title,
        anchor,
        table(caption, headers, rows, align="lrrrpl"),
        join(_examples(facts, code) for code in codes),
    )


def _meaning(code: str) -> str:
    known = {item.value: text for item, text in FAILURE_MEANINGS.items()}
    return known.get(code, _UNKNOWN)


def _retry(code: str) -> str:
    known = {item.value: rule.value for item, rule in RETRY_RULES.items()}
    return words_of(known.get(code, "unknown"))


def _examples(facts: DatasetFacts, code: str) -> Html:
    """Return the evidence of the first failed row of up to three different kernels."""
    samples = facts.samples
    rows = np.flatnonzero(samples.status.is_value(code))
    _, first = np.unique(samples.kernel.codes[rows], return_index=True)
    chosen = rows[np.sort(first)[:_EXAMPLES_A_CODE]]
    parts = []
    for row in chosen.tolist():
        kernel_id = samples.kernel.names[int(samples.kernel.codes[row])]
        words = facts.kernels.by_id.get(kernel_id)
        where = shorten(words.path, 120) if words else "(kernel not in the kernels table)"
        sizes = (
            f"global size {_cell(facts, 'global_size', row)}, "
            f"local size {_cell(facts, 'local_size', row)}"
        )
        detail = _cell(facts, "failure_detail", row) or "(no detail recorded)"
        head = f"{facts.kernels.label(kernel_id, 60)} · {where} · {sizes}"
        parts.append(join([paragraph(head), listing(shorten(detail, _DETAIL_CHARS))]))
    total = len(first)
    summary = (
        f"{code}: examples from {len(parts)} of {count(total)} kernels, shortened to "
        f"{_DETAIL_CHARS} characters"
    )
    return details(summary, *parts)


def _cell(facts: DatasetFacts, name: str, row: int) -> str:
    samples = facts.view.samples
    if name not in samples.column_names:
        return ""
    value = samples.column(name)[row].as_py()
    if isinstance(value, list):
        return " \u00d7 ".join(map(str, value)) or "none"
    return "" if value is None else str(value)


def censored_code() -> str:
    """Return the failure code of censored rows, which have no time."""
    return FailureCode.OVER_TIME_BUDGET.value
