"""Numbers over grouped values, and how sure they are: the bootstrap that draws families, not rows.

Configs of a kernel and kernels of a family err alike, so a bootstrap over rows would look far too sure. Drawing
families with replacement is a matrix product for means and one weighted median a draw for medians.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_CHUNK_ELEMENTS = 4_000_000
"""Weights held at once while bootstrapping medians: 32 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One number over values that each belong to a family."""

    name: str
    kind: str
    """"mean", "median" or "root_mean" (of values that are squares already)."""
    values: Floats
    family: Codes

    def point(self) -> float | None:
        """Return the statistic over all values; None without any."""
        if len(self.values) == 0:
            return None
        if self.kind == "median":
            return float(np.median(self.values))
        mean = float(np.mean(self.values))
        return mean**0.5 if self.kind == "root_mean" else mean

    def resampled(self, draws: Floats) -> Floats:
        """Return the statistic for each row of ``draws`` (shape (b, families), how often each is in)."""
        if self.kind == "median":
            return _weighted_medians(self.values, self.family, draws)
        sums = np.bincount(self.family, self.values, minlength=draws.shape[1])
        counts = np.bincount(self.family, minlength=draws.shape[1])
        weight = draws @ counts
        means = np.full(len(draws), np.nan)
        np.divide(draws @ sums, weight, out=means, where=weight > 0)
        return np.sqrt(means) if self.kind == "root_mean" else means


def _weighted_medians(values: Floats, family: Codes, draws: Floats) -> Floats:
    order = np.argsort(values)
    ordered, ordered_family = values[order], family[order]
    result = np.full(len(draws), np.nan)
    step = max(1, _CHUNK_ELEMENTS // max(1, len(values)))
    for start in range(0, len(draws), step):
        weights = np.cumsum(draws[start : start + step][:, ordered_family], axis=1)
        half = weights[:, -1:] / 2
        # Two values where the middle lies between them, as in np.median; else one value twice.
        below = ordered[np.argmax(weights >= half, axis=1)]
        above = ordered[np.argmax(weights > half, axis=1)]
        result[start : start + step] = np.where(half[:, 0] > 0, (below + above) / 2, np.nan)
    return result


def family_draws(num_families: int, replicates: int, seed: int) -> Floats:
    """Return how often each family is in each draw, shape (replicates, num_families)."""
    share = np.full(num_families, 1 / num_families)
    generator = np.random.default_rng(seed)
    return generator.multinomial(num_families, share, size=replicates).astype(np.float64)


def bootstrap_interval(
    item: Statistic, families: Codes, draws: Floats, level: float
) -> list[float] | None:
    """Return [low, high] of a statistic over the draws (percentile method); None where undefined.

    Args:
        item: the statistic; its family codes are among ``families``.
        families: the distinct codes in the order of the columns of ``draws``, ascending.
        draws: from ``family_draws``.
        level: of the interval.
    """
    if len(item.values) == 0:
        return None
    dense = np.searchsorted(families, item.family)
    values = replace(item, family=dense).resampled(draws)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]
