"""Bounds on what a process may still take: a source can make a compiler ask for all there is.

Owns how a limit of this process is set: never above what its user or its batch system has set already.
"""

from __future__ import annotations

import resource
from pathlib import Path

_PAGES = Path("/proc/self/statm")


def lower_limit(kind: int, most: int) -> None:
    """Set a limit of this process (``resource.RLIMIT_…``) to ``most``, or leave it where it is lower already."""
    limits = resource.getrlimit(kind)
    soft, hard = (most if now == resource.RLIM_INFINITY else min(most, now) for now in limits)
    resource.setrlimit(kind, (soft, hard))


def bound_growth(num_bytes: int) -> None:
    """Let allocations fail beyond ``num_bytes`` more than this process has now; not for GPU drivers, which reserve more.

    From what it has: libraries reserve address space for each of a host's processors before we come to speak (numpy's threads on 64
    of them more than 2 GiB). A lower ``ulimit -v`` of the user stays.
    """
    now = int(_PAGES.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    lower_limit(resource.RLIMIT_AS, now + num_bytes)


def memory_limit_text() -> str:
    """Return what to say of this process's own limit on memory where something could not be started; empty without one.

    Children inherit it.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return ""
    return f"address space is limited to {soft // 2**20:,} MiB here (`ulimit -v`): raise that limit, or run without it"
