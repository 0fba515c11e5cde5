"""Evaluation of kernels whose predictions are corrected by a factor from measured launches.

Owns the choice of rows to score and the corrected predictions. A launch from which a kernel's
factor was computed is never scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainer.data.dataset import TrainingData
from trainer.errors import BadInput
from trainer.evaluation.scoring import Prediction
from trainer.run.answers import check_intervals
from trainer.run.kernel_factors import corrected, floor_ns
from trainer.run.loaded import LoadedRun

AS_TRAINED = "-as-trained"
"""Suffix of the model's name that marks its uncorrected predictions, beside the corrected ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The rows to score (``index``), and how many rows were left out."""

    index: npt.NDArray[np.intp]
    num_left_out: int


def without_measured(run: LoadedRun, data: TrainingData, index: npt.NDArray[np.intp]) -> Kept:
    """Leave out the launches from which the run's factors were measured.

    Raises:
        BadInput: No row remains.
    """
    if run.factors is None:
        return Kept(index=index, num_left_out=0)
    used = {name for one in run.factors.factors.values() for name in one.sample_ids}
    measured = np.isin(data.texts("sample_id")[index], sorted(used))
    if len(index) and measured.all():
        raise BadInput(
            f"all {len(index)} rows were used by `llmperf calibrate` to measure their kernels' "
            "factors, so none is left to score: calibrate again with --launches N, which uses only "
            "N launches of each kernel, or evaluate other data"
        )
    return Kept(index=index[~measured], num_left_out=int(measured.sum()))


def with_factors(
    run: LoadedRun, data: TrainingData, prediction: Prediction
) -> tuple[list[Prediction], list[str]]:
    """Return the corrected prediction and the uncorrected one, and a note about the two.

    If no row belongs to a measured kernel, return ``prediction`` alone and no note.
    """
    if run.factors is None:
        return [prediction], []
    log2_ns = prediction.log2_ns.copy()
    low, high = (
        np.full(len(log2_ns), np.nan) if ends is None else ends.copy()
        for ends in (prediction.low_ns, prediction.high_ns)
    )
    rows_of: dict[tuple[str, str], list[int]] = {}
    keys = (data.texts(name)[prediction.index].tolist() for name in ("kernel_id", "device_class"))
    for place, key in enumerate(zip(*keys, strict=True)):
        rows_of.setdefault(key, []).append(place)
    num_rows = num_kernels = 0
    for key in rows_of.keys() & run.factors.factors.keys():
        factor, rows = run.factors.factors[key], rows_of[key]
        floor = floor_ns(run.devices.get(factor.device_class))
        own = corrected(run.factors.few_shot, factor, prediction.log2_ns[rows], floor)
        log2_ns[rows] = own.log2_ns
        with np.errstate(over="ignore"):  # checked next
            low[rows] = np.exp2(own.log2_ns - own.half_width_log2)
            high[rows] = np.exp2(own.log2_ns + own.half_width_log2)
        check_intervals(low[rows], high[rows], run.where)
        num_rows, num_kernels = num_rows + len(rows), num_kernels + 1
    if num_rows == 0:
        return [prediction], []
    note = (
        f"{num_rows} rows of {num_kernels} kernels are corrected by factors that `llmperf "
        f"calibrate` measured; {prediction.model}{AS_TRAINED} is the model without these factors"
    )
    changed = replace(prediction, log2_ns=log2_ns, low_ns=low, high_ns=high)
    return [changed, replace(prediction, model=prediction.model + AS_TRAINED)], [note]
