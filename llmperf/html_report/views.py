"""What a report is made from: the tables, counts and facts of one dataset, one evaluation or one corpus.

Owns the input records. Does not read files: the caller opens the dataset or the evaluation and
hands over Arrow tables, so a report can be made from anything that has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from llmperf_common.records import SentinelReading

if TYPE_CHECKING:
    from workers.corpus.parquet import Corpus

# pyarrow ships no types: its tables are `Any` to mypy, named here so that signatures stay readable.
ArrowTable = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetView:
    """One version of a dataset, as a report shows it.

    Args:
        samples: Table of ``schemas.SAMPLES``; nullable columns may be missing (an older version).
        kernels: Table of ``schemas.KERNELS``.
        devices: Table of ``schemas.DEVICES``; may have no row.
        title: What the dataset is, e.g. the name of its folder or corpus.
        run: Facts of ``run.json`` worth printing, by name (corpus, ``plan_hash``, ...).
        manifest_version: Number of the manifest that was read; None if there is none.
        num_planned: Launch configs planned; None if the plan is not known.
        num_pending: Planned launch configs that have no row yet; not shown without ``num_planned``.
        sentinel: Readings of the sentinel kernel, any order, all devices.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationView:
    """One evaluation: predictions beside measured times, and the metrics made from them.

    Args:
        predictions: Columns ``sample_id, kernel_id, family_id, suite, split, model, device_class,
            median_ns, predicted_ns, low_ns, high_ns``; the last two may be null or missing.
        metrics: The evaluation's own metrics, any nesting of model, split and slice over metric
            names; a value is a number, ``[value, low, high]`` or ``{value, low, high}``. Shares are
            fractions (0.12 is 12 %) unless the name ends in ``_percent``.
        title: What was evaluated.
        run: Facts worth printing, by name (split file, checkpoint, preset, ...); ``stamp``, where
            set, is shown as a warning.
        interval_level: Nominal coverage of ``low_ns`` to ``high_ns``; None if not known.
        primary_model: The model whose worst kernels are shown; None takes the first of the table.
        samples: The measured dataset's samples: gives regimes and NDRanges; None leaves them out.
        kernels: Its kernels: gives names and sources; None leaves them out.
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
    """Which kernels of a dataset get a section of their own; the defaults keep a page easy to open.

    Args:
        names: Names or ids of kernels; these alone get one, whatever the limits. Empty: by the
            rule.
        limit: At most so many kernels; None means all.
        limit_bytes: The sections together stay below it (the first kernel is always there); None:
            no limit.
    """

    names: tuple[str, ...] = ()
    limit: int | None = 300
    limit_bytes: int | None = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When and by which version a page was made; an argument, so that a page can be reproduced."""

    made_at: datetime | None = None
    version: str = ""
