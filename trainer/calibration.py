"""Intervals of a run: calibrated on rows that neither fitted nor chose the model.

Owns which errors calibrate. A calibration part of few families cannot promise much, so out-of-fold errors of the
train part (models that did not see the family) are added there; the guarantee is then approximate, and said.
"""

from __future__ import annotations

import numpy as np

from llmperf_common.conformal import Conformal, calibrate, min_groups
from llmperf_common.splits import Part, Split, SplitKind
from trainer.config import TrainConfig
from trainer.data import Texts, TrainingData
from trainer.errors import BadInput
from trainer.interface import FitData, Predictor, Progress
from trainer.models import out_of_fold_errors


def intervals(
    data: TrainingData,
    parts: Texts,
    split: Split,
    fit: FitData,
    model: Predictor,
    config: TrainConfig,
    progress: Progress,
) -> tuple[Conformal, list[str]]:
    """Calibrate on the calibration part, helped by out-of-fold errors where its families are too few.

    Returns:
        The intervals, and notes for the reader of the run.

    Raises:
        BadInput: No row can calibrate.
    """
    index = np.flatnonzero((parts == Part.CALIBRATION) & data.single_launch)
    errors = data.log2_ns[index] - model.predict_log2_ns(data.rows.take(index))
    rows, source, notes = index, "calibration", []
    by_family = split.kind is not SplitKind.CONFIG
    needed = min_groups(config.conformal.level)
    num_families = len(np.unique(data.family_id[index]))
    if by_family and num_families < 2 * needed:
        found = out_of_fold_errors(config.model, fit, config, model, progress)
        if found is not None:
            fit_rows = np.flatnonzero(parts == Part.TRAIN)[found[1]]
            single = data.single_launch[fit_rows]
            errors = np.concatenate([errors, found[0][single]])
            rows = np.concatenate([rows, fit_rows[single]])
            source = "calibration+cross"
            notes.append(
                f"intervals: the calibration part has {num_families} families, too few for "
                f"{config.conformal.level:.0%}; out-of-fold errors of the train part were added"
            )
    if len(rows) == 0:
        raise BadInput("the calibration part has no ok row that times one launch")
    conformal = calibrate(
        errors,
        level=config.conformal.level,
        groups=data.family_id[rows] if by_family else None,
        bins=data.texts("regime")[rows] if config.conformal.by_regime else None,
        source=source,
    )
    if conformal.pooled.guarantee == "none":
        notes.append(
            f"intervals: {conformal.pooled.num_groups} families are fewer than the {needed} that "
            f"{config.conformal.level:.0%} needs: the largest error seen is used, without guarantee"
        )
    return conformal, notes
