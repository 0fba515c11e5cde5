"""Train a model on a dataset: split, fit, calibrate, judge, write the run.

Owns the order of these steps and which part is used for what: fit on train, choose on validation, calibrate on
calibration, report test; and, inside the train kernels, report the launch configs held out of fitting
(``seen_configs``). Does not own how a model fits (``models.py``) nor the folder (``run_folder.py``).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.conformal import Conformal
from llmperf_common.features import feature_names
from llmperf_common.ids import content_id
from llmperf_common.launch_columns import device_from_mapping
from llmperf_common.metrics import encode
from llmperf_common.splits import Part, Split
from trainer.config import TrainConfig
from trainer.data.dataset import Texts, TrainingData, row_weights
from trainer.data.parts import make_split, part_sizes, row_parts, split_notes
from trainer.data.training_range import training_range
from trainer.errors import BadInput
from trainer.evaluation.calibration import intervals
from trainer.evaluation.scoring import (
    context,
    meets_slice_bar,
    notebook_table,
    predict_rows,
    predictions_table,
    score_parts,
)
from trainer.interface import FitData, Predictor, Progress
from trainer.life.card import model_card
from trainer.life.fitting import COMPARISONS, fit_model, out_of_fold_errors
from trainer.prediction.few_shot import few_shot_of_predictions
from trainer.run.folder import (
    BASELINES_FOLDER,
    CARD_FILE,
    CONFIG_FILE,
    CONFORMAL_FILE,
    DEVICE_FILE,
    FEW_SHOT_FILE,
    KERNELS_FILE,
    METRICS_FILE,
    MODEL_FOLDER,
    PREDICTIONS_FILE,
    RANGE_FILE,
    SPLIT_FILE,
    check_free,
    fitted_kernels,
    new_folder,
    write_json,
)
from trainer.run.kernel_factors import floor_ns
from trainer.run.known_families import KnownFamilies


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What a training gave.

    Attributes:
        folder: the run.
        model: name of the trained model.
        num_rows: part to rows.
        num_families: part to families.
        metrics: content of ``metrics.json``.
        notes: what a reader of the numbers must know (small parts, missing guarantees).
        seconds: wall time.
    """

    folder: Path
    model: str
    num_rows: Mapping[str, int]
    num_families: Mapping[str, int]
    metrics: Mapping[str, Any]
    notes: Sequence[str]
    seconds: float

    def _repr_html_(self) -> str:
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        title = f"{self.model} in {self.folder}, {self.seconds:.1f} s"
        return notebook_table(title, self.metrics["parts"]) + f"<ul>{notes}</ul>"


def train(data: TrainingData, config: TrainConfig, out: Path, progress: Progress) -> RunSummary:
    """Train ``config.model`` on ``data`` and write the run to ``out``, whole or not at all.

    Args:
        data: the dataset's usable rows.
        config: the resolved tree.
        out: the run's folder; must be new, empty, or hold a run of the same data and config.
        progress: told one line a step.

    Raises:
        OutputTaken: ``out`` holds something else (``RunExists``: another run).
        SplitError: Too few families (or kernels) for the split asked for.
        BadInput: A part that is needed has no row.
        MissingExtra: The model needs a library that is not installed.
    """
    started = time.monotonic()
    identity = run_identity(data, config)
    check_free(out, identity, overwrite=config.train.overwrite)
    split = make_split(data, config.split)
    parts = row_parts(data, split)
    progress(
        f"split by {split.kind}: " + ", ".join(f"{k} {v}" for k, v in part_sizes(parts).items())
    )
    fit = fit_data(data, parts, config)
    model = fit_model(config.model, fit, config, progress)
    baselines = {
        name: fit_model(name, fit, config, progress) for name in COMPARISONS if name != config.model
    }
    conformal, notes = intervals(
        data,
        parts,
        split,
        model,
        config.conformal,
        lambda: out_of_fold_errors(config.model, fit, config, model, progress),
    )
    unseen = np.flatnonzero(parts != Part.TRAIN)
    predictions = predict_rows(data, unseen, {config.model: model, **baselines}, conformal)
    progress("scoring the rows that were not fitted")
    metrics = {
        "schema": 1,
        "model": config.model,
        "parts": score_parts(data, parts, predictions, config.judge),
        **context(data),
    }
    metrics["meets_slice_bar"] = meets_slice_bar(metrics, config.model)
    notes += split_notes(data, split, parts)
    summary = RunSummary(
        folder=out,
        model=config.model,
        num_rows=part_sizes(parts),
        num_families=part_sizes(parts, data.family_id),
        metrics=metrics,
        notes=notes,
        seconds=time.monotonic() - started,
    )
    # Checked once more: something may have been put there while the model was fitted.
    target = check_free(out, identity, overwrite=config.train.overwrite)
    with new_folder(target) as folder:
        _write_models(folder, model, baselines)
        _write_records(folder, data, parts, split, conformal, fit)
        table = predictions_table(data, parts, predictions)
        pq.write_table(table, folder / PREDICTIONS_FILE)
        _write_few_shot(folder, table, config, data)
        write_json(folder / METRICS_FILE, metrics)
        write_json(folder / CONFIG_FILE, _config_record(config, identity, data.identity, summary))
        (folder / CARD_FILE).write_text(model_card(summary, config, split), encoding="utf-8")
    return summary


