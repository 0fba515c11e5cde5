"""The operations and memory accesses that a launch executes: one record per counted launch config.

Owns the record and the names of its columns; ``workers/work`` counts. All amounts are totals of the
launch, estimated from the work-items that the virtual launch ran.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of one launch.

    Operations are operations of the source, once per vector lane; a fused multiply-add counts as
    two (``docs/explanation/work.md`` has the rules). ``…_requests`` counts the accesses of a warp
    (32 neighbouring work-items) as one request; ``…_sectors`` counts the distinct 32-byte blocks
    that each request touches, summed over requests. ``barriers`` and ``loop_turns`` (loop
    iterations) are summed over work-items. ``active_items`` is the number of work-items with a
    store or atomic operation in global memory.

    ``lane_efficiency``: share of a warp's lanes that are active while the warp runs. It is 1
    without divergence, and less where the work-group size is not a multiple of 32. ``item_spread``:
    standard deviation ÷ mean of the work per work-item. ``warp_peak``: work of the busiest warp ÷
    mean per warp.

    ``…_lines``: like ``…_sectors``, but for lines of 128 bytes. ``group_bytes``: the distinct bytes
    of global memory that each work-group touches, summed over work-groups.
    ``global_atomic_requests``: atomic operations, where those of a warp count as one request;
    ``global_atomic_addresses``: the distinct addresses of each such request, summed over requests;
    ``global_atomic_peak``: the number of atomic operations on the most used address. The fields of
    this paragraph are None in rows that an earlier release counted. ``group_bytes`` is also None
    for kernels whose work-groups are too expensive to run completely.

    ``sampled_items``: number of work-items that ran; if ``is_exact``, these are all work-items of
    the launch. ``relative_error``: standard error of the sum of operations and accesses, or of the
    accesses to global memory, as a share of that sum; the larger of the two, at most 10.
    ``without_barriers``: work-items ran one after another despite barriers, and LLMPerf could not
    check whether that changes a count.
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
"""Names of the fields of ``Work``, in the order of the record."""
OPTIONAL_WORK = tuple(one.name for one in fields(Work) if one.default is None)
"""Fields that may be None although the others are known."""
WORK_KINDS = {one.name: str(one.type).removesuffix(" | None") for one in fields(Work)}
"""Type of each field by its name: ``float``, ``int`` or ``bool``."""
