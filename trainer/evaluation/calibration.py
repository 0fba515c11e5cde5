"""Intervals of a run, calibrated on rows that were used neither to fit nor to select the model.

Owns the choice of errors to calibrate on. Where the calibration part has few families, out-of-fold
errors of the train part are added. The coverage guarantee is then only approximate; a note says so.
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
"""Return the ``scores`` of m fit rows, and these rows' positions among the fit rows, shape (m,).

Each row is predicted by a model that was fitted without the row's family. None if no such model can
be fitted: the model's fit takes too long, or the train part has too few families."""


def scores(said: Predicted, log2_ns: Floats) -> Floats:
    """Return log2(measured / predicted), divided by the model's spread if any, shape (n,)."""
    errors = log2_ns - said.log2_ns
    return errors if said.spread is None else errors / said.spread


def check_calibration(data: TrainingData, parts: Texts) -> None:
    """Check before a long fit that the calibration part has a usable row.

    Raises:
        BadInput: The calibration part has no usable row.
    """
    if not np.any((parts == Part.CALIBRATION) & data.single_launch):
        raise BadInput(_NO_ROW)


_NO_ROW = (
    "the calibration part has no ok row whose readings time one launch each: "
    "collect more kernels, or larger launches"
)


def intervals(
    data: TrainingData,
    parts: Texts,
    split: Split,
    model: Predictor,
    config: ConformalConfig,
    out_of_fold: OutOfFold,
) -> tuple[Conformal, list[str]]:
    """Calibrate on the calibration part; add out-of-fold errors if it has too few families.

    Where the model gives a spread by row, errors are divided by the spread
    (``llmperf_common/statistics/conformal.py``).

    Returns:
        The intervals, and notes for the reader of the run.

    Raises:
        BadInput: There is no row to calibrate on.
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
                else f"a fit of {model.name} takes too long to repeat it on a part of the families"
            )
            notes.append(
                f"{too_few}, and no out-of-fold errors could be added, because {why}: the "
                "intervals rest on these few families"
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
            f"{config.level:.0%} needs: the half width is the largest error seen, without guarantee"
        )
    return conformal, notes
