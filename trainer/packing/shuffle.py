"""Random numbers by hashing of codes, without a generator or state.

A plan must be the same after a restart on another machine, and NumPy's generators may give other
numbers in another NumPy version. The mixing function is SplitMix64 (Steele, Lea and Flood, 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def random_keys(*codes: int | npt.NDArray[np.int64]) -> Keys:
    """Return a random 64-bit key for each tuple of codes.

    Args:
        codes: integers of at least 0, or arrays of shape (n,) of them; their order matters.

    Returns:
        Shape (n,), or (1,) if no code is an array.
    """
    key = np.zeros(1, dtype=np.uint64)
    for code in codes:
        key = _mixed(key + np.atleast_1d(np.asarray(code, dtype=np.int64)).astype(np.uint64))
    return key


def random_shares(*codes: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return a random number in [0, 1) for each tuple of codes; shapes as in ``random_keys``."""
    return np.asarray((random_keys(*codes) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _mixed(key: Keys) -> Keys:
    key = key + _GOLDEN
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        key = (key ^ (key >> shift)) * multiplier
    return key ^ (key >> _SHIFTS[2])
