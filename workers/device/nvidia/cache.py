"""Facts of an NVIDIA GPU that the CUDA driver reports and OpenCL does not, read through ctypes.

These facts are the size of the L2 cache and the resources of a compute unit. NVIDIA's OpenCL
reports 4,325,376 bytes of cache for an H200 (132 x 32 KiB, a first-level figure). A flush of twice
that size would leave the 60 MB L2 warm. No CUDA context is created, and only the driver is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

NVIDIA_PLATFORM = "NVIDIA CUDA"
"""The name of NVIDIA's OpenCL platform."""

_UUID_BYTES = 16
_KHZ_PER_MHZ = 1000


class _Attribute(IntEnum):
    """``CUdevice_attribute`` of cuda.h; the numbers are the driver's binary interface."""

    WARP_SIZE = 10
    ECC_ENABLED = 32
    PCI_BUS_ID = 33
    PCI_DEVICE_ID = 34
    MEMORY_CLOCK_RATE = 36
    GLOBAL_MEMORY_BUS_WIDTH = 37
    L2_CACHE_SIZE = 38
    MAX_THREADS_PER_MULTIPROCESSOR = 39
    PCI_DOMAIN_ID = 50
    COMPUTE_CAPABILITY_MAJOR = 75
    COMPUTE_CAPABILITY_MINOR = 76
    MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81
    MAX_REGISTERS_PER_MULTIPROCESSOR = 82
    MAX_BLOCKS_PER_MULTIPROCESSOR = 106


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaFacts:
    """Fields of ``Device`` with the same names; None if the driver does not know the attribute."""

    compute_capability: str | None = None
    warp_size: int | None = None
    registers_per_unit: int | None = None
    local_memory_per_unit_bytes: int | None = None
    max_work_items_per_unit: int | None = None
    max_work_groups_per_unit: int | None = None
    memory_bus_bits: int | None = None
    max_memory_clock_mhz: float | None = None
    has_ecc: bool | None = None
    pci_bus_id: str | None = None


def l2_cache_bytes(device_uuid: str) -> int | None:
    """Return the L2 bytes of the GPU with this UUID; None if the driver or the GPU is absent."""
    ask = _questions(device_uuid)
    return ask(_Attribute.L2_CACHE_SIZE) if ask else None


def nvidia_facts(device_uuid: str) -> NvidiaFacts:
    """Return the CUDA driver's facts about the GPU with this UUID; all None without such a GPU."""
    ask = _questions(device_uuid)
    return facts_of(ask) if ask else NvidiaFacts()


def facts_of(ask: Callable[[int], int | None]) -> NvidiaFacts:
    """Return the facts; ``ask`` maps an attribute's number to its value."""
    major, minor = (
        ask(_Attribute.COMPUTE_CAPABILITY_MAJOR),
        ask(_Attribute.COMPUTE_CAPABILITY_MINOR),
    )
    clock_khz, ecc = ask(_Attribute.MEMORY_CLOCK_RATE), ask(_Attribute.ECC_ENABLED)
    return NvidiaFacts(
        compute_capability=None if major is None or minor is None else f"{major}.{minor}",
        warp_size=ask(_Attribute.WARP_SIZE),
        registers_per_unit=ask(_Attribute.MAX_REGISTERS_PER_MULTIPROCESSOR),
        local_memory_per_unit_bytes=ask(_Attribute.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        max_work_items_per_unit=ask(_Attribute.MAX_THREADS_PER_MULTIPROCESSOR),
        max_work_groups_per_unit=ask(_Attribute.MAX_BLOCKS_PER_MULTIPROCESSOR),
        memory_bus_bits=ask(_Attribute.GLOBAL_MEMORY_BUS_WIDTH),
        max_memory_clock_mhz=clock_khz / _KHZ_PER_MHZ if clock_khz else None,
        has_ecc=None if ecc is None else bool(ecc),
        pci_bus_id=_pci_bus_id(ask),
    )


def _pci_bus_id(ask: Callable[[int], int | None]) -> str | None:
    """Return the PCI address as NVML writes it; the function of a GPU is always 0."""
    domain, bus = ask(_Attribute.PCI_DOMAIN_ID), ask(_Attribute.PCI_BUS_ID)
    device = ask(_Attribute.PCI_DEVICE_ID)
    if domain is None or bus is None or device is None:
        return None
    return f"{domain:08X}:{bus:02X}:{device:02X}.0"


def _questions(device_uuid: str) -> Callable[[int], int | None] | None:
    """Return a function that maps an attribute's number to the GPU's value; None without GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = _device_of(cuda, device_uuid)
    if device is None:
        return None

    def ask(attribute: int) -> int | None:
        value = ctypes.c_int()
        status = cuda.cuDeviceGetAttribute(ctypes.byref(value), ctypes.c_int(attribute), device)
        return value.value if status == 0 else None

    return ask


def _device_of(cuda: Any, device_uuid: str) -> ctypes.c_int | None:
    count, device = ctypes.c_int(), ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return None
    wanted = device_uuid.replace("-", "")
    for index in range(count.value):
        uuid = (ctypes.c_ubyte * _UUID_BYTES)()
        if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
            continue
        if cuda.cuDeviceGetUuid(uuid, device) == 0 and bytes(uuid).hex() == wanted:
            return device
    return None
