"""Predictions of the rows of a dataset, their table and their metrics.

Owns ``predictions.parquet``, the layout of ``metrics.json`` and the minimum quality of a trained
model (``meets_slice_bar``). The metrics are defined in ``llmperf_common/statistics/metrics.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from llmperf_common.notebook import html_table
from llmperf_common.statistics.conformal import Conformal
from llmperf_common.statistics.metrics import (
    Scored,
    censored_share,
    encode,
    metrics_table,
    noise_floor_median_ape_percent,
)
from trainer.config import JudgeConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.interface import Floats, Predicted, Predictor
from trainer.run.answers import check_intervals, check_spread, checked_prediction

Index = npt.NDArray[np.intp]

PREDICTIONS = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("kernel_id", pa.string(), nullable=False),
        pa.field("family_id", pa.string(), nullable=False),
        pa.field("suite", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("model", pa.string(), nullable=False),
        pa.field("device_class", pa.string(), nullable=False),
        pa.field("median_ns", pa.float64(), nullable=False, metadata={"unit": "ns"}),
        pa.field("predicted_ns", pa.float64(), nullable=False, metadata={"unit": "ns"}),
        pa.field("low_ns", pa.float64(), metadata={"unit": "ns"}),
        pa.field("high_ns", pa.float64(), metadata={"unit": "ns"}),
    ]
)
"""Columns of ``predictions.parquet`` (contract). ``low_ns`` and ``high_ns`` are the interval; null
for models without intervals."""

SLICE_BAR_SPEARMAN = 0.8
"""A model that learnt how time depends on sizes reaches at least this rank correlation on held-out
configs of seen kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predictions of one model for m rows of a dataset.

    Attributes:
        model: its name.
        index: positions of the rows in the ``TrainingData``, shape (m,).
        log2_ns: log2 of the predicted times in ns, shape (m,).
        low_ns: lower ends of the intervals, shape (m,), or None.
        high_ns: upper ends, shape (m,), or None.
        level: coverage that the intervals promise, or None.
        num_cut: number of rows whose kernel's source was cut to fit the model's context.
    """

    model: str
    index: Index
    log2_ns: Floats
    low_ns: Floats | None = None
    high_ns: Floats | None = None
    level: float | None = None
    num_cut: int = 0

    def only(self, mask: npt.NDArray[np.bool_]) -> Prediction:
        """Return the entries for which ``mask`` (shape (m,)) is true."""
        return Prediction(
            model=self.model,
            index=self.index[mask],
            log2_ns=self.log2_ns[mask],
            low_ns=None if self.low_ns is None else self.low_ns[mask],
            high_ns=None if self.high_ns is None else self.high_ns[mask],
            level=self.level,
        )


def with_interval(
    model: str, index: Index, said: Predicted, conformal: Conformal, data: TrainingData
) -> Prediction:
    """Return the predictions ``said`` for the rows at ``index``, with intervals by regime."""
    regimes = data.texts("regime")[index]
    with np.errstate(over="ignore"):  # ``predict_rows`` checks the ends
        low, high = conformal.interval_ns(said.log2_ns, regimes, said.spread)
    return Prediction(
        model=model,
        index=index,
        log2_ns=said.log2_ns,
        low_ns=low,
        high_ns=high,
        level=conformal.level,
        num_cut=0 if said.is_cut is None else int(np.sum(said.is_cut)),
    )


def cut_notes(prediction: Prediction) -> list[str]:
    """Return a note on the rows whose source did not fit into the model's context, if any."""
    if prediction.num_cut == 0:
        return []
    return [
        f"{prediction.num_cut:,} of {len(prediction.index):,} rows are of kernels whose source is "
        f"longer than the context of {prediction.model}: it read only a part of the source"
    ]


