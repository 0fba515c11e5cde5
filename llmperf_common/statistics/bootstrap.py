"""Statistics of values that belong to families, with bootstrap intervals that resample families.

Errors are correlated within a kernel and within a family, so a bootstrap over rows would give far
too narrow intervals. Families are drawn with replacement instead. The means of all draws are one
matrix product; a quantile is computed for each draw, with the families' counts as weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

_CHUNK_ELEMENTS = 4_000_000
"""Maximum number of weights in memory (32 MB) while the quantiles of draws are computed."""
_QUANTILES = {"median": 0.5, "p90": 0.9}
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """One number over values that each belong to a family."""

    name: str
    kind: str
    """"mean", "median", "p90" (90th percentile) or "root_mean" (root of the mean; pass squares)."""
    values: Floats
    family: Codes

    def point(self) -> float | None:
        """Return the statistic over all values; None without values."""
        if len(self.values) == 0:
            return None
        if self.kind in _QUANTILES:
            return quantile(self.values, _QUANTILES[self.kind])
        mean = float(np.mean(self.values))
        return mean**0.5 if self.kind == "root_mean" else mean

    def resampled(self, draws: Floats) -> Floats:
        """Return the statistic of each draw; ``draws`` holds counts, shape (b, families)."""
        if self.kind in _QUANTILES:
            return _weighted_quantiles(self.values, self.family, draws, _QUANTILES[self.kind])
        sums = np.bincount(self.family, self.values, minlength=draws.shape[1])
        counts = np.bincount(self.family, minlength=draws.shape[1])
        weight = draws @ counts
        means = np.full(len(draws), np.nan)
        np.divide(draws @ sums, weight, out=means, where=weight > 0)
        return np.sqrt(means) if self.kind == "root_mean" else means


def quantile(values: Floats, share: float) -> float:
    """Return the smallest value such that at least ``share`` of ``values`` are not above it.

    ``values`` has shape (n,), n at least 1. Where the share falls exactly between two values, the
    result is their mean, as in ``np.median``.

    >>> quantile(np.array([1.0, 2, 3, 10]), 0.5), quantile(np.arange(1.0, 12), 0.9)
    (2.5, 10.0)
    """
    return float(np.quantile(values, share, method="averaged_inverted_cdf"))


def _weighted_quantiles(values: Floats, family: Codes, draws: Floats, share: float) -> Floats:
    """Return the ``quantile`` of each draw, shape (b,)."""
    order = np.argsort(values)
    ordered, ordered_family = values[order], family[order]
    result = np.full(len(draws), np.nan)
    step = max(1, _CHUNK_ELEMENTS // max(1, len(values)))
    for start in range(0, len(draws), step):
        weights = np.cumsum(draws[start : start + step][:, ordered_family], axis=1)
        wanted = share * weights[:, -1:]
        # If the quantile lies exactly between two neighbouring values, ``below`` and ``above`` are
        # these two; otherwise both are the same value. The slack absorbs rounding: 0.9 * 10 is 9.
        below = ordered[np.argmax(weights >= wanted - _SLACK, axis=1)]
        above = ordered[np.argmax(weights > wanted + _SLACK, axis=1)]
        result[start : start + step] = np.where(wanted[:, 0] > 0, (below + above) / 2, np.nan)
    return result


def family_draws(num_families: int, replicates: int, seed: int) -> Floats:
    """Return the count of each family in each draw, shape (replicates, num_families)."""
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
        draws: the result of ``family_draws``.
        level: confidence level of the interval, between 0 and 1.
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
