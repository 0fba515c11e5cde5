"""The rows of a predictions file that show how much the errors of kernels differ.

``few_shot.py`` learns the distribution of kernels' factors (its prior) from them.

Owns the choice of the rows, and the check of their times.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.statistics.conformal import min_groups
from llmperf_common.statistics.splits import Part
from trainer.errors import BadInput

USED_PREDICTIONS: Final = pa.schema(
    [
        *(
            pa.field(name, pa.string(), nullable=False)
            for name in ("kernel_id", "family_id", "split", "model", "device_class")
        ),
        pa.field("median_ns", pa.float64(), nullable=False),
        pa.field("predicted_ns", pa.float64(), nullable=False),
    ]
)
"""The columns of ``PREDICTIONS`` that are read."""

_SHORTEST_NS, _LONGEST_NS = 1e-9, 1e30
"""Limits of times in ns, far beyond those of launches. Their ratio is a finite number."""


def calibration_rows(predictions: pa.Table, model: str, level: float) -> tuple[pa.Table, str]:
    """Return a model's predictions of the calibration part, and the name of the part.

    If the part has fewer families than an interval needs, the validation part is added, although
    errors are smaller there because that part selected the model.

    Args:
        predictions: a table with the columns ``USED_PREDICTIONS``.
        model: name of the model in ``predictions``.
        level: wanted coverage.

    Raises:
        BadInput: There is no such row, or a time is impossible.
    """
    own = predictions.filter(pc.equal(predictions.column("model"), model))
    wanted: list[Part] = [Part.CALIBRATION]
    calibration = own.filter(pc.equal(own.column("split"), Part.CALIBRATION.value))
    if pc.count_distinct(calibration.column("family_id")).as_py() < min_groups(level):
        wanted.append(Part.VALIDATION)
    rows = own.filter(pc.is_in(own.column("split"), pa.array([part.value for part in wanted])))
    if len(rows) == 0:
        raise BadInput(f"no prediction of {model} on the calibration part: train the run again")
    for name in ("median_ns", "predicted_ns"):
        times = rows.column(name).to_numpy()
        num_odd = int(np.sum(~((times > _SHORTEST_NS) & (times < _LONGEST_NS))))
        if num_odd:
            raise BadInput(
                f"{name} of {num_odd:,} predictions of {model} is not the time of a launch: train "
                "the run again"
            )
    return rows, "+".join(part.value for part in wanted)