def predict_rows(
    data: TrainingData,
    index: Index,
    models: Mapping[str, Predictor],
    conformal: Conformal,
    *,
    where: str = "",
) -> list[Prediction]:
    """Let each model predict the rows at ``index``.

    Args:
        data: the dataset.
        index: positions of the rows to predict.
        models: the models by name.
        conformal: widths of the intervals, for the first model only.
        where: names the run in messages.

    Raises:
        BadInput: A predicted time or the end of an interval is not a finite number.
    """
    rows = data.rows.take(index)
    named = {name: f"{where}: model {name}" if where else f"model {name}" for name in models}
    said = {name: checked_prediction(model, rows, named[name]) for name, model in models.items()}
    first, *others = said.items()
    check_spread(first[1], conformal.by_spread, named[first[0]])
    own = with_interval(first[0], index, first[1], conformal, data)
    if own.low_ns is not None and own.high_ns is not None:
        check_intervals(own.low_ns, own.high_ns, named[own.model])
    return [
        own,
        *(Prediction(model=name, index=index, log2_ns=one.log2_ns) for name, one in others),
    ]


def predictions_table(
    data: TrainingData, parts: Texts, predictions: Sequence[Prediction]
) -> pa.Table:
    """Return ``predictions.parquet``, one row per model and sample; ``parts`` has shape (n,)."""
    tables = []
    for item in predictions:
        rows = data.rows.samples.take(pa.array(item.index))
        none = pa.nulls(len(item.index), pa.float64())
        tables.append(
            pa.Table.from_arrays(
                [
                    rows.column("sample_id"),
                    rows.column("kernel_id"),
                    pa.array(data.family_id[item.index].tolist(), pa.string()),
                    pa.array(data.suite[item.index].tolist(), pa.string()),
                    pa.array(parts[item.index].tolist(), pa.string()),
                    pa.array([item.model] * len(item.index), pa.string()),
                    rows.column("device_class"),
                    rows.column("median_ns"),
                    pa.array(np.exp2(item.log2_ns)),
                    none if item.low_ns is None else pa.array(item.low_ns),
                    none if item.high_ns is None else pa.array(item.high_ns),
                ],
                schema=PREDICTIONS,
            )
        )
    return pa.concat_tables(tables) if tables else PREDICTIONS.empty_table()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Codes and labels of all n rows of a dataset, computed once and used for every table."""

    kernel: npt.NDArray[np.int64]
    family: npt.NDArray[np.int64]
    choice: npt.NDArray[np.int64]
    slices: Mapping[str, Texts]


def grouping(data: TrainingData) -> Grouping:
    """Group the rows by kernel, family, choice of local size, suite, regime and strategy."""
    return Grouping(
        kernel=data.kernel_codes(),
        family=encode(data.family_id),
        choice=data.choice_codes(),
        slices={
            "suite": data.suite,
            "regime": data.texts("regime"),
            "strategy": data.texts("input_strategy"),
        },
    )


def score(
    data: TrainingData, groups: Grouping, prediction: Prediction, judge: JudgeConfig
) -> dict[str, Any]:
    """Return the metrics of one prediction over its single-launch rows."""
    kept = prediction.only(data.single_launch[prediction.index])
    scored = Scored(
        measured_ns=np.exp2(data.log2_ns[kept.index]),
        predicted_ns=np.exp2(kept.log2_ns),
        low_ns=kept.low_ns,
        high_ns=kept.high_ns,
        kernel=groups.kernel[kept.index],
        family=groups.family[kept.index],
        choice=groups.choice[kept.index],
        interval_level=kept.level,
        slices={name: labels[kept.index] for name, labels in groups.slices.items()},
    )
    return metrics_table(
        scored, min_configs=judge.min_configs, replicates=judge.bootstrap_replicates
    )


def score_parts(
    data: TrainingData, parts: Texts, predictions: Sequence[Prediction], judge: JudgeConfig
) -> dict[str, Any]:
    """Return ``parts`` of ``metrics.json``: the metrics by part and model."""
    groups = grouping(data)
    table: dict[str, Any] = {}
    for item in predictions:
        labels = parts[item.index]
        for part in np.unique(labels):
            inner = score(data, groups, item.only(labels == part), judge)
            table.setdefault(str(part), {})[item.model] = inner
    return table


def context(data: TrainingData) -> dict[str, Any]:
    """Return counts, censored share and noise floor, which a reader of the metrics needs."""
    iqr = data.rows.samples.column("iqr_ns").cast(pa.float64()).to_numpy()
    return {
        "num_by_status": dict(data.num_by_status),
        "num_batched_rows": int(np.sum(~data.single_launch)),
        "censored_share": censored_share(data.num_ok_by_regime, data.num_censored_by_regime),
        "noise_floor_within_run_median_ape_percent": noise_floor_median_ape_percent(
            np.exp2(data.log2_ns), iqr
        ),
    }


def meets_slice_bar(metrics: Mapping[str, Any], model: str, part: str = "seen_configs") -> bool:
    """Return whether a model learnt how time depends on the launch config.

    The model must rank the launches within kernels (mean Spearman at least 0.8) and have a smaller
    median APE than the global median. A model that predicts one constant fails.

    Args:
        metrics: content of ``metrics.json``.
        model: the model to judge; the metrics must hold "global-median", too.
        part: the part to judge on; by default held-out configs of kernels that were fitted.
    """
    models = metrics["parts"].get(part, {})
    if model not in models or "global-median" not in models:
        return False
    own, bar = models[model]["all"], models["global-median"]["all"]
    spearman, error = own["spearman_mean"], own["median_ape_percent"]
    if spearman is None or error is None:
        return False
    return bool(spearman >= SLICE_BAR_SPEARMAN and error < bar["median_ape_percent"])


_TABLE_COLUMNS = (
    ("num_rows", "rows", "{:d}"),
    ("num_families", "families", "{:d}"),
    ("mape_percent", "MAPE %", "{:.1f}"),
    ("median_ape_percent", "median APE %", "{:.1f}"),
    ("macro_mape_percent", "MAPE by kernel %", "{:.1f}"),
    ("median_kernel_mape_percent", "median kernel %", "{:.1f}"),
    ("share_within_1_25", "within 1.25x", "{:.3f}"),
    ("share_within_1_5", "1.5x", "{:.3f}"),
    ("share_within_2", "2x", "{:.3f}"),
    ("median_factor", "median factor", "{:.2f}"),
    ("p90_factor", "p90 factor", "{:.2f}"),
    ("rmse_log2", "RMSE log2", "{:.3f}"),
    ("spearman_mean", "Spearman in kernel", "{:.3f}"),
    ("regret_mean_percent", "regret %", "{:.1f}"),
    ("coverage", "coverage", "{:.3f}"),
    ("family_coverage", "by family", "{:.3f}"),
    ("families_covered", "families covered", "{:.3f}"),
)
_TABLE_HEAD = ("part", "model", *(title for _, title, _ in _TABLE_COLUMNS))


def markdown_table(parts: Mapping[str, Any]) -> str:
    """Return the metrics over all rows as a Markdown table, one line per part and model."""
    lines = [f"| {' | '.join(_TABLE_HEAD)} |", f"|{'---|' * len(_TABLE_HEAD)}"]
    lines += [f"| {' | '.join(row)} |" for row in _table_rows(parts)]
    return "\n".join(lines) + "\n"


def notebook_table(title: str, parts: Mapping[str, Any]) -> str:
    """Return the metrics over all rows as an HTML table, one line per part and model."""
    return html_table(title, _TABLE_HEAD, _table_rows(parts))


def _table_rows(parts: Mapping[str, Any]) -> Iterator[list[str]]:
    for part, models in parts.items():
        for model, table in models.items():
            block = table["all"]
            cells = [
                "-" if block.get(key) is None else form.format(block[key])
                for key, _, form in _TABLE_COLUMNS
            ]
            yield [part, model, *cells]
