"""How each model is fitted, by name.

A new model joins here with a branch in ``fit_model``, in ``trainer/registry.py`` with its class, and in
``TrainConfig.model`` with its name, if it is to be trained and not only compared with.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainer.baselines.gbdt import Gbdt, family_folds, fit_gbdt, subset
from trainer.baselines.nearest_kernel import NearestKernel
from trainer.baselines.roofline import AnalyticRoofline
from trainer.baselines.simple import GlobalMedian, LaunchFloorLogLinear
from trainer.config import TrainConfig
from trainer.evaluation.calibration import scores
from trainer.interface import Codes, FitData, Floats, Predictor, Progress

COMPARISONS: Final = ("global-median", "log-linear", "roofline", "nearest-kernel")
"""Fitted and reported beside whatever is trained."""


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
        name: one of ``TrainConfig.model``'s, or of ``COMPARISONS``.
        data: what to fit.
        config: the whole tree.
        progress: told of long steps.
        like: a fitted model of the same name whose choices are taken over (out-of-fold refits).

    Raises:
        ValueError: The name is not known.
        MissingExtra: The model's library is not installed.
    """
    if name == "gbdt":
        chosen = like if isinstance(like, Gbdt) else None
        return fit_gbdt(data, fit=config.train, config=config.gbdt, progress=progress, like=chosen)
    if name == "log-linear":
        return LaunchFloorLogLinear.fit(data, ridge=config.log_linear.ridge)
    if name == "global-median":
        return GlobalMedian.fit(data)
    if name == "roofline":
        return AnalyticRoofline.fit(data)
    if name == "nearest-kernel":
        return NearestKernel.fit(data)
    raise ValueError(f"model {name!r} is not one that train knows")


def out_of_fold_errors(
    name: str, data: FitData, config: TrainConfig, fitted: Predictor, progress: Progress
) -> tuple[Floats, Codes] | None:
    """Return the scores (``calibration.scores``) of every fit row by models that did not see its family.

    Returns:
        Scores and the index of their rows, both shape (n,); None with fewer than 3 families, or for a model that is
        not fitted again within seconds.
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
