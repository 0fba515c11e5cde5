"""Ranking metrics: rank correlation within a kernel, and regret of the chosen local size.

Owns both definitions over rows and groups; ``metrics.py`` averages them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


def spearman_by_group(
    measured: Floats, predicted: Floats, group: Codes, min_rows: int
) -> tuple[Codes, Floats]:
    """Return Spearman's rank correlation within each group; ties get their mean rank.

    Args:
        measured: shape (n,).
        predicted: shape (n,).
        group: codes, shape (n,).
        min_rows: minimum number of rows. Smaller groups are left out, and so are groups whose
            measured values are all equal.

    Returns:
        The codes of the remaining groups and their correlations in [-1, 1], both shape (g,). The
        correlation of a group whose predictions are all equal is 0.

    >>> spearman_by_group(np.array([1.0, 2, 3]), np.array([5.0, 7, 9]), np.zeros(3, int), 3)[1]
    array([1.])
    """
    codes, index = np.unique(group, return_inverse=True)
    rows = np.bincount(index)
    first = _centred_ranks(measured, index, rows)
    second = _centred_ranks(predicted, index, rows)
    spread_first = np.bincount(index, first * first)
    spread_second = np.bincount(index, second * second)
    product = np.bincount(index, first * second)
    keep = (rows >= max(2, min_rows)) & (spread_first > 0)
    scale = np.sqrt(spread_first * spread_second)
    rho = np.divide(product, scale, out=np.zeros(len(scale)), where=scale > 0)
    return codes[keep].astype(np.int64), rho[keep]


def _centred_ranks(values: Floats, index: Codes, rows: Codes) -> Floats:
    """Return the mean rank of each value within its group, minus the group's mean rank."""
    order = np.lexsort((values, index))
    sorted_values, sorted_index = values[order], index[order]
    starts = np.concatenate(([0], np.cumsum(rows)[:-1]))
    position = np.arange(len(values)) - starts[sorted_index]
    changes = (np.diff(sorted_values) != 0) | (np.diff(sorted_index) != 0)
    tie = np.concatenate(([0], np.cumsum(changes))) if len(values) else position
    mean_position = np.bincount(tie, position) / np.bincount(tie)
    ranks = np.empty(len(values))
    ranks[order] = mean_position[tie] - (rows[sorted_index] - 1) / 2
    return ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """The regret of a choice of local size per group, as a fraction of the best time (0 is best).

    ``chosen`` is the regret of the local size with the shortest prediction, ``random`` that of a
    local size chosen at random.
    """

    group: Codes
    chosen: Floats
    random: Floats


def choice_regret(measured_ns: Floats, predicted_ns: Floats, choice: Codes) -> Regret:
    """Return how much longer launches take if the prediction picks the local size.

    Args:
        measured_ns: shape (n,).
        predicted_ns: shape (n,).
        choice: code shared by rows that differ in local size only; rows with -1 and groups of one
            row are ignored.
    """
    kept = choice >= 0
    measured, predicted = measured_ns[kept], predicted_ns[kept]
    codes, index = np.unique(choice[kept], return_inverse=True)
    rows = np.bincount(index, minlength=len(codes))
    best = np.full(len(codes), np.inf)
    lowest = np.full(len(codes), np.inf)
    np.minimum.at(best, index, measured)
    np.minimum.at(lowest, index, predicted)
    picked = (predicted == lowest[index]).astype(np.float64)
    chosen = np.bincount(index, picked * measured) / np.bincount(index, picked)
    mean = np.bincount(index, measured) / rows
    real = rows >= 2
    return Regret(
        group=codes[real].astype(np.int64),
        chosen=chosen[real] / best[real] - 1,
        random=mean[real] / best[real] - 1,
    )
