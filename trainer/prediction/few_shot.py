"""Estimation of kernels' factors from a few measured launches, and of the factors' prior.

``calibrate.py`` takes the launches from a dataset; ``trainer/run/kernel_factors.py`` stores and
applies the factors.

A model's error on a kernel is mostly one factor: the dependence on sizes is right, but the level is
not. The factor is estimated from measured launches by Bayes' rule on a grid of factors:

* The residual of a launch, after its kernel's factor, has a Student-t distribution with centre 0,
  so that one outlier has little influence.
* A launch near the launch floor hardly depends on the factor, so it has little influence, too.
* The prior of factors is a mixture of normals with centre 0. Its weights and the noise maximise the
  likelihood of the calibration part (empirical Bayes; Stephens 2017, *False discovery rates: a new
  deal*). The prior shrinks a factor from one noisy launch, but not a clear factor of ten.

Intervals are conformal, by family, for each number of launches: some launches of each calibration
kernel count as measured and the others are scored, with a prior from other families. Coverage holds
for launches drawn from the same distribution as the measured ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.statistics.conformal import Band, conformal_quantile, min_groups
from llmperf_common.statistics.metrics import encode
from trainer.errors import BadInput
from trainer.interface import Codes, Floats
from trainer.prediction.calibration_rows import calibration_rows
from trainer.run.kernel_factors import (
    MEDIAN_OF_T3,
    FewShot,
    expected_error,
    rescaled,
    work_share,
)

NUM_LAUNCHES: Final = (1, 2, 3, 5, 10, 20)
"""Numbers of measured launches for which a band (an interval width) is calibrated."""

_GRID = np.linspace(-12.0, 12.0, 481)
"""Grid of factors in log2: from 1/4096 to 4096 in steps of 3.5 %."""
_SCALES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_NOISES = np.geomspace(0.02, 1.28, 13)
_DEGREES_OF_FREEDOM = 3.0
MOST_ERROR_LOG2: Final = float(np.log2(5.0))
"""Limit in log2: if the median error of a kernel's launches is above this even with the best
factor, no factor explains them."""
_EM_STEPS = 60
_FIT_LAUNCHES = 16
"""Maximum number of launches of a kernel from which the prior is fitted; more would not change the
kernel's factor much."""
_ANY_FACTOR = 1.0
"""Weight of a uniform prior on the mixture's weights, as a number of families. With it, five well
predicted families do not prove that a sixth is well predicted."""
_ROWS_AT_ONCE = 8192
"""Launches compared with the whole grid at once, to bound memory: arrays of 32 MB."""
_DRAWS = 3
"""Number of random choices of the measured launches of each calibration kernel, for the bands."""
_FEWEST_FAMILIES = 4
"""Fewest families for cross-fitting: a kernel's prior comes from the other half of the families."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The measured and predicted times of n launches.

    Attributes:
        log2_measured: log2 of the measured times in ns, shape (n,).
        log2_predicted: log2 of the predicted times in ns, shape (n,).
        share: share of work in the predicted time (``work_share``), shape (n,).
        kernel: codes of (kernel, device class) from 0 on, shape (n,).
        family: codes of families, shape (n,).
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
    """The posterior of k kernels' factors, in log2, shape (k,) each.

    Attributes:
        median: medians.
        sd: standard deviations.
        scatter: scale (of Student's t) of the errors that remain after the factor.
        is_beyond: whether no factor explains the launches: half of them are still off by more than
            ``MOST_ERROR_LOG2``.
    """

    median: Floats
    sd: Floats
    scatter: Floats
    is_beyond: npt.NDArray[np.bool_]


def fit_few_shot(launches: Launches, *, level: float, source: str, seed: int = 0) -> FewShot:
    """Fit the prior, the noise and the bands on kernels that were not fitted.

    Args:
        launches: the launches of the calibration part.
        level: wanted coverage.
        source: name of the parts, stored in the record.
        seed: seed of the random choice of measured launches.

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
            rank = rank_within(launches.kernel, generator)
            enough = np.bincount(launches.kernel)[launches.kernel] > number
            for fold, (fold_weights, fold_noise) in enumerate(priors):
                inside = (folds == fold) & enough
                measured = np.flatnonzero(inside & (rank < number))
                held_out = np.flatnonzero(inside & (rank >= number))
                score, scored = _scores(
                    launches, measured, held_out, fold_weights, fold_noise, noise
                )
                scores.append(score)
                owners.append(launches.family[scored])
        joined, families = np.concatenate(scores), np.concatenate(owners)
        if len(joined) and (not bands or len(np.unique(families)) >= min_groups(level)):
            bands[number] = conformal_quantile(joined, families, level)
    if not bands:
        raise BadInput(
            "the calibration part has no kernel with two launches: collect more launches per kernel"
        )
    return FewShot(
        scales_log2=_SCALES,
        weights=tuple(weights.tolist()),
        noise_log2=noise,
        level=level,
        bands=bands,
        source=source,
    )


def posterior(few_shot: FewShot, launches: Launches, num_kernels: int) -> Posterior:
    """Return the posterior of the factors of the kernels 0 to ``num_kernels`` - 1.

    Raises:
        BadInput: ``few_shot`` has another mixture of normal distributions than this release fits.
    """
    if few_shot.scales_log2 != _SCALES:
        raise BadInput(
            "the run stores the variation of kernels in another form than this release reads: "
            "train the run again"
        )
    return _posterior(launches, np.array(few_shot.weights), few_shot.noise_log2, num_kernels)


def _posterior(launches: Launches, weights: Floats, noise: float, num_kernels: int) -> Posterior:
    log_density = _log_likelihood(launches, noise, num_kernels) + np.log(_prior(weights))
    density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    reached = np.cumsum(density, axis=1)
    # Interpolate between two points of the grid: its step of 3.5 % is too coarse for a median.
    above = np.argmax(reached >= 0.5, axis=1)
    rows = np.arange(num_kernels)
    over = (reached[rows, above] - 0.5) / density[rows, above]
    step = _GRID[1] - _GRID[0]
    mean = density @ _GRID
    variance = np.sum(density * (_GRID - mean[:, None]) ** 2, axis=1)
    median = _GRID[above] + (0.5 - over) * step
    scatter = _scatter(launches, median)
    return Posterior(
        median=median,
        sd=np.sqrt(variance),
        scatter=scatter,
        is_beyond=scatter * MEDIAN_OF_T3 > MOST_ERROR_LOG2,
    )


def _scatter(launches: Launches, log2_factor: Floats) -> Floats:
    """Return the scale of the launches' errors after the factor of their kernel, shape (k,).

    The scale is that of a Student-t distribution, by the median of the absolute errors, so that one
    outlier among many launches does not widen intervals, but launches that disagree do.
    """
    change, _ = rescaled(launches.share, log2_factor[launches.kernel])
    error = np.abs(launches.log2_measured - launches.log2_predicted - change)
    order = np.lexsort((error, launches.kernel))
    codes, first, counts = np.unique(launches.kernel[order], return_index=True, return_counts=True)
    lower, upper = (error[order[first + (counts - 1 + more) // 2]] for more in (0, 1))
    found = np.zeros(len(log2_factor))
    found[codes] = (lower + upper) / 2 / MEDIAN_OF_T3
    return found


def _log_likelihood(launches: Launches, noise: float, num_kernels: int) -> Floats:
    """Return the log-likelihood of each factor of the grid for each kernel, shape (k, g)."""
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
    """Return each mixture component's density on the grid, shape (c, g); each sums to 1."""
    each = np.exp(-0.5 * (_GRID[None] / np.array(_SCALES)[:, None]) ** 2)
    return np.asarray(each / each.sum(axis=1, keepdims=True))


def _prior(weights: Floats) -> Floats:
    # The constant keeps factors possible that are unlike all factors of the calibration part.
    return np.asarray(weights @ _parts() + 1e-12)


def _fit_prior(launches: Launches, generator: np.random.Generator) -> tuple[Floats, float]:
    """Return the mixture's weights and the noise that maximise the likelihood of the launches."""
    few = rank_within(launches.kernel, generator) < _FIT_LAUNCHES
    codes, first, kernel = np.unique(launches.kernel[few], return_index=True, return_inverse=True)
    part = launches.take(np.flatnonzero(few))
    # Each family has the same weight, whatever its number of kernels is.
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
    assert best is not None, "_NOISES is not empty"
    return best[1], best[2]


def _scores(
    launches: Launches,
    measured: npt.NDArray[np.intp],
    held_out: npt.NDArray[np.intp],
    weights: Floats,
    fold_noise: float,
    noise: float,
) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Return |error| / expected error of held-out launches, given the measured launches.

    The second array has the rows that are scored: those of kernels that a factor explains.
    """
    known = _posterior(launches.take(measured), weights, fold_noise, int(launches.kernel.max()) + 1)
    held_out = held_out[~known.is_beyond[launches.kernel[held_out]]]
    kernel = launches.kernel[held_out]
    change, slope = rescaled(launches.share[held_out], known.median[kernel])
    error = launches.log2_measured[held_out] - launches.log2_predicted[held_out] - change
    own_noise = np.maximum(noise, known.scatter[kernel])
    return np.abs(error) / expected_error(own_noise, slope, known.sd[kernel]), held_out


def rank_within(kernel: Codes, generator: np.random.Generator) -> Codes:
    """Return each row's place in a random order of its kernel's rows, from 0 on, shape (n,)."""
    order = np.lexsort((generator.random(len(kernel)), kernel))
    _, first = np.unique(kernel[order], return_index=True)
    starts = np.repeat(first, np.diff(np.append(first, len(kernel))))
    rank = np.empty(len(kernel), dtype=np.int64)
    rank[order] = np.arange(len(kernel)) - starts
    return rank


def _folds(family: Codes, generator: np.random.Generator) -> Codes:
    """Return fold 0 or 1 of each row, the same for a family; all 0 if there are few families."""
    codes, index = np.unique(family, return_inverse=True)
    fold = generator.permutation(len(codes)) % 2
    if len(codes) < _FEWEST_FAMILIES:
        fold[:] = 0
    return np.asarray(fold[index], dtype=np.int64)


def launches_of(rows: pa.Table, floors_ns: Mapping[str, float]) -> Launches:
    """Return the launches of rows of schema ``PREDICTIONS``; ``floors_ns`` by device class."""
    kernel, _ = _coded(rows.column("kernel_id"))
    device, classes = _coded(rows.column("device_class"))
    family, _ = _coded(rows.column("family_id"))
    log2_predicted = np.log2(rows.column("predicted_ns").to_numpy())
    floor = np.array([floors_ns.get(name, 0.0) for name in classes])[device]
    return Launches(
        log2_measured=np.log2(rows.column("median_ns").to_numpy()),
        log2_predicted=log2_predicted,
        share=work_share(log2_predicted, floor),
        kernel=encode(kernel, device),
        family=family,
    )


def _coded(texts: pa.ChunkedArray) -> tuple[Codes, list[str]]:
    """Return for each text its index in the sorted distinct texts, and these distinct texts.

    Unlike numpy's ``unique`` it makes no array in which each text takes as much memory as the
    longest one.
    """
    found = pc.dictionary_encode(texts).unify_dictionaries().combine_chunks()
    order = pc.array_sort_indices(found.dictionary).to_numpy()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place[found.indices.to_numpy()], found.dictionary.take(pa.array(order)).to_pylist()


def few_shot_of_predictions(
    predictions: pa.Table, model: str, floors_ns: Mapping[str, float], level: float
) -> FewShot:
    """Call ``fit_few_shot`` with the predictions that a training wrote.

    Args:
        predictions: a table with the columns ``USED_PREDICTIONS``.
        model: name of the model in ``predictions``.
        floors_ns: time of an empty launch by device class, 0 if unknown.
        level: wanted coverage.

    Raises:
        BadInput: There is no row of the model in the calibration part, a time is impossible, or no
            kernel has two launches.
    """
    rows, source = calibration_rows(predictions, model, level)
    return fit_few_shot(launches_of(rows, floors_ns), level=level, source=source)
