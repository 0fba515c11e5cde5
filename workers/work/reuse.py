"""Estimate how many distinct bytes the work-items of a work-group touch together.

Owns the choice of groups and the estimate; pure functions. Each large part of the launch (stratum)
has groups of its own. Within a stratum, groups are drawn with a probability proportional to the
bytes that they access. Then the mean of (distinct bytes / accessed bytes) of the drawn groups
estimates the stratum's ratio (Hansen and Hurwitz). ``touched.cl`` records bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_GROUPS = 4
"""Maximum work-groups of a launch whose touched bytes are recorded (*watched* groups). Groups of one
stratum are much alike: for the kernels in ``kernels/``, two groups gave the mean within 5 %
(``csr_vector``: 10 %)."""
_LEAST_SHARE = 0.05
"""Share of the launch's bytes above which the strata without a group of their own get one group
together."""
_SHARE, _ALONE = 1 / 12, 1 / 2
"""Maximum time of all watched groups, and of a single one, as shares of the sample's time."""
_LEAST_NS = 2.5e5
"""Estimated time, in ns, that watched groups may always take."""


def touched_bytes(entries: npt.NDArray[np.uint64], left_out: int, num_groups: int) -> Floats:
    """Return how many distinct bytes each watched work-group touches, shape (num_groups,).

    Args:
        entries: sectors as ``touched.cl`` records them, shape (n, 2): a key, which may occur often,
            and a bit for each byte.
        left_out: mask of the hash bits that are 0 in all recorded keys.
        num_groups: number of watched groups, which are numbered from 1.
    """
    keys, bits = entries[:, 0], entries[:, 1].astype(np.uint32)
    is_kept = (keys > 0) & ((_hashes(keys) & np.uint32(left_out)) == 0)
    order = np.argsort(keys[is_kept], kind="stable")
    keys, bits = keys[is_kept][order], bits[is_kept][order]
    if not len(keys):
        return np.zeros(num_groups)
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    joined = np.bitwise_or.reduceat(bits, starts)
    each = np.unpackbits(joined.view(np.uint8)).reshape(-1, 32).sum(axis=1, dtype=np.int64)
    groups = (keys[starts] >> np.uint64(48)).astype(np.int64) - 1
    touched: Floats = np.bincount(groups, each, num_groups).astype(np.float64) * (1 + left_out)
    return touched


def _hashes(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the hashes of keys, computed as in ``touched.cl``."""
    low, high = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    v: npt.NDArray[np.uint32] = low ^ (high * np.uint32(0xC2B2AE35))
    v ^= v >> np.uint32(16)
    v *= np.uint32(0x85EBCA6B)
    v ^= v >> np.uint32(13)
    v *= np.uint32(0xC2B2AE35)
    v ^= v >> np.uint32(16)
    return v


def drawn(amounts: Sequence[float], strata: Sequence[int], number: int) -> list[tuple[int, float]]:
    """Draw up to ``number`` indices into ``amounts``, each with the share that it represents.

    A stratum with at least half of 1 / ``number`` of all amounts gets at least one index, the other
    strata get one index together. The draw is deterministic. Within a stratum each index is drawn
    in proportion to its amount, so the index of a large amount may be drawn several times. The
    result is empty if the amounts add up to 0.

    >>> drawn([0, 1, 8, 1], [0, 0, 0, 0], 2)
    [(2, 0.5), (2, 0.5)]
    >>> drawn([5, 4, 1], [0, 0, 1], 2)
    [(0, 0.9), (2, 0.1)]
    """
    whole = np.asarray(amounts, dtype=np.float64)
    if not len(whole) or whole.sum() <= 0:
        return []
    whole = whole / whole.sum()
    numbers = np.asarray(strata)
    of_strata = sorted(((whole[numbers == one].sum(), one) for one in set(strata)), reverse=True)
    large = [one for share, one in of_strata if share >= 0.5 / number][:number]
    sets = [numbers == one for one in large] or [np.ones(len(whole), dtype=bool)]
    others = ~np.logical_or.reduce(sets)
    if whole[others].sum() >= _LEAST_SHARE and len(sets) < number:
        sets.append(others)
    shares = [float(whole[one].sum()) for one in sets]
    quotas = [1] * len(sets)
    while sum(quotas) < number:
        quotas[
            int(np.argmax([share / quota for share, quota in zip(shares, quotas, strict=True)]))
        ] += 1
    return [
        (index, share / quota)
        for one, share, quota in zip(sets, shares, quotas, strict=True)
        for index in _systematic(np.where(one, whole, 0.0), quota)
    ]


def _systematic(amounts: Floats, number: int) -> list[int]:
    bounds = np.cumsum(amounts)
    points = (np.arange(number) + 0.5) / number * bounds[-1]
    return [int(place) for place in np.searchsorted(bounds, points, side="right")]


def affordable(spent_ns: float, each_ns: float) -> int:
    """Return how many groups of ``each_ns`` may be watched after a sample of ``spent_ns``."""
    if each_ns <= 0:
        return MOST_GROUPS
    many = int(max(_LEAST_NS, _SHARE * spent_ns) / each_ns)
    if many == 0 and each_ns <= _ALONE * spent_ns:
        many = 1
    return min(MOST_GROUPS, many)


def of_launch(
    total: float, touched: Sequence[float], accessed: Sequence[float], shares: Sequence[float]
) -> float | None:
    """Return the sum, over all groups of a launch, of the distinct bytes that a group touches.

    Args:
        total: bytes that the launch accesses.
        touched: distinct bytes of each drawn group.
        accessed: bytes that each drawn group accesses.
        shares: the share of ``total`` that each drawn group represents.

    Returns:
        The sum; None if no drawn group accesses anything although the launch does.

    >>> of_launch(1000.0, [10, 5], [20, 20], [0.75, 0.25])
    437.5
    """
    if not total:
        return 0.0
    ratios = [
        (one / of, share) for one, of, share in zip(touched, accessed, shares, strict=True) if of
    ]
    known = sum(share for _, share in ratios)
    return total * sum(ratio * share for ratio, share in ratios) / known if ratios else None
