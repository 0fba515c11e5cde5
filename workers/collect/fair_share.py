"""Limit how many tasks each collector holds, so that no device ends long after the others.

Owns the estimate of a fair share, and how often the open tasks are counted for the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from llmperf_common.ledger.protocol import TaskCounts

_LEAST_SHARE = 4
"""A collector may always hold 1/4 of its capacity, so that its device does not wait for builds."""
_LEAST_IN_HAND = 3
_COUNT_INTERVAL_S = 2.0
_COUNT_SHARE = 0.01
"""Counting takes at most this share of the time. A count reads a whole table of an SQLite ledger,
which takes 30 to 55 ms for 400,000 tasks."""


class FairShare:
    """A collector's share of the tasks that no collector holds.

    As these tasks become fewer, every collector claims fewer of them (after Polychronopoulos and
    Kuck, *Guided self-scheduling*, 1987).

    Args:
        clock_s: seconds, monotonic.
    """

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._share = math.inf
        self._count_after_s = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether the tasks should be counted before the next claim."""
        return self._clock_s() >= self._count_after_s

    def forget(self) -> None:
        """Count before the next claim, because the ledger has been replaced."""
        self._count_after_s = -math.inf

    def update(self, counts: TaskCounts, *, num_held: int, began_s: float) -> None:
        """Use new counts, requested at ``began_s``; this collector holds ``num_held`` leases."""
        now_s = self._clock_s()
        self._count_after_s = now_s + max(_COUNT_INTERVAL_S, (now_s - began_s) / _COUNT_SHARE)
        if counts.leased <= num_held:  # no other collector is at work
            self._share = math.inf
            return
        num_collectors = max(2.0, counts.leased / num_held) if num_held else 2.0
        self._share = (counts.total - counts.done - counts.leased) / num_collectors

    def most_in_hand(self, capacity: int) -> int:
        """Return how many tasks this collector may hold; its executor can hold ``capacity``."""
        least = max(_LEAST_IN_HAND, capacity // _LEAST_SHARE)
        return int(min(capacity, max(least, self._share)))
