"""The prediction that a language model corrects (its offset): none, roofline or boosted trees.

Boosted trees have smaller errors on the rows that they were fitted on than on new rows. Therefore
the offset of a train row comes from a model fitted without the row's family; the offset of other
rows comes from the model fitted on the whole train part.
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
    """Return the offset model (or None), and its log2(ns) for all n rows, shape (n,).

    Args:
        config: the whole config; ``regressor.offset`` names the model.
        data: the dataset.
        train_rows: positions of the train part's rows, in the order of ``train``.
        train: the train part.
        progress: receives a line for each fold.

    Raises:
        BadInput: The train part has only one family, so no model can be fitted without this family.
    """
    name = config.regressor.offset
    if name == "none":
        return None, np.zeros(len(data))
    if name != "roofline" and len(np.unique(train.family)) < 2:
        raise BadInput(
            f"regressor.offset={name}: the train part has one family, but a row's offset needs a "
            "model fitted on other families: collect more kernels, or give --set "
            "regressor.offset=roofline"
        )
    progress(f"offset: fitting {name} on the train part")
    model = fit_model(name, train, config, progress)
    log2_ns = model.predict(data.rows).log2_ns
    if name == "roofline":  # computed, not fitted on the rows
        return model, log2_ns
    folds = list(family_folds(train.family, _FOLDS, config.train.seed))
    for number, held_out in enumerate(folds, start=1):
        progress(
            f"offset: fitting {name} without fold {number} of {len(folds)} of the train families"
        )
        inner = fit_model(
            name, subset(train, np.flatnonzero(~held_out)), config, _silent, like=model
        )
        outer = np.flatnonzero(held_out)
        log2_ns[train_rows[outer]] = inner.predict(train.rows.take(outer)).log2_ns
    return model, log2_ns


def _silent(_line: str) -> None:
    return None
