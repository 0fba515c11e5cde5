"""What a language model predicts a correction to: nothing, the roofline, or gradient boosting.

A boosted model knows the rows it was fitted on too well to leave a fair rest. So each train row's offset comes from a
model that did not see its family; the rows of other parts get theirs from the model fitted on all of the train part.
"""

from __future__ import annotations

import numpy as np

from trainer.baselines.gbdt import family_folds, subset
from trainer.config import TrainConfig
from trainer.data.dataset import TrainingData
from trainer.errors import BadInput
from trainer.interface import FitData, Floats, Predictor, Progress
from trainer.life.fitting import fit_model

_FOLDS = 5


def fitted_offset(
    config: TrainConfig,
    data: TrainingData,
    train_rows: np.ndarray[tuple[int], np.dtype[np.intp]],
    train: FitData,
    progress: Progress,
) -> tuple[Predictor | None, Floats]:
    """Return the model that is corrected, and log2(ns) of it for all n rows of the dataset, shape (n,).

    Args:
        config: the whole tree; ``regressor.offset`` names the model.
        data: the dataset.
        train_rows: its rows of the train part, in the order of ``train``.
        train: the train part.
        progress: told of each fold.

    Raises:
        BadInput: The train part has one family, so that no model has not seen it.
    """
    name = config.regressor.offset
    if name == "none":
        return None, np.zeros(len(data))
    if name != "roofline" and len(np.unique(train.family)) < 2:
        raise BadInput(
            f"regressor.offset={name}: the train part has one family, and a row's offset comes from a model that "
            "has not seen its family: collect more kernels, or say --set regressor.offset=roofline"
        )
    progress(f"offset: fitting {name} on the train part")
    model = fit_model(name, train, config, progress)
    log2_ns = model.predict(data.rows).log2_ns
    if name == "roofline":  # it is computed, not fitted to the rows
        return model, log2_ns
    folds = list(family_folds(train.family, _FOLDS, config.train.seed))
    for number, held_out in enumerate(folds, start=1):
        progress(f"offset: {name} without fold {number} of {len(folds)} of the train families")
        inner = fit_model(
            name, subset(train, np.flatnonzero(~held_out)), config, _silent, like=model
        )
        outer = np.flatnonzero(held_out)
        log2_ns[train_rows[outer]] = inner.predict(train.rows.take(outer)).log2_ns
    return model, log2_ns


def _silent(_line: str) -> None:
    return None
