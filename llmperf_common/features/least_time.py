"""A lower bound of a launch's time, from launch overhead and the bytes that are certainly moved.

Owns that bound, which corrects predictions that are too short. The bound counts only certain
traffic: buffers in which each work-item touches an element of its own, with no condition other than
the guards of the NDRange. Arithmetic is not counted, because a compiler may remove or share it.
``roofline.py`` has estimates, which may be too high or too low.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llmperf_common.records import Device

FLOOR_SHARE = 0.25
"""Share of the measured time of an empty launch (a median of 64 readings). No launch is assumed to
take less than this share. The shortest of 1,248 measured kernels took 0.52 of that time."""
READ_FACTOR = 4 / 3
"""Factor by which a kernel that only reads can exceed the measured DRAM peak. The peak is measured
with a triad, and counts its two reads and one write. With write-allocate the device also reads each
line that it writes, so the bus moves four lines where the peak counts three."""
_TRANSFERS_A_CLOCK = 2
"""Transfers per memory clock: double data rate, as in CUDA's bandwidth figures. An H200 has
2 x 3.2 GHz x 752 bytes = 4,814 GB/s."""
CACHES_LEFT_OUT = 2
"""Number of bytes that are taken as cached and so as free, as a multiple of the last-level cache's
size: a warm launch finds data of the launch before in the cache."""

SECTOR_BYTES = 32
"""Smallest transfer of memory in bytes: NVIDIA's sector (a CPU's cache line has 64). A larger
element counts as one sector where the kernel may touch only a part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseAccess:
    """A buffer in which adjacent work-items (dimension 0) certainly touch adjacent elements.

    Attributes:
        position: the buffer's position among the arguments.
        guards: for each dimension the names of the scalar arguments that the dimension's ids must
            stay below.
        pitch: distance between rows (dimension 1): a scalar argument's name or ``global_size_0``.
            It is empty where the distance is unknown; only one row counts then.
        is_whole: whether the kernel touches all bytes of an element; False if it may touch only one
            member.
    """

    position: int
    guards: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] = ((), (), ())
    pitch: str = ""
    is_whole: bool = False

    def elements(self, sizes: Mapping[str, int]) -> int:
        """Return the number of distinct elements that a launch certainly touches.

        Args:
            sizes: the result of ``llmperf_common.analysis.launch_sizes``.

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
    """Return a lower bound of the launch's time on ``device``, in ns; 0 where nothing is known.

    Args:
        accesses: the buffers that the kernel certainly touches.
        sizes: the result of ``llmperf_common.analysis.launch_sizes``.
        element_bytes: bytes of one element of each buffer, by position.
        elements: elements of each buffer, by position; they limit the bytes moved.
        device: the device, with measured peaks.
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
    # 1 GB/s is 1 byte per nanosecond. On a shared CPU the measured DRAM peak can be 3.6 times too
    # low (kernels with wide vectors reached 70 GB/s, the triad 20). So the measured peak of the
    # cache counts if it is higher: memory is never faster than the cache before it.
    rate = max(READ_FACTOR * device.peak_dram_gbps, device.peak_l2_gbps or 0.0)
    bus_gbps = _bus_gbps(device)
    if (
        bus_gbps >= device.peak_dram_gbps
    ):  # if it is lower than the measured peak, the driver reports a wrong width or clock
        rate = min(rate, bus_gbps)
    return max(floor_ns, beyond_cache / rate)


def _bus_gbps(device: Device) -> float:
    """Return the bandwidth of a GPU's memory bus in GB/s; 0 where it is unknown (CPUs)."""
    bytes_a_transfer = (device.memory_bus_bits or 0) / 8
    return _TRANSFERS_A_CLOCK * (device.max_memory_clock_mhz or 0.0) / 1e3 * bytes_a_transfer
