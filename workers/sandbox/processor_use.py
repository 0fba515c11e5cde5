"""Read how much processor time a child uses, and so whether it spins or waits."""

from __future__ import annotations

import psutil

_LEAST_S = 0.04
"""Seconds between two readings of the processor time, which Linux counts in steps of 0.01 s."""
_SPINNING_SHARE = 0.7


class SpinCheck:
    """Tells whether a process uses its processor all the time from now on.

    Args:
        pid: the process.
        now_s: the time of ``time.monotonic``.
    """

    def __init__(self, pid: int, now_s: float) -> None:
        self._pid = pid
        self._read_at_s, self._used_s = now_s, used_cpu_s(pid)

    def spins(self, now_s: float) -> bool:
        """Return whether the process has used its processor since the last reading.

        A call less than 0.04 s after the last reading reads nothing and returns False.
        """
        passed_s = now_s - self._read_at_s
        if passed_s < _LEAST_S:
            return False
        used_s = used_cpu_s(self._pid)
        spins = used_s - self._used_s > _SPINNING_SHARE * passed_s
        self._read_at_s, self._used_s = now_s, used_s
        return spins


def used_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds; 0.0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return float(times.user + times.system)
