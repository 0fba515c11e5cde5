"""The peaks of a device, measured by LLMPerf's own kernels in a second or two.

Owns the loads and their sizes; ``peak_rounds.py`` owns the rounds. The floor check and the roofline
use these figures, so an error of some per cent is acceptable.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import numpy.typing as npt
import pyopencl as cl  # noqa: TID251

from llmperf_common.records import Device
from workers.device.opencl.peak_rounds import Load, peaks_of
from workers.device.opencl.queue import DeviceQueue
from workers.device.opencl.thread_placement import placed_apart, thread_times_ns
from workers.plan.inputs import FillKind

EMPTY_LAUNCHES = 64
_FMA_TURNS = 256
_FMA_FLOP_A_TURN = 8 * 4 * 2
_TRIAD_ARRAYS = 3
_BYTES_A_VECTOR = 16


class FmaLoad:
    """Chains of fused multiply-adds that keep every arithmetic unit busy for about 1 ms."""

    def __init__(self, queue: DeviceQueue, kernel_name: str) -> None:
        """Allocate the output and set arguments; ``kernel_name``: ``fma_float32`` or ``…64``."""
        self._queue = queue
        scalar = np.float32 if kernel_name == "fma_float32" else np.float64
        self.num_items = queue.device.compute_units * 2048
        self._kernel = queue.new_kernel(kernel_name)
        self._output = queue.allocate(self.num_items * np.dtype(scalar).itemsize)
        self._kernel.set_args(self._output, np.uint32(_FMA_TURNS), scalar(0.999), scalar(0.001))

    def launch_ns(self) -> float:
        """Launch once and return its device time, ns."""
        return self._queue.time_launch(self._kernel, self.num_items)

    def launch_rate(self) -> float:
        """Launch once and return its rate, 10⁹ FLOP/s."""
        return self.num_items * _FMA_TURNS * _FMA_FLOP_A_TURN / self.launch_ns()


class TriadLoad:
    """STREAM's triad over three arrays that together hold ``total_bytes``.

    Bytes are counted as in STREAM: two reads and one write per element, without the reads of a
    write-allocate cache.

    ``floor_ns`` is subtracted from the time of each launch, but never more than half of that time.
    If the arrays fit a GPU's cache, moving them takes less time than beginning and ending a launch.
    Without the subtraction the cache's peak would be too low, and the floor check would flag
    correct kernels. Pass the time of the shortest empty launch: the peak is the rate of the fastest
    of thousands of launches, whose beginning and end were among the shortest, too.
    """

    def __init__(self, queue: DeviceQueue, *, total_bytes: int, floor_ns: float = 0.0) -> None:
        """Allocate and fill the arrays."""
        self._queue = queue
        self._floor_ns = floor_ns
        self._vectors = max(queue.own_local_size, total_bytes // (_TRIAD_ARRAYS * _BYTES_A_VECTOR))
        num_bytes = self._vectors * _BYTES_A_VECTOR
        self._arrays = [queue.allocate(num_bytes) for _ in range(_TRIAD_ARRAYS)]
        for position, array in enumerate(self._arrays):
            queue.fill(array, FillKind.FLOAT32, self._vectors * 4, position)
        self._kernel = queue.new_kernel("triad")
        self._kernel.set_args(*self._arrays, np.uint64(self._vectors))

    def launch_rate(self) -> float:
        """Launch once and return its rate, GB/s."""
        time_ns = self._queue.time_launch(self._kernel, self._vectors)
        num_bytes = _TRIAD_ARRAYS * self._vectors * _BYTES_A_VECTOR
        return num_bytes / max(time_ns - self._floor_ns, time_ns / 2)

    def free(self) -> None:
        """Free the arrays."""
        for array in self._arrays:
            self._queue.free(array)


def measure_peaks(queue: DeviceQueue, device: Device) -> Device:
    """Return ``device`` with its peaks and their spread, timer step and launch floor."""
    timer_step_ns, empty_ns = _timer_step_and_empty_launches(queue)
    cache = device.last_level_cache_bytes or 2**20
    beyond_cache = min(
        5 * cache, device.global_memory_bytes // 4, _TRIAD_ARRAYS * device.max_allocation_bytes
    )
    triads = {
        "dram": TriadLoad(queue, total_bytes=beyond_cache),
        "l2": TriadLoad(queue, total_bytes=cache // 4, floor_ns=float(empty_ns.min())),
    }
    chains = {"fp32": FmaLoad(queue, "fma_float32")}
    if device.has_fp64:
        chains["fp64"] = FmaLoad(queue, "fma_float64")
    loads: dict[str, Load] = {**triads, **chains}
    before_ns = thread_times_ns()
    for load in loads.values():
        load.launch_rate()  # maps its pages, and shows which threads of the runtime work
    with contextlib.nullcontext() if queue.is_gpu else placed_apart(before_ns):
        peaks = dict(zip(loads, peaks_of(list(loads.values())), strict=True))
    for triad in triads.values():
        triad.free()
    queue.freed.await_cleared()
    fp64 = peaks.get("fp64")
    return dataclasses.replace(
        device,
        timer_step_ns=timer_step_ns,
        launch_floor_ns=float(np.median(empty_ns)),
        peak_dram_gbps=peaks["dram"].best,
        peak_dram_spread=peaks["dram"].spread,
        peak_l2_gbps=peaks["l2"].best,
        peak_l2_spread=peaks["l2"].spread,
        peak_fp32_gflops=peaks["fp32"].best,
        peak_fp32_spread=peaks["fp32"].spread,
        peak_fp64_gflops=fp64.best if fp64 else None,
        peak_fp64_spread=fp64.spread if fp64 else None,
    )


def _timer_step_and_empty_launches(
    queue: DeviceQueue,
) -> tuple[float, npt.NDArray[np.int64]]:
    """Return the smallest observed step of the event clock, and the times of an empty kernel, ns.

    The step is observed because reported steps are wrong: NVIDIA's OpenCL reports a step of 1,000
    ns on an H200, but time stamps are 32 ns apart.
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
    step_ns = float(positive.min()) if positive.size else 0.0
    return step_ns, np.array(durations, np.int64)
