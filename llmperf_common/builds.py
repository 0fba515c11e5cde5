"""How a kernel was compiled, and which GPU resources its machine code uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OccupancyLimit(StrEnum):
    """The resource that limits how many work-groups a multiprocessor can hold at once."""

    WORK_GROUPS = "work_groups"
    WORK_ITEMS = "work_items"
    REGISTERS = "registers"
    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResources:
    """The GPU resources that a kernel's machine code uses.

    Attributes:
        registers: number of registers that each work-item uses.
        spill_bytes: bytes that the spill stores write, each store counted once; None where the
            compiler does not report them. Several stores may write one stack slot.
        local_bytes: private memory of a work-item: arrays and spills.
        shared_bytes: local memory per work-group, without ``__local`` arguments, because each
            launch sets the size of these.
        max_work_group_size: largest work-group, in work-items.
        occupancy: resident work-items ÷ work-items that a multiprocessor can hold, 0 to 1, for
            work-groups of ``occupancy_work_group_size`` work-items without ``__local`` arguments;
            None where the architecture is unknown.
        occupancy_limits: the resources that limit the occupancy.
        seconds: time to determine these values, including a second compilation; ``Build.seconds``
            does not contain it.
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

    ``resources`` is None where the resources are unknown: on CPU devices, and without pycuda.
    """

    options: str
    log: str
    seconds: float
    binary_sha256: str | None
    resources: KernelResources | None = None
