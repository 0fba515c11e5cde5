"""Learn how kernels differ from their predictions, and from a few launches of one kernel how that one does.

The error of a model on a kernel is nearly one factor: its shape over sizes is right, its level is not. So the level is
estimated from measured launches, by Bayes' rule on a grid:

* a launch's residual, its kernel's factor taken off, is Student-t about 0: one odd launch moves little;
* a launch near the floor hardly depends on the factor, so it says little about it, without a rule of its own;
* the prior of factors is a mixture of normals about 0. Its weights and the noise are those that make the calibration
  part most likely (empirical Bayes; Stephens 2017, *False discovery rates: a new deal*). It shrinks the factor of a kernel
  with one noisy launch, and lets one go that is clearly off by ten.

Intervals are conformal, by family, at each number of launches: calibration kernels are measured at some launches and
scored at their others, with a prior from families that are not theirs. The promise is for launches that are drawn as
the measured ones were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.statistics.conformal import Band, conformal_quantile, min_groups
from llmperf_common.statistics.metrics import encode
from llmperf_common.statistics.splits import Part
from trainer.errors import BadInput
from trainer.interface import Codes, Floats
from trainer.run.kernel_factors import FewShot, expected_error, rescaled, work_share

NUM_LAUNCHES: Final = (1, 2, 3, 5, 10, 20)
"""Numbers of measured launches with a band of their own."""

_GRID = np.linspace(-12.0, 12.0, 481)
"""Factors in log2: from 1/4096 to 4096 in steps of 3.5 %."""
_SCALES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_NOISES = np.geomspace(0.02, 1.28, 13)
_DEGREES_OF_FREEDOM = 3.0
_EM_STEPS = 60
_FIT_LAUNCHES = 16
"""Launches of a kernel for the prior: more would only describe how its shape is off."""
_ANY_FACTOR = 1.0
"""Families added that could have any factor: five well predicted families are no proof for the
sixth."""
_ROWS_AT_ONCE = 8192
"""Launches compared with the whole grid at once: some arrays of 32 MB each."""
_DRAWS = 3
"""Times that each calibration kernel is measured anew for the bands."""
_FEWEST_FAMILIES = 4
"""Families from which a kernel is scored with a prior of the other half of the families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Measured launches with what the model says of them, n rows.

    Attributes:
        log2_measured: log2 of the measured times in ns, shape (n,).
        log2_predicted: what the model says, shape (n,).
        share: of the predicted time that is work (``work_share``), shape (n,).
        kernel: codes of (kernel, device class) from 0 on, shape (n,).
        family: codes, shape (n,).
    """

    log2_measured: Floats
    log2_predicted: Floats
    share: Floats
    kernel: Codes
    family: Codes

    def take(self, index: npt.NDArray[np.intp]) -> Launches:
        """Return the rows at ``index``; kernels keep their codes."""
        return Launches(
            log2_measured=self.log2_measured[index],
            log2_predicted=self.log2_predicted[index],
            share=self.share[index],
            kernel=self.kernel[index],
            family=self.family[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What is known of the factors of k kernels, shape (k,) each, in log2."""

    median: Floats
    sd: Floats


def fit_few_shot(launches: Launches, *, level: float, source: str, seed: int = 0) -> FewShot:
    """Learn the prior, the noise and the bands from kernels that were not fitted.

    Args:
        launches: of the calibration part.
        level: wanted coverage.
        source: kept in the record.
        seed: of which launches count as measured.

    Raises:
        BadInput: No kernel has two launches.
    """
    generator = np.random.default_rng(seed)
    weights, noise = _fit_prior(launches, generator)
    folds = _folds(launches.family, generator)
    priors = [
        _fit_prior(launches.take(np.flatnonzero(folds != fold)), generator)
        if folds.any()
        else (weights, noise)
        for fold in (0, 1)
    ]
    bands: dict[int, Band] = {}
    for number in NUM_LAUNCHES:
        scores, owners = [], []
        for _ in range(_DRAWS):
            rank = _rank_within(launches.kernel, generator)
            enough = np.bincount(launches.kernel)[launches.kernel] > number
            for fold, (fold_weights, fold_noise) in enumerate(priors):
                inside = (folds == fold) & enough
                measured = np.flatnonzero(inside & (rank < number))
                held_out = np.flatnonzero(inside & (rank >= number))
                scores.append(
                    _scores(launches, measured, held_out, fold_weights, fold_noise, noise)
                )
                owners.append(launches.family[held_out])
        joined, families = np.concatenate(scores), np.concatenate(owners)
        if len(joined) and (not bands or len(np.unique(families)) >= min_groups(level)):
            bands[number] = conformal_quantile(joined, families, level)
    if not bands:
        raise BadInput("the calibration part has no kernel with two launches: collect more of them")
    return FewShot(
        scales_log2=_SCALES,
        weights=tuple(weights.tolist()),
        noise_log2=noise,
        level=level,
        bands=bands,
        source=source,
    )


