"""How long a slot pauses when its device has become slow and no other slot collects for its class.

The sentinel, a kernel that is timed at intervals, shows that the device is slow. Owns the growing
pauses of one slot, and the rule that ends them. Does no I/O. The pool knows which slots collect.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_PAUSE_S = 60.0


@dataclass(slots=True, kw_only=True)
class DriftPause:
    """The pauses of one slot since its device last had its usual speed."""

    baseline_ns: float | None = None
    """The sentinel's first time in ns; the next actor compares its readings with this time."""
    since_s: float | None = None
    """Time at which the first of the pauses began; None while the device is not known to be
    slow."""
    pause_s: float = 0.0

    def next_pause_s(self, now_s: float, *, first_s: float, limit_s: float) -> float | None:
        """Return how long to pause now; None if the device has been slow for ``limit_s`` or longer.

        >>> pause = DriftPause()
        >>> times_s = (0, 15, 40, 85, 150, 280, 301)
        >>> [pause.next_pause_s(now_s, first_s=10, limit_s=300) for now_s in times_s]
        [10, 20, 40, 60.0, 60.0, 60.0, None]
        """
        if self.since_s is None:
            self.since_s, self.pause_s = now_s, 0.0
        if now_s - self.since_s >= limit_s:
            return None
        self.pause_s = min(LONGEST_PAUSE_S, 2 * self.pause_s or first_s)
        return self.pause_s

    def note_steady(self) -> None:
        """Note that the sentinel took its usual time again."""
        self.since_s, self.pause_s = None, 0.0
