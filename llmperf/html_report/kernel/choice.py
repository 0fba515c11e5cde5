"""The choice and order of the kernels that get a section of their own, and their rows.

Owns the order (largest error first if there are predictions, otherwise largest number of rows
first) and the look-up of kernels by name. A page with thousands of sections would be too large to
open, so the number of sections is limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.quantities import Floats, Ints, median
from llmperf.html_report.columns import array_of, rows_by_code
from llmperf.html_report.dataset.facts import DatasetFacts
from llmperf.html_report.evaluation.facts import EvaluationFacts
from llmperf.html_report.kernel.index import KernelsIndex

_NUM_SUGGESTIONS = 3


class UnknownKernelError(ValueError):
    """No kernel of the dataset has the requested name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The primary model's predictions, one value per sample; NaN for samples without prediction."""

    model: str
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats
    ape: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRows:
    """One kernel, and the indices of its rows in ``samples``, sorted by work-items."""

    kernel_id: str
    rows: Ints
    median_ape: float
    """Median absolute error as a fraction; NaN if the primary model predicted none of the rows."""


def predictions_by_sample(facts: DatasetFacts, evaluation: EvaluationFacts | None) -> Predicted:
    """Return the primary model's predictions in the order of the samples."""
    num_rows = facts.samples.num_rows
    found = np.full(num_rows, -1, dtype=np.int64)
    if evaluation is not None:
        chosen = np.flatnonzero(
            evaluation.usable & evaluation.model.is_value(evaluation.primary_model)
        )
        known = array_of(evaluation.view.predictions, "sample_id")
        ids = array_of(facts.view.samples, "sample_id")
        if known is not None and ids is not None and len(chosen):
            wanted = known.cast(pa.string()).take(pa.array(chosen))
            place = pc.fill_null(pc.index_in(ids.cast(pa.string()), value_set=wanted), -1)
            places = np.asarray(place.to_numpy(zero_copy_only=False), dtype=np.int64)
            found = np.where(places >= 0, chosen[places], -1)

    def beside(values: Floats) -> Floats:
        return np.where(found >= 0, values[found], np.nan) if len(values) else _nothing(num_rows)

    if evaluation is None:
        nothing = _nothing(num_rows)
        return Predicted(
            model="", predicted_ns=nothing, low_ns=nothing, high_ns=nothing, ape=nothing
        )
    bounded = evaluation.has_interval
    return Predicted(
        model=evaluation.primary_model,
        predicted_ns=beside(evaluation.predicted_ns),
        low_ns=beside(np.where(bounded, evaluation.low_ns, np.nan)),
        high_ns=beside(np.where(bounded, evaluation.high_ns, np.nan)),
        ape=beside(evaluation.ape),
    )


def _nothing(num_rows: int) -> Floats:
    return np.full(num_rows, np.nan)


def ordered_kernels(facts: DatasetFacts, predicted: Predicted) -> list[KernelRows]:
    """Return all kernels with rows, sorted by median error, then by number of rows, descending."""
    samples = facts.samples
    grouped = rows_by_code(samples.kernel.codes, np.ones(samples.num_rows, dtype=bool))
    found = [
        KernelRows(
            kernel_id=samples.kernel.names[code],
            rows=rows[np.argsort(samples.work_items[rows], kind="stable")],
            median_ape=median(predicted.ape[rows]),
        )
        for code, rows in grouped.items()
    ]
    return sorted(found, key=_place)


def _place(kernel: KernelRows) -> tuple[float, int, str]:
    error = kernel.median_ape if np.isfinite(kernel.median_ape) else -1.0
    return -error, -len(kernel.rows), kernel.kernel_id


def named_kernels(
    kernels: KernelsIndex, found: list[KernelRows], names: tuple[str, ...]
) -> list[KernelRows]:
    """Return the kernels with one of the names or ids, in the order of ``found``.

    Raises:
        UnknownKernelError: No kernel has one of the names; the message lists similar names.
    """
    by_name: dict[str, set[str]] = {}
    for kernel in found:
        words = kernels.by_id.get(kernel.kernel_id)
        for name in {kernel.kernel_id, words.name if words else kernel.kernel_id}:
            by_name.setdefault(name, set()).add(kernel.kernel_id)
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, _NUM_SUGGESTIONS, cutoff=0.5)
            raise UnknownKernelError(
                f"no kernel of the dataset has the name or id {name!r}"
                + (f": did you mean {', '.join(near)}?" if near else "")
            )
    wanted = set().union(*(by_name[name] for name in names))
    return [kernel for kernel in found if kernel.kernel_id in wanted]
