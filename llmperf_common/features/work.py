"""What a launch executes, as far as it was counted: one record a launch config.

Owns the record, the names of its columns and nothing else: ``workers/work`` counts. Amounts are of the whole launch,
estimated from the work-items that ran.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one launch executes.

    Operations are those of the source (``docs/explanation/work.md`` says what counts as one), by lanes of vectors;
    a fused multiply-add is two. ``…_requests`` are accesses of warps (32 neighbouring work-items at once),
    ``…_sectors`` the different blocks of 32 bytes these touch, added up over requests. ``barriers`` and ``loop_turns``
    are added up over work-items. ``active_items`` execute at least one store or atomic operation in global memory.

    ``lane_efficiency``: the share of a warp's lanes that work while the warp does, 1 without divergence, below it
    also where a work-group is no multiple of 32. ``item_spread``: standard deviation ÷ mean of the work of
    work-items. ``warp_peak``: that of the busiest warp seen ÷ the mean.

    ``…_lines`` are the different lines of 128 bytes that requests touch, as ``…_sectors``. ``group_bytes``: the different
    bytes of global memory that the work-items of a work-group touch, added up over work-groups.
    ``global_atomic_requests`` are atomic operations of warps, ``global_atomic_addresses`` the different addresses that
    each meets, added up; ``global_atomic_peak`` is how many atomic operations meet on the address that has most. These six
    are None where they are not known: of rows that an earlier version counted, and ``group_bytes`` of kernels whose
    work-groups cost too much to run whole.

    ``sampled_items``: how many work-items ran; all of the launch's where it ``is_exact``. ``relative_error``: the
    standard error of the operations and accesses altogether, as a share of them. ``without_barriers``: work-items ran
    one after another although they meet at barriers, and it could not be tried whether that changes a count.
    """

    fp32_ops: float
    fp64_ops: float
    fp16_ops: float
    int_ops: float
    special_ops: float
    global_loads: float
    global_load_bytes: float
    global_load_requests: float
    global_load_sectors: float
    global_stores: float
    global_store_bytes: float
    global_store_requests: float
    global_store_sectors: float
    constant_loads: float
    constant_load_bytes: float
    local_loads: float
    local_load_bytes: float
    local_stores: float
    local_store_bytes: float
    global_atomics: float
    local_atomics: float
    barriers: float
    loop_turns: float
    active_items: float
    lane_efficiency: float
    item_spread: float
    warp_peak: float
    sampled_items: int
    is_exact: bool
    relative_error: float
    without_barriers: bool
    global_load_lines: float | None = None
    global_store_lines: float | None = None
    group_bytes: float | None = None
    global_atomic_requests: float | None = None
    global_atomic_addresses: float | None = None
    global_atomic_peak: float | None = None


WORK_NAMES = tuple(one.name for one in fields(Work))
"""In the order of the record."""
OPTIONAL_WORK = tuple(one.name for one in fields(Work) if one.default is None)
"""Those that may be missing where the others are known."""
WORK_KINDS = {one.name: str(one.type).removesuffix(" | None") for one in fields(Work)}
"""``float``, ``int`` or ``bool`` by the name."""
