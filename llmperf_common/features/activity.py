"""Whether a kernel does any work on the inputs that it was given.

Owns the rule. It uses the counted work of a kernel's ok rows or, where no work was counted, whether
their output changed. Idle kernels stay in the dataset; training leaves them out by default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from llmperf_common.features.work import Work

FEW_SHARE = 0.1
"""Share of the work-items that counts as few. If no more store anything, most of the others have
probably returned at a guard such as ``if (i >= n) return``."""
_UNEVEN_SPREAD = 0.5
_UNEVEN_PEAK = 3.0
"""Limits of ``item_spread`` and ``warp_peak`` (see ``Work``), which are high if the work of
work-items differs a lot. If few work-items store, a launch that reaches one of the limits is
``few_items``. A reduction does not reach them: only one of hundreds of its work-items stores, but
all do similar work before the store. The reductions in kernels/ have a spread of at most 0.35 and a
peak of at most 2.1."""
_FEW_ACCESSES = 0.5
_FEW_OPERATIONS = 64.0
"""Limits of memory accesses and of operations per work-item. If few work-items store, a launch
below both limits is ``few_items``, too: at least half of its work-items touch no memory. An example
is ``if (get_global_id(0) == 0) a[0] += 1;``. Its one active work-item does so little that neither
spread nor peak is large. A search that computes a lot and rarely stores a hit has more operations
than the limit."""


class Activity(StrEnum):
    """How many work-items of a kernel's launches do work on their inputs."""

    ACTIVE = "active"
    """At most half of the counted launches are ``few_items`` or ``nothing``."""
    FEW_ITEMS = "few_items"
    """At most a tenth of the work-items store anything, and the others do far less work, or most
    of them touch no memory."""
    NOTHING = "nothing"
    """No work-item of a counted launch stores anything. If no launch was counted: no checked output
    changed."""


def activity_of_launch(num_items: int, work: Work) -> Activity:
    """Return the activity of one counted launch with ``num_items`` work-items."""
    if work.active_items == 0:
        return Activity.NOTHING
    if work.active_items > FEW_SHARE * num_items:
        return Activity.ACTIVE
    is_uneven = work.item_spread >= _UNEVEN_SPREAD or work.warp_peak >= _UNEVEN_PEAK
    is_few = is_uneven or _most_do_nothing(num_items, work)
    return Activity.FEW_ITEMS if is_few else Activity.ACTIVE


def _most_do_nothing(num_items: int, work: Work) -> bool:
    loads = work.global_loads + work.constant_loads + work.local_loads
    stores = work.global_stores + work.local_stores
    accesses = loads + stores + work.global_atomics + work.local_atomics
    floats = work.fp32_ops + work.fp64_ops + work.fp16_ops + work.special_ops
    operations = floats + work.int_ops
    return accesses < _FEW_ACCESSES * num_items and operations < _FEW_OPERATIONS * num_items


def activity_of_kernel(
    launches: Iterable[tuple[int, Work | None, bool | None]],
) -> Activity | None:
    """Return a kernel's activity; None where nothing is known.

    Args:
        launches: for each ok row: number of work-items, work (None: not counted), and whether the
            output changed (None: not checked).
    """
    counted: Counter[Activity] = Counter()
    changed: set[bool] = set()
    for num_items, work, writes_output in launches:
        if work is not None:
            counted[activity_of_launch(num_items, work)] += 1
        if writes_output is not None:
            changed.add(writes_output)
    if not counted:
        return Activity.NOTHING if changed == {False} else None
    if counted[Activity.NOTHING] == counted.total():
        return Activity.NOTHING
    idle = counted[Activity.NOTHING] + counted[Activity.FEW_ITEMS]
    return Activity.FEW_ITEMS if 2 * idle > counted.total() else Activity.ACTIVE
