"""Read how much processor time a child uses, and so whether it spins or waits."""

from __future__ import annotations

import psutil

_LEAST_S = 0.3
"""Least time that shows whether a process spins: Linux counts processor time in steps of 0.01 s."""
_SPINNING_SHARE = 0.7
_LEAST_LOOKS = 8
"""Looks that must all find a process running. One that sleeps half of the time passes 1 in 256."""


class SpinCheck:
    """Tells whether a process has computed nearly all the time since this check began.

    It has if it used a processor for 0.7 of that time. On a machine with more work than processors
    it waits for one instead, so it also has if each of at least eight looks found its main thread
    running or ready to run.

    Args:
        pid: the process.
        now_s: the time of ``time.monotonic``.
    """

    def __init__(self, pid: int, now_s: float) -> None:
        self._pid = pid
        self._began_s, self._used_s = now_s, used_cpu_s(pid)
        self._num_looks, self._always_runs = 0, True

    def look(self) -> None:
        """Take note of whether the process runs or sleeps now; call it every 0.1 s or so."""
        self._num_looks += 1
        self._always_runs = self._always_runs and _runs(self._pid)

    def spins(self, now_s: float) -> bool:
        """Return whether the process spins; False in the first 0.3 s."""
        passed_s = now_s - self._began_s
        if passed_s < _LEAST_S:
            return False
        if self._always_runs and self._num_looks >= _LEAST_LOOKS:
            return True
        return used_cpu_s(self._pid) - self._used_s > _SPINNING_SHARE * passed_s


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_RUNNING)
    except (psutil.Error, OSError):
        return False


def used_cpu_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds; 0.0 if it has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except (psutil.Error, OSError):
        return 0.0
    return float(times.user + times.system)
