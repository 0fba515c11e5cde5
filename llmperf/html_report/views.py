"""The input of a report: tables, counts and facts of a dataset, an evaluation or a corpus.

Owns the input records. Reads no files: the caller opens the dataset or evaluation and
passes Arrow tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from llmperf_common.features.accesses import AccessTrace
from llmperf_common.records import SentinelReading

if TYPE_CHECKING:
    from workers.corpus.parquet import Corpus

# pyarrow ships no types, so mypy takes its tables as `Any`. This name keeps signatures readable.
ArrowTable = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetView:
    """One version of a dataset, as a report shows it.

    Args:
        samples: Table with ``schemas.SAMPLES``; nullable columns may be missing (older datasets).
        kernels: Table with ``schemas.KERNELS``.
        devices: Table with ``schemas.DEVICES``; may be empty.
        title: Name of the dataset, such as its folder or corpus.
        run: Facts of ``run.json`` to print, by name (corpus, ``plan_hash``, ...).
        manifest_version: Number of the manifest that was read; None if there is none.
        num_planned: Number of planned launch configs; None if unknown.
        num_pending: Planned launch configs without a row; not shown if ``num_planned`` is None.
        sentinel: Readings of the sentinel kernel on all devices, in any order.
        accesses: For each ``kernel_id`` that was traced, what a launch of it accesses, or why
            nothing is known.
    """

    samples: ArrowTable
    kernels: ArrowTable
    devices: ArrowTable
    title: str = "dataset"
    run: Mapping[str, object] = field(default_factory=dict)
    manifest_version: int | None = None
    num_planned: int | None = None
    num_pending: int = 0
    sentinel: Sequence[SentinelReading] = ()
    accesses: Mapping[str, AccessTrace | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """One evaluation: predictions and measured times, and the metrics of the predictions.

    Args:
        predictions: Columns ``sample_id, kernel_id, family_id, suite, split, model, device_class,
            median_ns, predicted_ns, low_ns, high_ns``; the last two may be null or missing.
        metrics: The evaluation's own metrics: mappings by model, split and slice, nested in any
            order, down to metric names. A value is a number, ``[value, low, high]`` or ``{value,
            low, high}``. Shares are fractions (0.12 is 12 %) unless the name ends in ``_percent``.
        title: Name of the evaluation.
        run: Facts to print, by name (split file, checkpoint, preset, ...); ``stamp``, if set, is
            shown as a warning.
        interval_level: Nominal coverage of ``low_ns`` to ``high_ns``; None if unknown.
        primary_model: The model whose worst kernels are shown; None: the first in the table.
        samples: Samples of the measured dataset, for regimes and NDRanges; None: not shown.
        kernels: Kernels of the measured dataset, for names and sources; None: not shown.
    """

    predictions: ArrowTable
    metrics: Mapping[str, object] = field(default_factory=dict)
    title: str = "evaluation"
    run: Mapping[str, object] = field(default_factory=dict)
    interval_level: float | None = None
    primary_model: str | None = None
    samples: ArrowTable | None = None
    kernels: ArrowTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusView:
    """One corpus, as a report shows it."""

    corpus: Corpus
    title: str = "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    """Which kernels of a dataset get a section of their own; the defaults keep the page small.

    Args:
        names: Names or ids of kernels. Only these kernels get a section, without limits. If it is
            empty, the limits apply.
        limit: Maximum number of kernels with a section; None: all.
        limit_bytes: Maximum number of bytes of all sections together (the first kernel is always
            shown); None: no limit.
    """

    names: tuple[str, ...] = ()
    limit: int | None = 300
    limit_bytes: int | None = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Time and LLMPerf version of a page; they are arguments so that a page can be reproduced."""

    made_at: datetime | None = None
    version: str = ""
