"""The present state of an NVIDIA GPU, for display: clocks, temperature, processes, owner.

Owns the summary that ``llmperf doctor`` shows. Opens no compute context.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from llmperf_common.records import Device
from workers.device.nvidia.cache import NVIDIA_PLATFORM
from workers.device.nvidia.gpu_lock import Owner, owner_of
from workers.device.nvidia.monitor import THROTTLING, ClockReason, Reading
from workers.device.nvidia.nvml import NvmlAbsent, open_gpu_of
from workers.device.nvidia.nvml_gpu import ComputeProcess, GpuLimits, Health


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU at one moment; fields from NVML are None if NVML is absent.

    ``processes`` is also None if NVML does not report which processes compute on the card.
    ``owner``: the collector that holds the card.
    """

    owner: Owner | None
    absent: NvmlAbsent | None = None
    reading: Reading | None = None
    limits: GpuLimits | None = None
    health: Health | None = None
    processes: tuple[ComputeProcess, ...] | None = None

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """The names of the reasons that slow the card down now."""
        if self.reading is None or self.reading.reasons is None:
            return ()
        found = self.reading.reasons & THROTTLING
        return tuple(str(one.name).lower() for one in ClockReason if one in found)


def gpu_state(device: Device) -> GpuState | None:
    """Return the state of ``device``; None if it is not NVIDIA's."""
    if device.platform != NVIDIA_PLATFORM:
        return None
    owner = owner_of(device)
    gpu = open_gpu_of(device)
    if gpu is None or isinstance(gpu, NvmlAbsent):
        return GpuState(owner=owner, absent=gpu)
    with gpu:
        return GpuState(
            owner=owner,
            reading=gpu.read(time.monotonic()),
            limits=gpu.limits(),
            health=gpu.health(),
            processes=gpu.compute_processes(),
        )
