"""Which earlier versions of a dataset are kept: the last 20, and one per 15 min of the last day.

Owns that rule. Removing a version removes no shard, because later versions list the same shards.
``compact.py`` has the rule for shards that a compaction has replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

NUM_RECENT = 20
"""Number of newest versions that are kept; a run makes as many in about half a minute. So a process
that has just read the name of the newest version still finds its file."""
KEPT_FOR_S = 86_400
_SPACING_S = 900

Earlier = tuple[tuple[int, int], ...]
"""Kept versions in ascending order, each with its time of publication in seconds since 1970 (0 if
unknown)."""


def thinned(earlier: Sequence[tuple[int, int]], *, now_s: int) -> Earlier:
    """Return the earlier versions that a new version keeps.

    >>> thinned([(1, 0), (2, 90_000), (3, 90_001)], now_s=90_002)
    ((1, 0), (2, 90000), (3, 90001))
    >>> versions = thinned([(n, 90_000 + n) for n in range(1, 4000)], now_s=94_000)
    >>> [version for version, _ in versions[:6]], len(versions)
    ([899, 1799, 2699, 3599, 3979, 3980], 25)
    """
    recent = list(earlier[-NUM_RECENT:])
    older = list(earlier[:-NUM_RECENT])
    last_of: dict[int, tuple[int, int]] = {}
    for version, at_s in older:
        if now_s - at_s < KEPT_FOR_S:
            last_of[at_s // _SPACING_S] = (version, at_s)
    return (*sorted(last_of.values()), *recent)
