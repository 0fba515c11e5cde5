"""Wait until the driver has probably cleared the device memory that was freed.

On an H200 (driver 580.159) launches limited by memory take 12 to 14 % longer after a buffer was
freed, also in other processes. This lasts for the buffer's bytes divided by 335 to 440 GB/s. A
buffer that was never used, and so has no pages, causes no delay
(``benchmarks/device/freed_memory.py``). So the driver presumably clears freed pages during later
launches. Decides how long to wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

CLEARED_BYTES_PER_S = 300e9
"""Bytes per second at which the driver clears freed memory. The value is lower than measured,
because waiting too long costs less than a wrong time."""


class FreedMemory:
    """The memory that one context has freed.

    Args:
        bytes_per_s: speed of clearing; None on a CPU device, where nothing is cleared.
        clock: monotonic seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        bytes_per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._cleared_s: float | None = None

    def note(self, num_bytes: int) -> None:
        """Note that ``num_bytes`` are freed now; the driver clears earlier freed bytes first."""
        if self._bytes_per_s is not None:
            from_s = self._clock()
            if self._cleared_s is not None:
                from_s = max(from_s, self._cleared_s)
            self._cleared_s = from_s + num_bytes / self._bytes_per_s

    def await_cleared(self) -> None:
        """Sleep until all freed memory should be cleared."""
        if self._cleared_s is not None:
            left_s = self._cleared_s - self._clock()
            if left_s > 0:
                self._sleep(left_s)
            self._cleared_s = None
