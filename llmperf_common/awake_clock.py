"""A clock that stands still while this process is stopped, for deadlines of child processes.

A whole collector may be stopped for minutes and then go on: by SIGSTOP, ``docker pause``, the
freezer of a cgroup or the suspension of a batch job. Its children were stopped, too, so this time
must not count against them. This process notices a stop by a gap between two of its own readings
of the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONGEST_GAP_S = 1.0
"""Seconds between two readings above which this process counts as stopped in between. Code that
waits for a deadline reads the clock at least every ``POLL_S`` seconds."""
POLL_S = 0.5
_COUNTED_S = POLL_S
"""Seconds that count for a longer gap. Not zero, so that deadlines pass even if all gaps are long.
"""


class AwakeClock:
    """Monotonic seconds without the time in which the process was stopped; call it to read it.

    A gap may also be long because this process was busy, for example with a slow upload. Then a
    hung child ends later than it should: twice as late if each gap is slightly longer than
    ``LONGEST_GAP_S``, and still later if gaps are longer.

    Args:
        clock_s: monotonic seconds, which also count while the process is stopped.

    >>> times_s = iter([0.0, 0.5, 60.5, 61.0])
    >>> clock = AwakeClock(lambda: next(times_s))
    >>> [round(clock(), 3) for _ in range(3)], round(clock.missed_s, 3)
    ([0.5, 1.0, 1.5], 59.5)
    """

    def __init__(self, clock_s: Callable[[], float] | None = None) -> None:
        self._clock_s = clock_s or time.monotonic
        self._lock = threading.Lock()
        self._read_s = self._clock_s()
        self.missed_s = 0.0
        """Seconds that did not count so far."""

    def __call__(self) -> float:
        """Return the seconds; the zero is that of the monotonic clock, less the missed seconds."""
        with self._lock:
            now_s = self._clock_s()
            gap_s = now_s - self._read_s
            if gap_s > LONGEST_GAP_S:
                self.missed_s += gap_s - _COUNTED_S
            self._read_s = now_s
            return now_s - self.missed_s


awake_s = AwakeClock()
"""The clock of this process."""
