"""Intervals of a run: calibrated on rows that neither fitted nor chose the model.

Owns which errors calibrate. A calibration part of few families cannot promise much, so out-of-fold errors of the
train part (models that did not see the family) are added there; the guarantee is then approximate, and said.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmperf_common.conformal import Conformal, calibrate, min_groups
from llmperf_common.splits import Part, Split, SplitKind
from trainer.config import ConformalConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.errors import BadInput
from trainer.interface import Codes, Floats, Predictor

OutOfFold = Callable[[], tuple[Floats, Codes] | None]
"""Gives log2(measured / predicted) of fit rows by models that did not see their family, and which of the
fit rows these are, both shape (m,); None where that cannot be done."""


def intervals(
    data: TrainingData,
    parts: Texts,
    split: Split,
    model: Predictor,
    config: ConformalConfig,
    out_of_fold: OutOfFold,
) -> tuple[Conformal, list[str]]:
    """Calibrate on the calibration part, helped by out-of-fold errors where its families are too few.

    Returns:
        The intervals, and notes for the reader of the run.

    Raises:
        BadInput: No row can calibrate.
    """
    index = np.flatnonzero((parts == Part.CALIBRATION) & data.single_launch)
    errors = data.log2_ns[index] - model.predict(data.rows.take(index)).log2_ns
    rows, source, notes = index, "calibration", []
    by_family = split.kind is not SplitKind.CONFIG
    needed = min_groups(config.level)
    num_families = len(np.unique(data.family_id[index]))
    if by_family and num_families < 2 * needed:
        found = out_of_fold()
        if found is not None:
            fit_rows = np.flatnonzero(parts == Part.TRAIN)[found[1]]
            single = data.single_launch[fit_rows]
            errors = np.concatenate([errors, found[0][single]])
            rows = np.concatenate([rows, fit_rows[single]])
            source = "calibration+cross"
            notes.append(
                f"intervals: the calibration part has {num_families} families, too few for "
                f"{config.level:.0%}; out-of-fold errors of the train part were added"
            )
    if len(rows) == 0:
        raise BadInput("the calibration part has no ok row that times one launch")
    conformal = calibrate(
        errors,
        level=config.level,
        groups=data.family_id[rows] if by_family else None,
        bins=data.texts("regime")[rows] if config.by_regime else None,
        source=source,
    )
    if conformal.pooled.guarantee == "none":
        notes.append(
            f"intervals: {conformal.pooled.num_groups} families are fewer than the {needed} that "
            f"{config.level:.0%} needs: the largest error seen is used, without guarantee"
        )
    return conformal, notes
