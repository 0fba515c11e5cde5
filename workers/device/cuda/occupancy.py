"""Compute how many work-groups of a kernel a multiprocessor holds at once, and what limits them.

Owns the arithmetic; needs no device. The rules are those of NVIDIA's occupancy calculator
(``cuda_occupancy.h``, CUDA 13.0) for compute capability 7 to 9. As in the calculator's default, the
on-chip memory of a multiprocessor is shared memory as far as possible.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmperf_common.builds import OccupancyLimit

_REGISTER_UNIT = 256
"""Registers are given to a warp in steps of this number."""
_SUB_PARTITIONS = 4
"""Parts of a multiprocessor. Each has a quarter of the registers, and a warp stays in one part."""
_MAX_REGISTERS = 256
_SHARED_UNIT_BYTES = {7: 256, 8: 128, 9: 128}
"""The steps, in bytes, in which a work-group gets shared memory, by major compute capability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """The limits of one multiprocessor: the CUDA driver's attributes of the same names.

    ``reserved_shared_bytes``: the system's share of each work-group's shared memory (1,024 since
    compute capability 8).
    """

    compute_capability: tuple[int, int]
    warp_size: int
    max_work_items: int
    max_work_groups: int
    max_work_group_size: int
    registers: int
    registers_per_work_group: int
    shared_bytes: int
    shared_bytes_per_work_group: int
    reserved_shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The occupancy of one kernel.

    ``share``: the share of a multiprocessor's warps that are resident; 0 if the work-group cannot
    run. ``limited_by``: every resource that limits the work-groups to ``num_work_groups``.
    """

    num_work_groups: int
    share: float
    limited_by: tuple[OccupancyLimit, ...]


def occupancy(
    sm: Multiprocessor,
    *,
    registers: int,
    shared_bytes: int,
    work_group_size: int,
    max_work_group_size: int,
) -> Occupancy | None:
    """Return how full a multiprocessor gets with this kernel; None for an unknown architecture.

    Args:
        sm: the multiprocessor.
        registers: registers per work-item.
        shared_bytes: shared memory per work-group, ``__local`` arguments included.
        work_group_size: work-items of a work-group.
        max_work_group_size: maximum work-group size for which the kernel was compiled.

    >>> h200 = Multiprocessor(
    ...     compute_capability=(9, 0), warp_size=32, max_work_items=2048, max_work_groups=32,
    ...     max_work_group_size=1024, registers=65536, registers_per_work_group=65536,
    ...     shared_bytes=233472, shared_bytes_per_work_group=49152, reserved_shared_bytes=1024)
    >>> occupancy(h200, registers=40, shared_bytes=0, work_group_size=256, max_work_group_size=1024)
    Occupancy(num_work_groups=6, share=0.75, limited_by=(<OccupancyLimit.REGISTERS: 'registers'>,))
    """
    shared_unit_bytes = _SHARED_UNIT_BYTES.get(sm.compute_capability[0])
    if shared_unit_bytes is None:
        return None
    warps = -(-work_group_size // sm.warp_size)
    max_warps = sm.max_work_items // sm.warp_size
    fits = work_group_size <= min(sm.max_work_group_size, max_work_group_size)
    bounds = {
        OccupancyLimit.WORK_GROUPS: sm.max_work_groups,
        OccupancyLimit.WORK_ITEMS: max_warps // warps if fits else 0,
        OccupancyLimit.REGISTERS: _by_registers(sm, registers, warps),
        OccupancyLimit.SHARED_MEMORY: _by_shared_memory(sm, shared_bytes, shared_unit_bytes),
    }
    num = min(bounds.values())
    return Occupancy(
        num_work_groups=num,
        share=num * warps / max_warps,
        limited_by=tuple(limit for limit, bound in bounds.items() if bound == num),
    )


def _by_registers(sm: Multiprocessor, registers: int, warps: int) -> int:
    a_warp = _rounded_up(registers * sm.warp_size, _REGISTER_UNIT)
    # The hardware checks a work-group as if its warps were spread evenly over all sub-partitions.
    a_group = a_warp * _rounded_up(warps, _SUB_PARTITIONS)
    if a_group > sm.registers_per_work_group or registers > _MAX_REGISTERS:
        return 0
    if a_warp == 0:
        return sm.max_work_groups
    resident_warps = sm.registers // _SUB_PARTITIONS // a_warp * _SUB_PARTITIONS
    return resident_warps // warps


def _by_shared_memory(sm: Multiprocessor, shared_bytes: int, unit_bytes: int) -> int:
    a_group = _rounded_up(shared_bytes + sm.reserved_shared_bytes, unit_bytes)
    if a_group > sm.shared_bytes_per_work_group + sm.reserved_shared_bytes:
        return 0
    return sm.shared_bytes // a_group if a_group else sm.max_work_groups


def _rounded_up(value: int, step: int) -> int:
    return -(-value // step) * step
