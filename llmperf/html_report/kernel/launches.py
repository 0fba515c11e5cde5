"""The launches of one kernel: a compact table, all launches as CSV, and the failures.

Owns the columns of a launch in table and CSV: one column per argument, plain numbers in the CSV.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmperf.html_report.charts.csv_data import Cell, Drawn
from llmperf.html_report.charts.markup import (
    Html,
    data_links,
    join,
    listing,
    paragraph,
    shorten,
    table,
)
from llmperf.html_report.charts.points import thin
from llmperf.html_report.charts.quantities import (
    NO_VALUE,
    TIMES,
    Ints,
    count,
    nanoseconds,
    percent,
    short,
)
from llmperf.html_report.dataset.facts import DatasetFacts, words_of
from llmperf.html_report.kernel.choice import KernelRows, Predicted
from llmperf_common.records import ArgumentKind

_MAX_ROWS = 24
_MAX_ARGUMENTS = 12
_NAME_CHARS = 18
_DETAIL_CHARS = 600
_MAX_CODES = 4
_BUFFERS = (
    ArgumentKind.GLOBAL_BUFFER.value,
    ArgumentKind.CONSTANT_BUFFER.value,
    ArgumentKind.LOCAL_BUFFER.value,
)
_BY = f"\u202f{TIMES}\u202f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """One kernel's rows as Python values, in the order of ``indices``."""

    indices: Ints
    """Indices of the rows in ``samples``, sorted by work-items."""
    rows: Sequence[dict[str, Any]]
    argument_names: tuple[str, ...]
    file_name: str
    """Words from which the name of the downloaded file is made."""


def launches_of(
    facts: DatasetFacts, columns: Any, kernel: KernelRows, arguments: Sequence[dict[str, Any]]
) -> Launches:
    """Return the launches of a kernel.

    Args:
        facts: The dataset.
        columns: ``global_size``, ``local_size``, ``args`` and ``failure_detail`` of all samples, in
            one chunk.
        kernel: The kernel and its rows.
        arguments: The kernel's declared arguments.
    """
    taken = columns.take(kernel.rows).to_pylist()
    return Launches(
        indices=kernel.rows,
        rows=taken,
        argument_names=tuple(map(_argument_name, arguments)),
        file_name=f"launches of {facts.kernels.label(kernel.kernel_id, 40)}",
    )


def _argument_name(argument: dict[str, Any]) -> str:
    kind = argument.get("kind") or ""
    name = shorten(argument.get("name") or "(unnamed)", _NAME_CHARS)
    return f"{name}[]" if kind in _BUFFERS else name


def _argument_value(argument: dict[str, Any]) -> float:
    for member in ("elements", "value"):
        if argument.get(member) is not None:
            return float(argument[member])
    return float("nan")


def _values(row: dict[str, Any], num_arguments: int) -> list[float]:
    """Return each argument's number of elements or value, by position; NaN where missing."""
    values = [float("nan")] * num_arguments
    for argument in row.get("args") or ():
        if 0 <= (argument["position"] or 0) < num_arguments:
            values[argument["position"] or 0] = _argument_value(argument)
    return values


def _whole(value: float) -> str:
    if not np.isfinite(value):
        return NO_VALUE
    return count(value) if value.is_integer() else short(value)


def _shape(sizes: Sequence[int] | None, by: str = _BY) -> str:
    return by.join(str(size) for size in sizes or ())


