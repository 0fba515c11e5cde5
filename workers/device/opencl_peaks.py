"""What a device can do at best, measured by our own kernels in a second or two.

Owns the loads and their sizes. The figures serve the floor check and the roofline, so they need to be
within some per cent, not to be records: best of a few launches, after one that warms up.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyopencl as cl  # noqa: TID251

from llmperf_common.records import Device
from workers.device.opencl_queue import DeviceQueue
from workers.inputs import FillKind

EMPTY_LAUNCHES = 64
_LOAD_LAUNCHES = 5
_CACHE_LAUNCHES = 20
_FMA_TURNS = 256
_FMA_FLOP_A_TURN = 8 * 4 * 2
_TRIAD_ARRAYS = 3
_BYTES_A_VECTOR = 16


class FmaLoad:
    """Chains of fused multiply-adds that keep every arithmetic unit busy for about a millisecond."""

    def __init__(self, queue: DeviceQueue, kernel_name: str) -> None:
        """Allocate its output and set its arguments; ``kernel_name`` is ``fma_float32`` or ``…64``."""
        self._queue = queue
        scalar = np.float32 if kernel_name == "fma_float32" else np.float64
        self.num_items = queue.device.compute_units * 2048
        self._kernel = queue.new_kernel(kernel_name)
        self._output = queue.allocate(self.num_items * np.dtype(scalar).itemsize)
        self._kernel.set_args(self._output, np.uint32(_FMA_TURNS), scalar(0.999), scalar(0.001))

    def launch_ns(self) -> float:
        """Launch once and return its device time, ns."""
        return self._queue.time_launch(self._kernel, self.num_items)

    def best_gflops(self) -> float:
        """Return the best rate of some launches, 10⁹ FLOP/s."""
        self.launch_ns()
        best_ns = min(self.launch_ns() for _ in range(_LOAD_LAUNCHES))
        return self.num_items * _FMA_TURNS * _FMA_FLOP_A_TURN / best_ns


def measure_peaks(queue: DeviceQueue, device: Device) -> Device:
    """Return ``device`` with its peaks, its observed timer step and its launch floor."""
    timer_step_ns, launch_floor_ns = _timer_step_and_floor(queue)
    cache = device.last_level_cache_bytes or 2**20
    beyond_cache = min(
        5 * cache, device.global_memory_bytes // 4, _TRIAD_ARRAYS * device.max_allocation_bytes
    )
    return dataclasses.replace(
        device,
        timer_step_ns=timer_step_ns,
        launch_floor_ns=launch_floor_ns,
        peak_dram_gbps=triad_gbps(queue, total_bytes=beyond_cache, launches=_LOAD_LAUNCHES),
        peak_l2_gbps=triad_gbps(
            queue, total_bytes=cache // 4, launches=_CACHE_LAUNCHES, floor_ns=launch_floor_ns
        ),
        peak_fp32_gflops=FmaLoad(queue, "fma_float32").best_gflops(),
        peak_fp64_gflops=FmaLoad(queue, "fma_float64").best_gflops() if device.has_fp64 else None,
    )


def triad_gbps(
    queue: DeviceQueue, *, total_bytes: int, launches: int, floor_ns: float = 0.0
) -> float:
    """Return the best triad bandwidth over three arrays of ``total_bytes`` in all, GB/s.

    Counted as STREAM does: two reads and one write an element, no write-allocate. ``floor_ns`` is taken
    off (at most half the time): data that fit a GPU's cache are moved faster than a launch begins and
    ends, and a peak that is too low would flag honest kernels.
    """
    vectors = max(queue.own_local_size, total_bytes // (_TRIAD_ARRAYS * _BYTES_A_VECTOR))
    arrays = [queue.allocate(vectors * _BYTES_A_VECTOR) for _ in range(_TRIAD_ARRAYS)]
    for position, array in enumerate(arrays):
        queue.fill(array, FillKind.FLOAT32, vectors * 4, position)
    kernel = queue.new_kernel("triad")
    kernel.set_args(*arrays, np.uint64(vectors))
    queue.time_launch(kernel, vectors)
    best_ns = min(queue.time_launch(kernel, vectors) for _ in range(launches))
    for array in arrays:
        queue.free(array)
    queue.freed.await_cleared()
    return _TRIAD_ARRAYS * vectors * _BYTES_A_VECTOR / max(best_ns - floor_ns, best_ns / 2)


def _timer_step_and_floor(queue: DeviceQueue) -> tuple[float, float]:
    """Return the smallest step the event clock was seen to make and the time of an empty kernel, ns.

    The step is observed because advertised ones are wrong: NVIDIA's OpenCL says 1,000 ns on an H200
    where stamps are 32 ns apart.
    """
    kernel = queue.new_kernel("empty_launch")
    output = queue.allocate(4096)
    kernel.set_args(output)
    queue.time_launch(kernel, 1)
    stamps: list[int] = []
    durations: list[int] = []
    for _ in range(EMPTY_LAUNCHES):
        event: cl.Event = queue.enqueue_own(kernel, 1)
        event.wait()
        start_ns, end_ns = event.profile.start, event.profile.end
        stamps += [start_ns, end_ns]
        durations.append(end_ns - start_ns)
    output.release()
    gaps = np.concatenate([np.diff(np.unique(stamps)), np.diff(np.unique(durations)), durations])
    positive = gaps[gaps > 0]
    return float(positive.min()) if positive.size else 0.0, float(np.median(durations))
