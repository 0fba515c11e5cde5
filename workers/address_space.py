"""A bound on what a process may still take of its address space: a source can make a compiler ask for all there is."""

from __future__ import annotations

import resource
from pathlib import Path

_PAGES = Path("/proc/self/statm")


def bound_growth(num_bytes: int) -> None:
    """Let allocations fail beyond ``num_bytes`` more than this process has now; not for GPU drivers, which reserve more.

    From what it has: libraries reserve room for each of a host's processors before we come to speak (numpy's threads on 64
    of them more than 2 GiB).
    """
    now = int(_PAGES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + num_bytes, now + num_bytes))