def launch_table(facts: DatasetFacts, launches: Launches, predicted: Predicted) -> Html:
    """Return a table of timed launches (evenly spaced if there are many) and a link to all rows."""
    samples = facts.samples
    timed = np.flatnonzero(samples.timed[launches.indices])
    link = _download(facts, launches, predicted)
    if not timed.size:
        return join([paragraph("No launch of this kernel was timed. ", link)])
    shown = timed[thin(timed.size, _MAX_ROWS)]
    has_prediction = bool(np.isfinite(predicted.predicted_ns[launches.indices]).any())
    names = launches.argument_names[:_MAX_ARGUMENTS]
    several = facts.num_classes() > 1
    headers = [
        "Global size",
        "Local size",
        *(["Device class"] if several else []),
        *names,
        "Warm median",
        "IQR",
        "Cold",
        *(["Predicted", "Interval", "Error"] if has_prediction else []),
    ]
    body = []
    for place in shown.tolist():
        row, index = launches.rows[place], int(launches.indices[place])
        times = (samples.median_ns[index], samples.cold_median_ns[index])
        body.append(
            (
                _shape(row["global_size"]),
                _shape(row["local_size"]),
                *([samples.device_class.names[samples.device_class.codes[index]]] * several),
                *map(_whole, _values(row, len(names))),
                nanoseconds(times[0]),
                percent(samples.iqr_ns[index] / times[0]),
                nanoseconds(times[1]),
                *(_prediction_cells(predicted, index) if has_prediction else ()),
            )
        )
    caption = f"Launches: {count(len(body))} of {count(timed.size)} timed ones"
    caption += ", evenly spaced by work-items" if len(body) < timed.size else ""
    if len(launches.argument_names) > len(names):
        caption += f"; the first {len(names)} of {len(launches.argument_names)} arguments"
    caption += (
        ". An argument with [] is a buffer; its number of elements is given. The CSV has all rows. "
    )
    return table(join([caption, link]), headers, body, align="ll")


def _prediction_cells(predicted: Predicted, index: int) -> tuple[str, str, str]:
    said = predicted.predicted_ns[index]
    low, high = predicted.low_ns[index], predicted.high_ns[index]
    if not np.isfinite(said):
        return (NO_VALUE, NO_VALUE, NO_VALUE)
    ends = f"{nanoseconds(low)} to {nanoseconds(high)}" if np.isfinite(low) else NO_VALUE
    return nanoseconds(said), ends, percent(predicted.ape[index])


def _download(facts: DatasetFacts, launches: Launches, predicted: Predicted) -> Html:
    samples = facts.samples
    names = launches.argument_names
    has_prediction = bool(np.isfinite(predicted.predicted_ns[launches.indices]).any())
    rows: list[list[Cell]] = []
    for row, index in zip(launches.rows, launches.indices.tolist(), strict=True):
        cells: list[Cell] = [
            samples.device_class.names[samples.device_class.codes[index]],
            _shape(row["global_size"], "x"),
            _shape(row["local_size"], "x"),
            *_values(row, len(names)),
            samples.status.names[samples.status.codes[index]],
            float(samples.median_ns[index]),
            float(samples.iqr_ns[index]),
            float(samples.cold_median_ns[index]),
        ]
        if has_prediction:
            said = (predicted.predicted_ns, predicted.low_ns, predicted.high_ns)
            cells += [float(values[index]) for values in said]
        rows.append(cells)
    columns = ("device_class", "global_size", "local_size", *names, "status")
    columns += ("median_ns", "iqr_ns", "cold_ns")
    columns += ("predicted_ns", "low_ns", "high_ns") if has_prediction else ()
    return data_links([Drawn(panel="launches", columns=columns, rows=rows)], launches.file_name)


def failures_of(facts: DatasetFacts, launches: Launches) -> Html:
    """Return the failed rows by code, with sizes and evidence of one row each; may be empty."""
    samples = facts.samples
    failed = np.flatnonzero(~samples.ok[launches.indices])
    if not failed.size:
        return Html("")
    statuses = [samples.status.names[samples.status.codes[launches.indices[i]]] for i in failed]
    codes = sorted(set(statuses), key=lambda code: (-statuses.count(code), code))
    parts: list[str] = [
        paragraph(
            f"Failed: {count(failed.size)} of {count(len(launches.rows))} rows: "
            + ", ".join(f"{count(statuses.count(code))} {words_of(code)}" for code in codes)
            + "."
        )
    ]
    for code in codes[:_MAX_CODES]:
        row = launches.rows[int(failed[statuses.index(code)])]
        launch, group = (_shape(row[name]) or "none" for name in ("global_size", "local_size"))
        detail = shorten(str(row.get("failure_detail") or "(no detail recorded)"), _DETAIL_CHARS)
        parts += [
            paragraph(f"{words_of(code)}, global size {launch}, local size {group}:"),
            listing(detail),
        ]
    return join(parts)