def run_identity(data: TrainingData, config: TrainConfig) -> dict[str, Any]:
    """Return what tells this run from another: the hash of its config and of what the dataset planned.

    How many threads fit, whether a run may be replaced, and how far the dataset has grown since do not
    make it another run: the same command on a resumed dataset replaces its run.
    """
    neutral = config.train.model_copy(update={"overwrite": False, "num_threads": 0})
    return {
        "config_hash": config.model_copy(update={"train": neutral}).content_hash(),
        "dataset_id": content_id("dataset", data.identity["plan_hashes"]),
    }


def fit_data(data: TrainingData, parts: Texts, config: TrainConfig) -> FitData:
    """Gather the train and validation parts.

    Raises:
        BadInput: The train part has no row.
    """
    index = np.flatnonzero(parts == Part.TRAIN)
    if len(index) == 0:
        raise BadInput("the train part has no ok row: collect more kernels or launch configs")
    # Validation judges as the report does: on single launches only.
    chosen = np.flatnonzero((parts == Part.VALIDATION) & data.single_launch)
    kernel = data.rows.kernel_row[index]
    return FitData(
        rows=data.rows.take(index),
        log2_ns=data.log2_ns[index],
        family=encode(data.family_id)[index],
        weight=row_weights(data.log2_ns[index], kernel, config.train.balance),
        validation=data.rows.take(chosen) if len(chosen) else None,
        validation_log2_ns=data.log2_ns[chosen] if len(chosen) else None,
    )


def _write_models(folder: Path, model: Predictor, baselines: Mapping[str, Predictor]) -> None:
    (folder / MODEL_FOLDER).mkdir()
    model.save(folder / MODEL_FOLDER)
    for name, baseline in baselines.items():
        (folder / BASELINES_FOLDER / name).mkdir(parents=True)
        baseline.save(folder / BASELINES_FOLDER / name)


def _write_records(
    folder: Path,
    data: TrainingData,
    parts: Texts,
    split: Split,
    conformal: Conformal,
    fit: FitData,
) -> None:
    fitted = np.flatnonzero(parts == Part.TRAIN)
    ranges = training_range(fit.rows.features, feature_names(), fit.rows.kernel_row)
    used = set(data.rows.samples.column("device_id").unique().to_pylist())
    devices = [
        dataclasses.asdict(device_from_mapping(row))
        for row in data.devices.to_pylist()
        if row["device_id"] in used
    ]
    write_json(folder / SPLIT_FILE, split.to_json())
    write_json(folder / CONFORMAL_FILE, conformal.to_json())
    write_json(folder / RANGE_FILE, ranges.to_json())
    write_json(folder / DEVICE_FILE, {"schema": 1, "devices": devices})
    kernels = fitted_kernels(data.rows.kernels, data.rows.kernel_row[fitted])
    pq.write_table(kernels, folder / KERNELS_FILE)
    KnownFamilies.of_data(data, fitted).save(folder)


def _write_few_shot(
    folder: Path, predictions: pa.Table, config: TrainConfig, data: TrainingData
) -> None:
    """Write how kernels differ from their predictions; nothing where too few were held out to say."""
    devices = [device_from_mapping(row) for row in data.devices.to_pylist()]
    floors = {device.device_class: floor_ns(device) for device in devices}
    try:
        found = few_shot_of_predictions(predictions, config.model, floors, config.conformal.level)
    except BadInput:
        return  # `llmperf calibrate` says so when it is asked
    write_json(folder / FEW_SHOT_FILE, found.to_json())


def _config_record(
    config: TrainConfig,
    identity: Mapping[str, Any],
    dataset: Mapping[str, object],
    summary: RunSummary,
) -> dict[str, Any]:
    return {
        "schema": 1,
        "model": config.model,
        **identity,
        "dataset": dict(dataset),
        "config": config.model_dump(mode="json"),
        "features": list(feature_names()),
        "num_rows": dict(summary.num_rows),
        "num_families": dict(summary.num_families),
        "notes": list(summary.notes),
        "train_seconds": summary.seconds,
        "llmperf_version": _version("llmperf"),
        "lightgbm_version": _version("lightgbm") if config.model == "gbdt" else None,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
