"""How much memory the parse child may use for a source, and the watch that ends it above that.

The limit depends on the length of the source: a long table of numbers needs 700 bytes a character,
while a macro of a few lines can expand to any number of tokens. Resident memory counts, because
libclang reserves address space for each processor. ``parse_pool.py`` makes the child's death an
ordinary failure of the source.
"""

from __future__ import annotations

import os
import resource
import threading
import time

MEMORY_STATUS = 70
"""Exit status of a child that needed too much memory for its job alone."""
USED_STATUS = 71
"""Exit status of a child that needed too much memory when earlier jobs had left much in use; a new
child may be able to read the source."""
_CLEAN_BYTES = 96 * 2**20
"""Maximum bytes in memory of a child whose earlier jobs left little in use; a new child has 50 MiB.
"""
_BASE_BYTES = 384 * 2**20
"""Bytes in memory that are allowed for a source of any length. A child that read 1,850 sources from
GitHub needed at most 138 MiB, 50 of which are the child itself."""
_BYTES_PER_CHAR = 1024
_INTERVAL_S = 0.02
"""Seconds between two looks at the memory; libclang takes up to 500 MB/s."""


def most_bytes(source: str) -> int:
    """Return how many bytes of the child may be in memory while it reads ``source``.

    >>> most_bytes("kernel void k() {}") // 2**20
    384
    """
    return _BASE_BYTES + _BYTES_PER_CHAR * len(source)


class MemoryWatch:
    """A thread that ends this process once more of it is in memory than the job allows."""

    def __init__(self) -> None:
        self._pages: int | None = None
        self._most: float = float("inf")
        self._status = MEMORY_STATUS

    def start(self) -> None:
        """Start the thread; without ``/proc`` there is no watch."""
        try:
            self._pages = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        threading.Thread(
            target=self._watch, args=(self._pages,), name="memory", daemon=True
        ).start()

    def allow(self, source: str) -> None:
        """Set the limit of the job that begins."""
        if self._pages is not None:
            is_clean = _resident_bytes(self._pages) <= _CLEAN_BYTES
            self._status = MEMORY_STATUS if is_clean else USED_STATUS
        self._most = most_bytes(source)

    def _watch(self, pages: int) -> None:
        while _resident_bytes(pages) <= self._most:
            time.sleep(_INTERVAL_S)
        os._exit(self._status)  # at once: libclang cannot be interrupted


def _resident_bytes(pages: int) -> int:
    return int(os.pread(pages, 128, 0).split()[1]) * resource.getpagesize()
