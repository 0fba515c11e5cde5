"""Predictions as columns, joined to the predicted samples.

Owns the choice of the scored rows (one split, usable times), and the join by ``sample_id`` that
adds regimes and NDRanges. ``llmperf_common/statistics/metrics.py`` defines the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf.html_report.charts.quantities import Bools, Floats, Ints, decade_of, nanoseconds_tick
from llmperf.html_report.charts.scales import Scale, log_scale
from llmperf.html_report.columns import Categorical, array_of, categorical, floats, sample_columns
from llmperf.html_report.dataset.facts import REGIME_ORDER, ordered, words_of
from llmperf.html_report.kernel.index import KernelsIndex, index_kernels
from llmperf.html_report.views import EvaluationView

_PREFERRED_SPLIT = "test"
_SHORTEST_NS, _LONGEST_NS = 1e-6, 1e18
"""Range of valid times in ns; a row with a time outside this range is unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFacts:
    """The input of an evaluation's sections; arrays have one value per prediction."""

    view: EvaluationView
    num_rows: int
    model: Categorical
    split: Categorical
    kernel: Categorical
    device_class: Categorical
    launched: Categorical
    """The kernel on a device class, which is the unit of rankings and plots: ``kernel_id`` or
    ``kernel_id class``."""
    family: Categorical
    suite: Categorical
    measured_ns: Floats
    predicted_ns: Floats
    low_ns: Floats
    high_ns: Floats
    usable: Bools
    """Whether both times are in the valid range."""
    ape: Floats
    """Absolute error as a fraction of the measured time; NaN where unusable."""
    log2_ratio: Floats
    """log2(predicted / measured); NaN where unusable."""
    has_interval: Bools
    decade: Ints
    regime: Categorical | None
    work_groups: Floats
    kernels: KernelsIndex
    shown_split: str
    primary_model: str
    time_scale: Scale

    @property
    def models(self) -> list[str]:
        """The models in order of first appearance, the primary one first."""
        names = [name for name in self.model.names if name in self.model.counts()]
        return [self.primary_model, *(name for name in names if name != self.primary_model)]

    def rows_of(self, model: str) -> Bools:
        """Return the usable rows of one model on the shown split."""
        return self.usable & self.model.is_value(model) & self.split.is_value(self.shown_split)


def _on_class(kernel: Categorical, device_class: Categorical) -> Categorical:
    """Return (kernel, device class) as one column; the kernel alone if there is one class."""
    if len(device_class.counts()) < 2:
        return kernel
    num_classes = len(device_class.names)
    pairs, codes = np.unique(kernel.codes * num_classes + device_class.codes, return_inverse=True)
    names = [
        f"{kernel.names[pair // num_classes]} {device_class.names[pair % num_classes]}"
        for pair in pairs.tolist()
    ]
    return Categorical(codes=codes.astype(np.int64), names=tuple(names))


def _positive(values: Floats) -> Bools:
    return (values > _SHORTEST_NS) & (values < _LONGEST_NS)


def _choose(column: Categorical, wanted: str | None, rows: Bools) -> str:
    counts = column.counts(rows) or column.counts()
    if wanted is not None and wanted in counts:
        return wanted
    return max(counts, key=lambda name: counts[name], default="")


def evaluation_facts(view: EvaluationView) -> EvaluationFacts:
    """Return the facts that all sections share."""
    table = view.predictions
    names = ("model", "split", "kernel_id", "family_id", "suite")
    model, split, kernel, family, suite = (categorical(table, name) for name in names)
    device_class = categorical(table, "device_class")
    measured, predicted = floats(table, "median_ns"), floats(table, "predicted_ns")
    low, high = floats(table, "low_ns"), floats(table, "high_ns")
    usable = _positive(measured) & _positive(predicted)
    # Replace unusable times by NaN first, so that no computation sees a zero or an infinity.
    true_ns, said_ns = np.where(usable, measured, np.nan), np.where(usable, predicted, np.nan)
    decade = np.zeros(table.num_rows, dtype=np.int64)
    decade[usable] = decade_of(measured[usable])
    regime, work_groups = _joined(view)
    first_model = model.names[int(model.codes[0])] if table.num_rows else ""
    wanted = view.primary_model if view.primary_model in model.counts() else first_model
    both = np.concatenate([measured[usable], predicted[usable]])
    return EvaluationFacts(
        view=view,
        num_rows=table.num_rows,
        model=model,
        split=split,
        kernel=kernel,
        device_class=device_class,
        launched=_on_class(kernel, device_class),
        family=family,
        suite=suite,
        measured_ns=measured,
        predicted_ns=predicted,
        low_ns=low,
        high_ns=high,
        usable=usable,
        ape=np.abs(said_ns - true_ns) / true_ns,
        log2_ratio=np.log2(said_ns) - np.log2(true_ns),
        has_interval=usable & _positive(low) & _positive(high) & (low <= high),
        decade=decade,
        regime=regime,
        work_groups=work_groups,
        kernels=index_kernels(view.kernels),
        shown_split=_choose(split, _PREFERRED_SPLIT, usable),
        primary_model=wanted or first_model,
        time_scale=log_scale(both, "Time", nanoseconds_tick),
    )


def _joined(view: EvaluationView) -> tuple[Categorical | None, Floats]:
    """Return each prediction's regime (None without samples) and work-groups (NaN if unknown)."""
    num_rows = view.predictions.num_rows
    ids = array_of(view.predictions, "sample_id")
    if view.samples is None or ids is None or not view.samples.num_rows:
        return None, np.full(num_rows, np.nan)
    known = array_of(view.samples, "sample_id")
    found = pc.index_in(ids.cast(pa.string()), value_set=known.cast(pa.string()))
    rows = np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    columns = sample_columns(view.samples)
    # Groups are shown in the order of their codes, so codes follow the order of regimes.
    order = ordered(columns.regime, REGIME_ORDER)
    place = np.array([order.index(name) for name in columns.regime.names])
    labels = [words_of(name) if name else "(no regime)" for name in order]
    codes = np.where(rows >= 0, place[columns.regime.codes[rows]], len(labels))
    work_groups = np.where(rows >= 0, columns.work_groups[rows], np.nan)
    return Categorical(codes=codes, names=(*labels, "(not in the dataset)")), work_groups
