"""The last check of a run's predictions, whatever its files say.

The readers of a run's files check each number alone. Numbers that are possible alone can still give
a time or an interval that is not a number, so the predictions are checked, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainer.data.foreign_files import MEND
from trainer.errors import BadInput
from trainer.interface import MOST_LOG2_NS, Floats, Predicted, Predictor, Rows


def checked_prediction(model: Predictor, rows: Rows, where: str) -> Predicted:
    """Return the model's prediction of the rows.

    Args:
        model: the model.
        rows: n launches.
        where: names the run and the model in the message.

    Raises:
        BadInput: A time is not a finite number that a launch can take, a spread is not a finite
            number of at least 0, or there are not n of them.
    """
    with np.errstate(all="ignore"):
        said = model.predict(rows)
    if not _are_within(said.log2_ns, len(rows), -MOST_LOG2_NS, MOST_LOG2_NS):
        raise BadInput(f"{where} predicts a time that no launch can take; {MEND}")
    if said.spread is not None and not _are_within(said.spread, len(rows), 0.0, np.inf):
        raise BadInput(
            f"{where} predicts a spread (the expected error of a time) that is negative, not "
            f"finite or missing for a row; {MEND}"
        )
    return said


def check_spread(said: Predicted, by_spread: bool, where: str) -> None:
    """Raise BadInput if intervals are multiples of a spread that the model does not predict."""
    if by_spread and said.spread is None:
        raise BadInput(
            f"{where} predicts no spread, but the intervals in conformal.json need one; {MEND}"
        )


def check_intervals(low_ns: Floats, high_ns: Floats, where: str) -> None:
    """Raise BadInput unless all intervals are finite and begin before their ends."""
    if not np.all((low_ns >= 0) & (low_ns <= high_ns) & np.isfinite(high_ns)):
        raise BadInput(f"{where} gives an interval that is not finite; {MEND}")


def _are_within(values: npt.NDArray[np.float64], num: int, least: float, most: float) -> bool:
    return values.shape == (num,) and bool(
        np.all((values >= least) & (values <= most) & np.isfinite(values))
    )
