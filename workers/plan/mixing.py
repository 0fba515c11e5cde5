"""Mix the bits of a number: murmur3's finaliser, for one number and for an array.

Source: A. Appleby, MurmurHash3 (public domain). ``workers/device/opencl/fill.cl`` and
``workers/work/hooks.cl`` have the same function.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_MASK32 = 0xFFFF_FFFF


def mix32(value: int) -> int:
    """Return murmur3's 32-bit finaliser of ``value``: each input bit affects all output bits.

    >>> hex(mix32(1))
    '0x514e28b7'
    """
    value &= _MASK32
    value ^= value >> 16
    value = (value * 0x85EB_CA6B) & _MASK32
    value ^= value >> 13
    value = (value * 0xC2B2_AE35) & _MASK32
    return value ^ (value >> 16)


def mix32_each(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ``mix32`` of each value.

    >>> [hex(value) for value in mix32_each(np.array([1, 2]))]
    ['0x514e28b7', '0x30f4c306']
    """
    mixed = values.astype(np.uint32)
    mixed ^= mixed >> 16
    mixed *= np.uint32(0x85EB_CA6B)
    mixed ^= mixed >> 13
    mixed *= np.uint32(0xC2B2_AE35)
    return (mixed ^ (mixed >> 16)).astype(np.int64)
