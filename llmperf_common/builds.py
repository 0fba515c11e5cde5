"""How a kernel was compiled, and what its machine code needs of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OccupancyLimit(StrEnum):
    """What bounds the work-groups that a multiprocessor holds at once."""

    WORK_GROUPS = "work_groups"
    WORK_ITEMS = "work_items"
    REGISTERS = "registers"
    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """What a kernel's machine code needs of a GPU.

    ``spill_bytes`` is what the code's spill stores write, each counted once, None where the compiler did not say;
    ``local_bytes`` the private memory of a work-item, arrays and spills. A slot may be written by several stores. ``shared_bytes`` and ``occupancy`` leave out ``__local`` arguments, whose size a launch
    decides. ``occupancy`` is the resident share of a multiprocessor's work-items in work-groups of
    ``occupancy_work_group_size``, None for an architecture whose rules are not known. ``seconds``: what it cost to find
    out, a second compilation included; no part of ``Build.seconds``.
    """

    registers: int
    spill_bytes: int | None
    local_bytes: int
    shared_bytes: int
    max_work_group_size: int
    occupancy: float | None
    occupancy_work_group_size: int
    occupancy_limits: tuple[OccupancyLimit, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """How a kernel was compiled; ``binary_sha256`` is None where the build failed.

    ``resources`` is None where it is not known (CPU devices, no pycuda).
    """

    options: str
    log: str
    seconds: float
    binary_sha256: str | None
    resources: KernelResources | None = None
