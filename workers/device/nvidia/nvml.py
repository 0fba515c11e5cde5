"""The only module that imports ``pynvml`` (package ``nvidia-ml-py``), the Python library of NVML.

Finds a card by its UUID or PCI bus, never by index, because the order of cards differs between NVML
and OpenCL. A missing library, driver or card is returned as a value. ``nvml_gpu.py`` queries a
card.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmperf_common.records import Device
from workers.device.nvidia.cache import NVIDIA_PLATFORM
from workers.device.nvidia.monitor import Monitor
from workers.device.nvidia.nvml_gpu import NvmlGpu, is_from_a_lost_card

INSTALL = "pip install nvidia-ml-py"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlAbsent:
    """Why NVML does not answer, and the remedy; ``is_lost``: the card exists but is silent."""

    reason: str
    mend: str
    is_lost: bool = False


def open_gpu(device_uuid: str, pci_bus_id: str | None = None) -> NvmlGpu | NvmlAbsent:
    """Return the NVML card of an OpenCL device.

    Args:
        device_uuid: ``Device.device_uuid``: 8-4-4-4-12 hex digits, with or without ``GPU-``.
        pci_bus_id: used if NVML finds no card by UUID.
    """
    library = _started()
    if isinstance(library, NvmlAbsent):
        return library
    names = []
    is_lost = False
    bare = device_uuid.lower().removeprefix("gpu-")
    if _UUID.fullmatch(bare):
        names.append(("nvmlDeviceGetHandleByUUID", f"GPU-{bare}"))
    if pci_bus_id:
        names.append(("nvmlDeviceGetHandleByPciBusId", pci_bus_id))
    why = "neither UUID nor PCI bus is known"
    for function, name in names:
        try:
            return NvmlGpu(library, getattr(library, function)(name))
        except library.NVMLError as error:
            why = f"{name}: {error}"
            # A search by UUID asks all cards, and any lost card gives this error. A search by PCI
            # bus asks only this card.
            is_lost = name == pci_bus_id and is_from_a_lost_card(library, error)
    library.nvmlShutdown()
    if is_lost:
        return NvmlAbsent(
            reason=f"the GPU does not answer ({why})",
            mend="see nvidia-smi and dmesg: the GPU needs a reset",
            is_lost=True,
        )
    return NvmlAbsent(reason=f"NVML does not know the GPU ({why})", mend="see nvidia-smi -L")


def open_gpu_of(device: Device) -> NvmlGpu | NvmlAbsent | None:
    """Return the NVML card of an OpenCL device; None if the device is not NVIDIA's."""
    if device.platform != NVIDIA_PLATFORM:
        return None
    return open_gpu(device.device_uuid, device.pci_bus_id)


def open_monitor(device: Device, *, poll_hz: float) -> Monitor | None:
    """Return a running monitor of ``device``; None if it is not NVIDIA's, or for ``poll_hz`` 0.

    The result is also None without NVML. A warning then says what is missing; the columns are null.
    """
    if poll_hz <= 0:
        return None
    gpu = open_gpu_of(device)
    if gpu is None:
        return None
    if isinstance(gpu, NvmlAbsent):
        _logger.warning("clocks and temperature will be null: %s (%s)", gpu.reason, gpu.mend)
        return None
    limits = gpu.limits()
    return Monitor(
        gpu, poll_hz=poll_hz, max_sm_clock_mhz=limits.max_sm_clock_mhz or device.max_clock_mhz
    )


def problems_of(device: Device) -> tuple[str, ...]:
    """Return reasons not to use the card behind ``device``; to be called after a child was killed.

    The result is empty if the card is healthy or its state is not known. A driver that does not
    answer is a reason, too. A thread asks the driver, because a lost GPU can block it for ever.
    """
    if device.platform != NVIDIA_PLATFORM:
        return ()
    found: list[tuple[str, ...]] = []
    thread = threading.Thread(target=lambda: found.append(_problems_of(device)), daemon=True)
    thread.start()
    thread.join(_ANSWER_TIMEOUT_S)
    return found[0] if found else (f"NVML does not answer within {_ANSWER_TIMEOUT_S:g} s",)


def _problems_of(device: Device) -> tuple[str, ...]:
    gpu = open_gpu_of(device)
    if isinstance(gpu, NvmlAbsent):
        return (gpu.reason,) if gpu.is_lost else ()
    if gpu is None:
        return ()
    try:
        return gpu.health().problems
    finally:
        gpu.close()


def all_compute_pids() -> Mapping[str, frozenset[int]] | NvmlAbsent:
    """Return the pids with a compute context on each card that NVML lists, by bare UUID.

    Call this before a device is opened, while it is not yet known on which card the device is.
    """
    library = _started()
    if isinstance(library, NvmlAbsent):
        return library
    found: dict[str, frozenset[int]] = {}
    try:
        for index in range(library.nvmlDeviceGetCount()):
            gpu = NvmlGpu(library, library.nvmlDeviceGetHandleByIndex(index))
            processes = gpu.compute_processes() or ()
            found[gpu.uuid.lower().removeprefix("gpu-")] = frozenset(one.pid for one in processes)
    except library.NVMLError as error:
        return NvmlAbsent(reason=f"NVML lists no GPUs: {error}", mend="see nvidia-smi")
    finally:
        library.nvmlShutdown()
    return found


def uuid_of_gpu(gpu_id: str) -> str | NvmlAbsent:
    """Return a card's UUID, from its index in PCI bus order or from the beginning of its UUID."""
    library = _started()
    if isinstance(library, NvmlAbsent):
        return library
    try:
        count = library.nvmlDeviceGetCount()
        found = [
            NvmlGpu(library, library.nvmlDeviceGetHandleByIndex(index)).uuid
            for index in range(count)
        ]
    except library.NVMLError as error:
        return NvmlAbsent(reason=f"NVML lists no GPUs: {error}", mend="see nvidia-smi")
    finally:
        library.nvmlShutdown()
    if gpu_id.isdigit():
        known = found[int(gpu_id) : int(gpu_id) + 1]
    else:
        known = [uuid for uuid in found if uuid.lower().startswith(gpu_id.lower())]
    if len(known) == 1:
        return known[0]
    return NvmlAbsent(reason=f"NVML knows no GPU {gpu_id} among {count}", mend="see nvidia-smi -L")


def absence() -> NvmlAbsent | None:
    """Return why NVML cannot be used on this machine; None if it can."""
    library = _started()
    if isinstance(library, NvmlAbsent):
        return library
    library.nvmlShutdown()
    return None


def _started() -> Any | NvmlAbsent:
    """Return the initialised library, or why there is none; each call needs a shutdown."""
    try:
        import pynvml  # noqa: PLC0415, TID251  (loaded only where a GPU is asked for)
    except ImportError:
        return NvmlAbsent(reason="nvidia-ml-py is not installed", mend=INSTALL)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        reason = f"NVML does not start: {error}"
        return NvmlAbsent(reason=reason, mend="install NVIDIA's driver, or see nvidia-smi")
    return pynvml
