"""Train a model on a dataset: prepare, fit, calibrate, score, publish.

Owns the order of these steps and the use of the parts: fit on train, select on validation,
calibrate on calibration, report test. Held-out launch configs of the train kernels
(``seen_configs``) are reported, too. ``fitting.py`` fits the models, ``trainer/run/folder.py`` owns
the folder.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from llmperf_common.features.features import feature_names
from llmperf_common.features.launch_columns import device_from_mapping
from llmperf_common.files.json_numbers import number
from llmperf_common.files.parquet_files import write_parquet
from llmperf_common.statistics.conformal import Conformal
from llmperf_common.statistics.metrics import encode
from llmperf_common.statistics.splits import Part, Split
from trainer.config import TrainConfig
from trainer.data.dataset import Texts, TrainingData, row_weights, with_activity, with_sources
from trainer.data.parts import make_split, part_sizes, row_parts, split_notes
from trainer.data.training_range import training_range
from trainer.errors import BadInput
from trainer.evaluation.calibration import check_calibration, intervals
from trainer.evaluation.scoring import (
    context,
    cut_notes,
    meets_slice_bar,
    predict_rows,
    predictions_table,
    score_parts,
)
from trainer.interface import FitData, Predictor, Progress
from trainer.life.card import model_card
from trainer.life.conductor import Conductor
from trainer.life.fitting import COMPARISONS, fit_model, out_of_fold_errors
from trainer.life.identity import LANGUAGE_MODEL, Init, run_identity
from trainer.life.opening import opened
from trainer.life.publishing import mark_published, publishing
from trainer.life.summary import RunSummary
from trainer.prediction.few_shot import few_shot_of_predictions
from trainer.registry import require_to_fit
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
    PUBLISHED_FILE,
    RANGE_FILE,
    SPLIT_FILE,
    Stage,
    check_free,
    fitted_kernels,
    read_json,
    stage_of,
    write_json,
)
from trainer.run.kernel_factors import floor_ns
from trainer.run.known_families import KnownFamilies
from trainer.run.loaded import origin_notes


def train(
    data: TrainingData,
    config: TrainConfig,
    out: Path,
    progress: Progress,
    *,
    init: Init | None = None,
    conductor: Conductor | None = None,
) -> RunSummary:
    """Train ``config.model`` on ``data`` in the folder ``out``: prepare, fit, publish.

    A second call with the same arguments resumes an interrupted run, or returns the summary of a
    published one.

    Args:
        data: the dataset's usable rows.
        config: the resolved config.
        out: the run's folder; must be new, empty, or hold a run of the same data and config.
        progress: receives one line for each step.
        init: checkpoint with the initial weights; None starts from random weights.
        conductor: communication with the other processes; needed for a language model.

    Raises:
        OutputTaken: ``out`` holds something else (``RunExists``: another run, or a running
            training).
        SplitError: The dataset has too few families (or kernels) for the split.
        BadInput: A part that is needed has no row.
        MissingExtra: The model needs a library that is not installed.
    """
    started = time.monotonic()
    identity = run_identity(data, config, init)
    check_free(out, identity, overwrite=config.train.overwrite)
    data, row_notes = with_activity(data, config.train.rows)
    if config.model == LANGUAGE_MODEL:
        data, source_notes = with_sources(data)
        row_notes += source_notes
    split = make_split(data, config.split)
    parts = row_parts(data, split)
    fit = fit_data(data, parts, config)
    with opened(out, identity, overwrite=config.train.overwrite) as folder:
        if stage_of(folder) is Stage.PUBLISHED:
            progress(
                f"{out} is finished: nothing to do (--set train.overwrite=true trains it anew)"
            )
            return published_summary(folder)
        require_to_fit(config.model)
        write_json(folder / CONFIG_FILE, _config_record(config, identity, data.identity, init))
        write_json(folder / SPLIT_FILE, split.to_json())
        sizes = ", ".join(f"{part} {rows}" for part, rows in part_sizes(parts).items())
        progress(f"split by {split.kind}: {sizes}")
        model: Predictor
        for note in row_notes:
            progress(note)
        notes = [*origin_notes(read_json(folder / CONFIG_FILE)), *row_notes]
        if config.model == LANGUAGE_MODEL:
            assert conductor is not None, "trainer/launch passes a conductor"
            check_calibration(data, parts)
            from trainer.life.language import fit_language_model  # noqa: PLC0415  (torch)

            model, prompt_notes = fit_language_model(
                folder, data, parts, fit, config, init, conductor, progress
            )
            notes += prompt_notes
        else:
            model = fit_model(config.model, fit, config, progress)
        baselines = {
            name: fit_model(name, fit, config, progress)
            for name in COMPARISONS
            if name != config.model
        }
        return _publish(
            folder,
            _Fitted(data, parts, split, fit, model, baselines, notes),
            config,
            started,
            progress,
        )


@dataclass(frozen=True, slots=True)
class _Fitted:
    data: TrainingData
    parts: Texts
    split: Split
    fit: FitData
    model: Predictor
    baselines: Mapping[str, Predictor]
    notes: Sequence[str]


def _publish(
    folder: Path, fitted: _Fitted, config: TrainConfig, started: float, progress: Progress
) -> RunSummary:
    """Calibrate, score, and write all files of a finished run."""
    data, parts, model = fitted.data, fitted.parts, fitted.model
    conformal, notes = intervals(
        data,
        parts,
        fitted.split,
        model,
        config.conformal,
        lambda: (
            out_of_fold_errors(config.model, fitted.fit, config, model, progress)
            if model.refits
            else None
        ),
    )
    unseen = np.flatnonzero(parts != Part.TRAIN)
    models = {config.model: model, **fitted.baselines}
    progress(f"predicting the {len(unseen):,} rows that were not fitted")
    predictions = predict_rows(data, unseen, models, conformal)
    metrics = {
        "schema": 1,
        "model": config.model,
        "parts": score_parts(data, parts, predictions, config.judge),
        **context(data),
    }
    metrics["meets_slice_bar"] = meets_slice_bar(metrics, config.model)
    summary = RunSummary(
        folder=folder,
        model=config.model,
        num_rows=part_sizes(parts),
        num_families=part_sizes(parts, data.family_id),
        metrics=metrics,
        notes=[
            *fitted.notes,
            *cut_notes(predictions[0]),
            *notes,
            *split_notes(data, fitted.split, parts),
        ],
        seconds=time.monotonic() - started,
    )
    with publishing(folder) as staged:
        _write_models(staged, model, fitted.baselines)
        _write_records(staged, data, parts, conformal, fitted.fit)
        table = predictions_table(data, parts, predictions)
        write_parquet(table, staged / PREDICTIONS_FILE)
        _write_few_shot(staged, table, config, data)
        write_json(staged / METRICS_FILE, metrics)
        (staged / CARD_FILE).write_text(model_card(summary, config, fitted.split), encoding="utf-8")
    mark_published(folder, _facts(summary), keep_fit=config.checkpoint.keep_after)
    return summary


def published_summary(folder: Path) -> RunSummary:
    """Return the summary of a published run.

    Raises:
        BadInput: A file is missing or damaged.
    """
    facts, metrics = read_json(folder / PUBLISHED_FILE), read_json(folder / METRICS_FILE)
    try:
        return RunSummary(
            folder=folder,
            model=str(facts["model"]),
            num_rows=dict(facts["num_rows"]),
            num_families=dict(facts["num_families"]),
            metrics=metrics,
            notes=tuple(facts["notes"]),
            seconds=number(facts["train_seconds"], "train_seconds", least=0, most=1e12),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{folder / PUBLISHED_FILE}: {error!r}; train it again") from None


def _facts(summary: RunSummary) -> dict[str, Any]:
    return {
        "model": summary.model,
        "num_rows": dict(summary.num_rows),
        "num_families": dict(summary.num_families),
        "notes": list(summary.notes),
        "train_seconds": summary.seconds,
        "versions": {
            name: _version(name) for name in ("llmperf", "lightgbm", "torch", "deepspeed")
        },
    }


def fit_data(data: TrainingData, parts: Texts, config: TrainConfig) -> FitData:
    """Return the train and validation parts.

    Raises:
        BadInput: The train part has no row.
    """
    index = np.flatnonzero(parts == Part.TRAIN)
    if len(index) == 0:
        raise BadInput("the train part has no ok row: collect more kernels or launch configs")
    # Validation uses only rows whose readings time one launch each, as the metrics do.
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
    write_json(folder / CONFORMAL_FILE, conformal.to_json())
    write_json(folder / RANGE_FILE, ranges.to_json())
    write_json(folder / DEVICE_FILE, {"schema": 1, "devices": devices})
    kernels = fitted_kernels(data.rows.kernels, data.rows.kernel_row[fitted])
    write_parquet(kernels, folder / KERNELS_FILE)
    KnownFamilies.of_data(data, fitted).save(folder)


def _write_few_shot(
    folder: Path, predictions: pa.Table, config: TrainConfig, data: TrainingData
) -> None:
    """Write ``few_shot.json``, or nothing if too few kernels were held out."""
    devices = [device_from_mapping(row) for row in data.devices.to_pylist()]
    floors = {device.device_class: floor_ns(device) for device in devices}
    try:
        found = few_shot_of_predictions(predictions, config.model, floors, config.conformal.level)
    except BadInput:
        return  # `llmperf calibrate` reports this error when it needs the file
    write_json(folder / FEW_SHOT_FILE, found.to_json())


def _config_record(
    config: TrainConfig,
    identity: Mapping[str, Any],
    dataset: Mapping[str, object],
    init: Init | None,
) -> dict[str, Any]:
    return {
        "schema": 2,
        "model": config.model,
        **identity,
        "dataset": dict(dataset),
        "init": None if init is None else init.to_json(),
        "config": config.model_dump(mode="json"),
        "features": list(feature_names()),
        "llmperf_version": _version("llmperf"),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
