"""The inputs of a launch config as numpy arrays, with the same bits as LLMPerf has on the device.

Owns a faster way to compute the result of ``workers.plan.inputs.reference_bytes``: in parts that
fit into a cache, on all cores. A test compares the two. The reference needs many seconds for 64
million floats, which is too long on a rented GPU. No part's time includes the making of inputs.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.collecting.collectors.jobs import allocated_bytes
from llmperf_common.records import Argument, LaunchArgument
from workers.plan.inputs import SCALAR_TYPES, FillSpec, fill_spec, reference_bytes, scalars_of

_PART_SCALARS = 2**17
_MOST_SCALARS = 2**32
_INDEX_STEP = np.uint32(0x9E37_79B9)
_MIX = (np.uint32(0x85EB_CA6B), np.uint32(0xC2B2_AE35))
"""Constants of the hash, as in ``workers/device/opencl/fill.cl``."""


def host_bytes(argument: Argument, given: LaunchArgument, *, seed: int) -> npt.NDArray[np.uint8]:
    """Return a buffer's bytes, followed by the zeroed padding that LLMPerf leaves.

    Args:
        argument: a global or constant buffer.
        given: the number of elements and, if the values steer the kernel, their rule.
        seed: the launch config's seed.
    """
    elements = given.elements or 0
    padded = np.zeros(allocated_bytes(argument, given), np.uint8)
    num_bytes = elements * argument.element_bytes
    if argument.leaves or num_bytes >= _MOST_SCALARS:
        padded[:num_bytes] = reference_bytes(
            argument, elements=elements, seed=seed, contents=given.contents
        )
        return padded
    spec = fill_spec(argument, elements=elements, seed=seed, contents=given.contents)
    scalars = padded[:num_bytes].view(SCALAR_TYPES[argument.scalar_type].dtype)

    def fill(start: int) -> None:
        stop = min(start + _PART_SCALARS, spec.num_scalars)
        scalars[start:stop] = _values(spec, start, stop).view(scalars.dtype)

    starts = range(0, spec.num_scalars, _PART_SCALARS)
    if len(starts) < 2:
        list(map(fill, starts))
    else:
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(fill, starts))
    return padded


def _values(spec: FillSpec, start: int, stop: int) -> npt.NDArray[Any]:
    """Return scalars ``start`` to ``stop`` of the stream, integers as unsigned."""
    return scalars_of(_hashed(spec, start, stop), spec, start=start)


def _hashed(spec: FillSpec, start: int, stop: int) -> npt.NDArray[np.uint32]:
    value = np.arange(start, stop, dtype=np.uint32)
    value *= _INDEX_STEP
    value += np.uint32(spec.key)
    value ^= value >> np.uint32(16)
    value *= _MIX[0]
    value ^= value >> np.uint32(13)
    value *= _MIX[1]
    value ^= value >> np.uint32(16)
    return value
