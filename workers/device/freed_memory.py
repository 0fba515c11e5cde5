"""Device memory that was freed and is not cleared yet.

NVIDIA's driver clears the pages of a freed buffer before anybody gets them, after the call that frees it has come back, beside whatever
runs then: on an H200 (driver 580.159) 0.4 GiB a millisecond, and launches that wait for memory take 13 to 15 % longer meanwhile, those of other
processes, too (``benchmarks/freed_memory.py``). Owns how long to wait for that. A buffer that was never used has no pages.
"""

from __future__ import annotations

import time

CLEARED_BYTES_PER_S = 300e9
"""Less than was seen (400 to 430): what is waited too long costs less than a wrong time."""


class FreedMemory:
    """What one context has freed.

    Args:
        bytes_per_s: how fast it is cleared; None: nothing is, as on a CPU device.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._cleared_s: float | None = None

    def note(self, num_bytes: int) -> None:
        """So many bytes are freed now; they are cleared after what was freed before."""
        if self._bytes_per_s is not None:
            from_s = max(self._cleared_s or 0.0, time.monotonic())
            self._cleared_s = from_s + num_bytes / self._bytes_per_s

    def await_cleared(self) -> None:
        """Sleep until all of it should be cleared."""
        if self._cleared_s is not None:
            time.sleep(max(0.0, self._cleared_s - time.monotonic()))
            self._cleared_s = None
