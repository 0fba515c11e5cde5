"""Fitting of each model by its name.

A new model needs a branch in ``fit_model`` and its class in ``trainer/registry.py``. If users can
train it, it also needs its name in ``TrainConfig.model``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import numpy as np

from llmperf_common.extras import require
from llmperf_common.features.features import feature_names, is_counted, uncounted_feature_names
from trainer.baselines.feature_ensemble import FeatureEnsemble
from trainer.baselines.feature_network import FeatureNetwork, spread_scale
from trainer.baselines.gbdt import Gbdt, family_folds, fit_gbdt, grow_forest, subset
from trainer.baselines.nearest_kernel import NearestKernel
from trainer.baselines.roofline import AnalyticRoofline
from trainer.baselines.simple import GlobalMedian, LaunchFloorLogLinear
from trainer.config import TrainConfig
from trainer.evaluation.calibration import scores
from trainer.interface import Codes, FitData, Floats, Predictor, Progress
from trainer.run.folder import MODEL_FOLDER

COMPARISONS: Final = ("global-median", "log-linear", "roofline", "nearest-kernel")
"""Baselines that are fitted and reported beside the trained model."""


def fit_model(
    name: str,
    data: FitData,
    config: TrainConfig,
    progress: Progress,
    *,
    like: Predictor | None = None,
) -> Predictor:
    """Fit the model ``name``.

    Args:
        name: a value of ``TrainConfig.model``, or one of ``COMPARISONS``.
        data: rows and targets.
        config: the whole config.
        progress: receives lines about long steps.
        like: a fitted model of the same name whose hyper-parameters are reused (out-of-fold fits).

    Raises:
        ValueError: The name is unknown.
        MissingExtra: The model's library is not installed.
    """
    model: Predictor
    match name:
        case "gbdt":
            model = _gbdt(data, config, progress, like)
        case "feature-network":
            model = _feature_network(data, config, progress)
        case "feature-ensemble":
            model = _feature_ensemble(data, config, progress)
        case "log-linear":
            model = LaunchFloorLogLinear.fit(data, ridge=config.log_linear.ridge)
        case "global-median":
            model = GlobalMedian.fit(data)
        case "roofline":
            model = AnalyticRoofline.fit(data)
        case "nearest-kernel":
            model = NearestKernel.fit(data)
        case _:
            raise ValueError(f"model {name!r} is not one that train knows")
    return model


def _gbdt(data: FitData, config: TrainConfig, progress: Progress, like: Predictor | None) -> Gbdt:
    chosen = like if isinstance(like, Gbdt) else None
    return fit_gbdt(data, fit=config.train, config=config.gbdt, progress=progress, like=chosen)


def _feature_network(
    data: FitData, config: TrainConfig, progress: Progress, names: tuple[str, ...] | None = None
) -> FeatureNetwork:
    require("torch", "train")
    from trainer.fit.feature_network import fit_feature_network  # noqa: PLC0415  (torch)

    return fit_feature_network(
        data, fit=config.train, config=config.feature_network, progress=progress, names=names
    )


def _feature_ensemble(data: FitData, config: TrainConfig, progress: Progress) -> FeatureEnsemble:
    """Fit an ensemble without work features.

    If enough kernels have counted work, also fit one with work features.
    """
    base = config.feature_ensemble.base
    if base:
        progress(f"feature-ensemble: {base} predicts launches without counted work")
        model = FeatureEnsemble.load(Path(base) / MODEL_FOLDER).without_counted()
    else:
        model = _ensemble(data, config, progress, uncounted_feature_names())
    known = np.flatnonzero(is_counted(data.rows.features))
    num_kernels = len(np.unique(data.rows.kernel_row[known]))
    if num_kernels < config.feature_ensemble.min_counted_kernels:
        return model
    progress(f"feature-ensemble: {num_kernels:,} kernels with counted work")
    counted = subset(data, known)
    if data.validation is not None and data.validation_log2_ns is not None:
        judged = np.flatnonzero(is_counted(data.validation.features))
        if len(judged):
            counted = dataclasses.replace(
                counted,
                validation=data.validation.take(judged),
                validation_log2_ns=data.validation_log2_ns[judged],
            )
    return dataclasses.replace(model, counted=_ensemble(counted, config, progress, feature_names()))


def _ensemble(
    data: FitData, config: TrainConfig, progress: Progress, names: tuple[str, ...]
) -> FeatureEnsemble:
    forest, names = grow_forest(data, fit=config.train, config=config.feature_ensemble, names=names)
    progress(f"feature-ensemble: {len(forest.root)} trees")
    network = _feature_network(data, config, progress, names)
    model = FeatureEnsemble(
        network=network,
        forest=forest,
        forest_names=names,
        caution=config.feature_ensemble.caution,
        spread_scale=1.0,
        chosen={"seed": config.train.seed, **config.feature_ensemble.model_dump(mode="json")},
    )
    if data.validation is None or data.validation_log2_ns is None:
        return model
    scale = spread_scale(model.predict(data.validation), data.validation_log2_ns)
    return dataclasses.replace(model, spread_scale=scale)


def out_of_fold_errors(
    name: str, data: FitData, config: TrainConfig, fitted: Predictor, progress: Progress
) -> tuple[Floats, Codes] | None:
    """Return out-of-fold ``calibration.scores`` of all fit rows, with whole families in each fold.

    Returns:
        Scores, and positions of their rows, both shape (n,). None with fewer than 3 families, or
        for a model whose fit takes too long (``Predictor.refits`` is false).
    """
    if not fitted.refits or len(np.unique(data.family)) < 3:
        return None
    errors, rows = [], []
    for held_out in family_folds(data.family, config.conformal.cross_folds, config.train.seed):
        inner, outer = np.flatnonzero(~held_out), np.flatnonzero(held_out)
        model = fit_model(name, subset(data, inner), config, _silent, like=fitted)
        errors.append(scores(model.predict(data.rows.take(outer)), data.log2_ns[outer]))
        rows.append(outer.astype(np.int64))
    progress(f"{name}: out-of-fold errors over {len(errors)} folds of families")
    return np.concatenate(errors), np.concatenate(rows)


def _silent(_line: str) -> None:
    return None
