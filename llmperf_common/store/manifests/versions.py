"""Which earlier versions of a dataset stay: the last few, and one of each quarter of an hour of the last day.

Owns that rule. A version that goes takes no shard with it, for a later one lists what it has listed; shards that a
compaction has replaced stay by a rule of their own (``compact.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

NUM_RECENT = 20
"""Versions: half a minute of a run at work. A process that has just read the name of the newest one finds it."""
KEPT_FOR_S = 86_400
_SPACING_S = 900

Earlier = tuple[tuple[int, int], ...]
"""Versions that are there, ascending, each with when it was published: seconds since 1970, 0 where that is not known."""


def thinned(earlier: Sequence[tuple[int, int]], *, now_s: int) -> Earlier:
    """Return those of the versions before a new one that stay.

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
