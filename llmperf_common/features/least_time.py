"""The time that no launch can undercut: that of the bytes it surely moves, or of an empty launch.

Owns that bound, which corrects predictions. It counts only what certainly happens: buffers whose
elements are each touched by a work-item of its own, without a condition but the NDRange's guards.
Arithmetic is left out: a compiler may drop or share it. ``roofline.py`` has the estimates, which
may err on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmperf_common.records import Device

FLOOR_SHARE = 0.25
"""Share of the measured time of an empty launch, a median of 64. The shortest of 1,248 measured
kernels took 0.52 of it."""
READ_FACTOR = 4 / 3
"""Factor by which a kernel that only reads can exceed the DRAM peak. The peak is a triad's without
write-allocate: two reads and one write, while the bus moves four lines."""
_TRANSFERS_A_CLOCK = 2
"""Transfers a memory clock: double data rate, as in CUDA's bandwidth figures. An H200 has 2 x 3.2
GHz x 752 bytes = 4,814 GB/s."""
CACHES_LEFT_OUT = 2
"""Last-level caches whose bytes count as not moved: warm launches find data there."""

SECTOR_BYTES = 32
"""Bytes that memory moves at least: NVIDIA's sector (a CPU's cache line has 64). Of a larger
element only so many count where not all of it is surely touched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseAccess:
    """One buffer of which neighbours in dimension 0 surely touch neighbouring elements.

    Attributes:
        position: of the buffer among the arguments.
        guards: for each dimension the names of the scalar arguments that its ids must stay below.
        pitch: how far rows (dimension 1) are apart: a scalar argument's name or ``global_size_0``;
            empty where that is not known, and then only one row counts.
        is_whole: all bytes of an element are touched; else maybe one member only.
    """

    position: int
    guards: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] = ((), (), ())
    pitch: str = ""
    is_whole: bool = False

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Return how many different elements a launch surely touches.

        Args:
            sizes: as ``llmperf_common.analysis.launch_sizes`` gives them.

        >>> row = DenseAccess(position=0, guards=(("n",), (), ()))
        >>> row.elements({"global_size_0": 64, "global_size_1": 1, "global_size_2": 1, "n": 60})
        60
        """
        active = [
            max(0, min([sizes[f"global_size_{axis}"], *(sizes[name] for name in names)]))
            for axis, names in enumerate(self.guards)
        ]
        if not all(active):
            return 0
        pitch = sizes[self.pitch] if self.pitch else 0
        if pitch <= 0:
            return active[0]
        return (active[1] - 1) * min(pitch, active[0]) + active[0]


def least_time_ns(
    accesses: Sequence[DenseAccess],
    sizes: Mapping[str, int],
    element_bytes: Mapping[int, int],
    elements: Mapping[int, int],
    device: Device,
) -> float:
    """Return a time that no launch on ``device`` undercuts; 0 where nothing is known.

    Args:
        accesses: what the kernel surely touches.
        sizes: as ``llmperf_common.analysis.launch_sizes`` gives them.
        element_bytes: of the buffers, by position.
        elements: of the buffers, by position: no more of a buffer can be moved.
        device: with measured peaks.
    """
    floor_ns = FLOOR_SHARE * (device.launch_floor_ns or 0.0)
    if not device.peak_dram_gbps:
        return floor_ns
    touched: dict[int, int] = {}
    for one in accesses:
        at, size = one.position, element_bytes[one.position]
        num_bytes = size if one.is_whole else min(size, SECTOR_BYTES)
        most = min(one.elements(sizes), elements[at]) * num_bytes
        touched[at] = max(most, touched.get(at, 0))
    moved = math.fsum(touched.values())
    beyond_cache = max(0.0, moved - CACHES_LEFT_OUT * device.last_level_cache_bytes)
    # GB/s are bytes a nanosecond. A measured DRAM peak can be 3.6 times too low on a shared CPU
    # (kernels with wide vectors reached 70 GB/s where the triad had 20), but memory is never faster
    # than the cache before it.
    rate = max(READ_FACTOR * device.peak_dram_gbps, device.peak_l2_gbps or 0.0)
    bus_gbps = _bus_gbps(device)
    if (
        bus_gbps >= device.peak_dram_gbps
    ):  # else the card tells something else than its memory's bus
        rate = min(rate, bus_gbps)
    return max(floor_ns, beyond_cache / rate)


def _bus_gbps(device: Device) -> float:
    """Return what the bus of a GPU's memory moves at most, 0 where it is not known (CPUs)."""
    bytes_a_transfer = (device.memory_bus_bits or 0) / 8
    return _TRANSFERS_A_CLOCK * (device.max_memory_clock_mhz or 0.0) / 1e3 * bytes_a_transfer
