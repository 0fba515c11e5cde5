"""Limit what a process may still allocate: a source can make a compiler ask for all memory.

Owns the rule by which a limit of this process is set: never above a limit that the user or batch
system has set.
"""

from __future__ import annotations

import resource
from pathlib import Path

_PAGES = Path("/proc/self/statm")


def lower_limit(kind: int, most: int) -> None:
    """Lower a limit of this process (``resource.RLIMIT_…``) to ``most``; never raise it."""
    limits = resource.getrlimit(kind)
    soft, hard = (most if now == resource.RLIM_INFINITY else min(most, now) for now in limits)
    resource.setrlimit(kind, (soft, hard))


def bound_growth(num_bytes: int) -> None:
    """Make allocations fail that add more than ``num_bytes`` to this process's address space.

    Do not use it with GPU drivers, which reserve more. The limit is relative to the present size,
    because libraries have already reserved address space for each processor (numpy's threads on 64
    processors: more than 2 GiB). A lower ``ulimit -v`` of the user stays.
    """
    now = int(_PAGES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    lower_limit(resource.RLIMIT_AS, now + num_bytes)


def memory_limit_text() -> str:
    """Return a sentence on this process's memory limit, for an error message; "" without a limit.

    Children inherit the limit, so it may be the reason why a child could not start.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return ""
    return (
        f"address space is limited to {soft // 2**20:,} MiB here (`ulimit -v`): "
        "raise that limit, or run without it"
    )
