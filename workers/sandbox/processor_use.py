"""Read how much processor time a child uses, and so whether it spins or waits."""

from __future__ import annotations

import psutil

_LEAST_S = 0.3
"""Least time that shows whether a process spins: Linux counts processor time in steps of 0.01 s."""
_SPINNING_SHARE = 0.7


class SpinCheck:
    """Tells whether a process has used its processor nearly all the time since this check began.

    Args:
        pid: the process.
        now_s: the time of ``time.monotonic``.
    """

    def __init__(self, pid: int, now_s: float) -> None:
        self._pid = pid
        self._began_s, self._used_s = now_s, used_cpu_s(pid)

    def spins(self, now_s: float) -> bool:
        """Return whether the process spins; False in the first 0.3 s."""
        passed_s = now_s - self._began_s
        if passed_s < _LEAST_S:
            return False
        return used_cpu_s(self._pid) - self._used_s > _SPINNING_SHARE * passed_s


def used_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds; 0.0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return float(times.user + times.system)
