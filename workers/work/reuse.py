"""Estimate how many distinct bytes the work-items of a work-group touch together.

Owns the choice of groups and the estimate; pure functions. Groups are drawn with a probability
proportional to the bytes that they access. Then the mean of (distinct bytes / accessed bytes) of
the drawn groups estimates the launch's ratio (Hansen and Hurwitz). ``touched.cl`` records bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_GROUPS = 2
"""Maximum work-groups of a launch whose touched bytes are recorded (*watched* groups). Groups are
much alike: for the kernels in ``kernels/``, two groups gave the mean within 5 % (``csr_vector``: 10
%)."""
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


def drawn(amounts: Sequence[float], number: int) -> list[int]:
    """Draw ``number`` indices into ``amounts`` by systematic sampling, and return them ascending.

    The draw is deterministic. Each index is drawn in proportion to its amount, so the index of a
    large amount is drawn several times. The result is empty if the amounts add up to 0.

    >>> drawn([0, 1, 8, 1], 4)
    [2, 2, 2, 2]
    >>> drawn([5, 5], 2)
    [0, 1]
    """
    bounds = np.cumsum(np.asarray(amounts, dtype=np.float64))
    if not len(bounds) or bounds[-1] <= 0:
        return []
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


def of_launch(total: float, touched: Sequence[float], accessed: Sequence[float]) -> float | None:
    """Return the sum, over all groups of a launch, of the distinct bytes that a group touches.

    Args:
        total: bytes that the launch accesses.
        touched: distinct bytes of each drawn group.
        accessed: bytes that each drawn group accesses.

    Returns:
        The sum; None if no drawn group accesses anything although the launch does.

    >>> of_launch(1000.0, [10, 5], [20, 20])
    375.0
    """
    if not total:
        return 0.0
    shares = [one / of for one, of in zip(touched, accessed, strict=True) if of > 0]
    return total * sum(shares) / len(shares) if shares else None
