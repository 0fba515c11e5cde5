"""Read how much processor time a child uses, and so whether it spins or waits."""

from __future__ import annotations

import psutil

_LEAST_S = 0.3
"""Shortest observation, in seconds, that shows whether a process spins. Linux counts processor time
in steps of 0.01 s."""
SPINNING_SHARE = 0.7
"""Share of the time for which a process that spins has a processor, if one is free."""
_LEAST_LOOKS = 8
"""Minimum number of looks, which must all find the process running. A process that sleeps half of
the time passes one in 256 such tests."""
_LOOK_S = 0.05
"""Minimum number of seconds between two looks."""


class SpinCheck:
    """Tells whether a process has computed nearly all the time since this check began.

    The answer is yes if the process used a processor for 0.7 of that time. On a machine with more
    work than processors, such a process may have to wait for a processor. So the answer is also yes
    if the process has used ``least_cpu_s`` of processor time, and each of at least eight looks
    found its main thread running or ready to run.

    Args:
        pid: the process.
        now_s: the time of ``awake_s``, like that of all calls.
        least_cpu_s: processor time, in seconds.
    """

    def __init__(self, pid: int, now_s: float, *, least_cpu_s: float) -> None:
        self._pid, self._least_cpu_s = pid, least_cpu_s
        self._began_s, self._used_s = now_s, used_cpu_s(pid)
        self._looked_s, self._num_looks, self._always_runs = now_s, 0, True

    def look(self, now_s: float) -> None:
        """Take note of whether the process runs or sleeps now; call it every 0.1 s or so."""
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._num_looks += 1
            self._always_runs = self._always_runs and _runs(self._pid)

    def spins(self, now_s: float) -> bool:
        """Return whether the process spins; False in the first 0.3 s."""
        passed_s = now_s - self._began_s
        if passed_s < _LEAST_S:
            return False
        used_s = used_cpu_s(self._pid) - self._used_s
        if self._always_runs and self._num_looks >= _LEAST_LOOKS and used_s >= self._least_cpu_s:
            return True
        return used_s > SPINNING_SHARE * passed_s


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
