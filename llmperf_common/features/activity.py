"""Whether a kernel does anything on the inputs that it was given.

Owns the rule, over what is known of its ok rows: the counted work, else whether its output changed. A kernel is not left
out of a dataset for it; who fits models may leave it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from llmperf_common.features.work import Work

FEW_SHARE = 0.1
"""Share of the work-items: where fewer store anything, most of the others have left behind a
guard."""
_UNEVEN_SPREAD = 0.5
_UNEVEN_PEAK = 3.0
"""Of reductions, too, one work-item in hundreds stores; but there all do much the same before: those of kernels/ have a spread of
at most 0.35 and a peak of at most 2.1."""


class Activity(StrEnum):
    """What a kernel's launches do on their inputs."""

    ACTIVE = "active"
    """At least half of its counted launches are neither of the following."""
    FEW_ITEMS = "few_items"
    """At most a tenth of the work-items store anything, and the others do far less than these."""
    NOTHING = "nothing"
    """No work-item of any counted launch stores anything; or none was counted, and no launch that was checked changed its output."""


def activity_of_launch(num_items: int, work: Work) -> Activity:
    """Return the activity of one counted launch with this number of work-items."""
    if work.active_items == 0:
        return Activity.NOTHING
    is_uneven = work.item_spread >= _UNEVEN_SPREAD or work.warp_peak >= _UNEVEN_PEAK
    if work.active_items <= FEW_SHARE * num_items and is_uneven:
        return Activity.FEW_ITEMS
    return Activity.ACTIVE


def activity_of_kernel(
    launches: Iterable[tuple[int, Work | None, bool | None]],
) -> Activity | None:
    """Return what a kernel does, None where that is not known.

    Args:
        launches: of its ok rows, work-items, work where it was counted, and whether the output changed where that was checked.
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
