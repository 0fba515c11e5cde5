"""Intervals of a run: calibrated on rows that neither fitted nor chose the model.

Owns which errors calibrate. A calibration part of few families cannot promise much, so out-of-fold errors of the
train part (models that did not see the family) are added there; the guarantee is then approximate, and said.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmperf_common.statistics.conformal import Conformal, calibrate, min_groups
from llmperf_common.statistics.splits import Part, Split, SplitKind
from trainer.config import ConformalConfig
from trainer.data.dataset import Texts, TrainingData
from trainer.errors import BadInput
from trainer.interface import Codes, Floats, Predicted, Predictor

OutOfFold = Callable[[], tuple[Floats, Codes] | None]
"""Gives ``scores`` of fit rows by models that did not see their family, and which of the fit rows these are, both
shape (m,); None where that cannot be done (a model that is not fitted again within seconds)."""


def scores(said: Predicted, log2_ns: Floats) -> Floats:
    """Return log2(measured / predicted), over the spread where the model gives one, shape (n,)."""
    errors = log2_ns - said.log2_ns
    return errors if said.spread is None else errors / said.spread


def check_calibration(data: TrainingData, parts: Texts) -> None:
    """Assert, before a model is fitted that is not fitted again, that there are rows to calibrate it on.

    Raises:
        BadInput: There is none.
    """
    if not np.any((parts == Part.CALIBRATION) & data.single_launch):
        raise BadInput(_NO_ROW)


_NO_ROW = "the calibration part has no ok row that times one launch: collect more kernels, or larger launches"


def intervals(
    data: TrainingData,
    parts: Texts,
    split: Split,
    model: Predictor,
    config: ConformalConfig,
    out_of_fold: OutOfFold,
) -> tuple[Conformal, list[str]]:
    """Calibrate on the calibration part, helped by out-of-fold errors where its families are too few.

    A model that gives a spread a row has its errors divided by it (``llmperf_common/statistics/conformal.py``).

    Returns:
        The intervals, and notes for the reader of the run.

    Raises:
        BadInput: No row can calibrate.
    """
    rows = np.flatnonzero((parts == Part.CALIBRATION) & data.single_launch)
    said = model.predict(data.rows.take(rows))
    found_scores = scores(said, data.log2_ns[rows])
    source, notes = "calibration", []
    by_family = split.kind is not SplitKind.CONFIG
    needed = min_groups(config.level)
    num_families = len(np.unique(data.family_id[rows]))
    if by_family and num_families < 2 * needed:
        too_few = (
            f"intervals: the calibration part has {num_families} families, too few for "
            f"{config.level:.0%}"
        )
        found = out_of_fold()
        if found is not None:
            fit_rows = np.flatnonzero(parts == Part.TRAIN)[found[1]]
            single = data.single_launch[fit_rows]
            found_scores = np.concatenate([found_scores, found[0][single]])
            rows = np.concatenate([rows, fit_rows[single]])
            source = "calibration+cross"
            notes.append(f"{too_few}; out-of-fold errors of the train part were added")
        else:
            why = (
                "the train part has too few families"
                if model.refits
                else f"{model.name} is not fitted again on a part of the families"
            )
            notes.append(
                f"{too_few}, and no out-of-fold errors could be added, because {why}: the intervals "
                "rest on these few families"
            )
    if len(rows) == 0:
        raise BadInput(_NO_ROW)
    conformal = calibrate(
        found_scores,
        level=config.level,
        groups=data.family_id[rows] if by_family else None,
        bins=data.texts("regime")[rows] if config.by_regime else None,
        source=source,
        by_spread=said.spread is not None,
    )
    if conformal.pooled.guarantee == "none":
        notes.append(
            f"intervals: {conformal.pooled.num_groups} families are fewer than the {needed} that "
            f"{config.level:.0%} needs: the largest error seen is used, without guarantee"
        )
    return conformal, notes