def posterior(few_shot: FewShot, launches: Launches, num_kernels: int) -> Posterior:
    """Return what the launches say about the factors of ``num_kernels`` kernels, by their codes."""
    return _posterior(launches, np.array(few_shot.weights), few_shot.noise_log2, num_kernels)


def _posterior(launches: Launches, weights: Floats, noise: float, num_kernels: int) -> Posterior:
    log_density = _log_likelihood(launches, noise, num_kernels) + np.log(_prior(weights))
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    reached = np.cumsum(density, axis=1)
    # Between two points of the grid: a step of the grid is no smaller than some differences that matter.
    above = np.argmax(reached >= 0.5, axis=1)
    rows = np.arange(num_kernels)
    over = (reached[rows, above] - 0.5) / density[rows, above]
    step = _GRID[1] - _GRID[0]
    mean = density @ _GRID
    variance = np.sum(density * (_GRID - mean[:, None]) ** 2, axis=1)
    return Posterior(median=_GRID[above] + (0.5 - over) * step, sd=np.sqrt(variance))


def _log_likelihood(launches: Launches, noise: float, num_kernels: int) -> Floats:
    """Log of the likelihood of each factor of the grid for each kernel, shape (k, g)."""
    power = (_DEGREES_OF_FREEDOM + 1) / 2
    error = launches.log2_measured - launches.log2_predicted
    found = np.zeros((num_kernels, len(_GRID)))
    for start in range(0, len(error), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        change, _ = rescaled(launches.share[rows, None], _GRID[None])
        square = ((error[rows, None] - change) / noise) ** 2
        each = -power * np.log1p(square / _DEGREES_OF_FREEDOM) - np.log(noise)
        np.add.at(found, launches.kernel[rows], each)
    return found


def _parts() -> Floats:
    """The density of each normal part of the prior on the grid, shape (c, g); each sums to 1."""
    each = np.exp(-0.5 * (_GRID[None] / np.array(_SCALES)[:, None]) ** 2)
    return np.asarray(each / each.sum(axis=1, keepdims=True))


def _prior(weights: Floats) -> Floats:
    # A little of everything: a kernel unlike all of the calibration part must not be impossible.
    return np.asarray(weights @ _parts() + 1e-12)


def _fit_prior(launches: Launches, generator: np.random.Generator) -> tuple[Floats, float]:
    """Return the weights of the prior's parts and the noise that make the launches most likely."""
    few = _rank_within(launches.kernel, generator) < _FIT_LAUNCHES
    codes, first, kernel = np.unique(launches.kernel[few], return_index=True, return_inverse=True)
    part = launches.take(np.flatnonzero(few))
    # Each family counts once, whatever its number of kernels.
    _, index, sizes = np.unique(part.family[first], return_inverse=True, return_counts=True)
    share = 1.0 / sizes[index]
    renumbered = Launches(
        log2_measured=part.log2_measured,
        log2_predicted=part.log2_predicted,
        share=part.share,
        kernel=kernel.astype(np.int64),
        family=part.family,
    )
    best: tuple[float, Floats, float] | None = None
    parts = _parts()
    for noise in _NOISES.tolist():
        log_each = _log_likelihood(renumbered, noise, len(codes))
        most = log_each.max(axis=1)
        by_part = np.exp(log_each - most[:, None]) @ parts.T + 1e-300
        weights = np.full(len(_SCALES), 1 / len(_SCALES))
        for _ in range(_EM_STEPS):
            owned = by_part * weights
            owned /= owned.sum(axis=1, keepdims=True)
            weights = (share @ owned + _ANY_FACTOR / len(_SCALES)) / (share.sum() + _ANY_FACTOR)
        likelihood = float(share @ (most + np.log(by_part @ weights)))
        if best is None or likelihood > best[0]:
            best = likelihood, weights, noise
    assert best is not None, "there is more than one noise to try"
    return best[1], best[2]


def _scores(
    launches: Launches,
    measured: npt.NDArray[np.intp],
    held_out: npt.NDArray[np.intp],
    weights: Floats,
    fold_noise: float,
    noise: float,
) -> Floats:
    """Return the errors of the held-out launches over what was to be expected, once the others were measured."""
    known = _posterior(launches.take(measured), weights, fold_noise, int(launches.kernel.max()) + 1)
    kernel = launches.kernel[held_out]
    change, slope = rescaled(launches.share[held_out], known.median[kernel])
    error = launches.log2_measured[held_out] - launches.log2_predicted[held_out] - change
    return np.abs(error) / expected_error(noise, slope, known.sd[kernel])


def _rank_within(kernel: Codes, generator: np.random.Generator) -> Codes:
    """Return the place of each row in a random order of its kernel's rows, from 0 on, shape (n,)."""
    order = np.lexsort((generator.random(len(kernel)), kernel))
    _, first = np.unique(kernel[order], return_index=True)
    starts = np.repeat(first, np.diff(np.append(first, len(kernel))))
    rank = np.empty(len(kernel), dtype=np.int64)
    rank[order] = np.arange(len(kernel)) - starts
    return rank


def _folds(family: Codes, generator: np.random.Generator) -> Codes:
    """Return 0 or 1 for each row, whole families in one; all 0 where they are too few."""
    codes, index = np.unique(family, return_inverse=True)
    fold = generator.permutation(len(codes)) % 2
    if len(codes) < _FEWEST_FAMILIES:
        fold[:] = 0
    return np.asarray(fold[index], dtype=np.int64)


def few_shot_of_predictions(
    predictions: pa.Table, model: str, floors_ns: Mapping[str, float], level: float
) -> FewShot:
    """Learn from the predictions that a training wrote of rows it did not fit.

    The calibration part is taken; where its families are fewer than an interval needs, the validation part as well,
    which chose the model and flatters.

    Args:
        predictions: schema ``PREDICTIONS``.
        model: whose predictions.
        floors_ns: device class to the time of an empty launch, 0 where it is not known.
        level: wanted coverage.

    Raises:
        BadInput: There is no such row, or no kernel has two.
    """
    own = predictions.filter(pc.equal(predictions.column("model"), model))
    wanted: list[Part] = [Part.CALIBRATION]
    calibration = own.filter(pc.equal(own.column("split"), Part.CALIBRATION.value))
    if pc.count_distinct(calibration.column("family_id")).as_py() < min_groups(level):
        wanted.append(Part.VALIDATION)
    rows = own.filter(pc.is_in(own.column("split"), pa.array([part.value for part in wanted])))
    if len(rows) == 0:
        raise BadInput(f"no prediction of {model} on the calibration part: train the run again")
    kernels = [rows.column(name).to_pylist() for name in ("kernel_id", "device_class")]
    log2_predicted = np.log2(rows.column("predicted_ns").to_numpy())
    floor = np.array([floors_ns.get(name, 0.0) for name in kernels[1]])
    launches = Launches(
        log2_measured=np.log2(rows.column("median_ns").to_numpy()),
        log2_predicted=log2_predicted,
        share=work_share(log2_predicted, floor),
        kernel=encode(*kernels),
        family=encode(rows.column("family_id").to_pylist()),
    )
    return fit_few_shot(launches, level=level, source=_named(wanted))


def _named(parts: Sequence[Part]) -> str:
    return "+".join(part.value for part in parts)
