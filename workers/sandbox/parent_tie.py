"""Tie a child's life to its parent's: it dies with the parent, and first if memory runs out.

Imports little, because each child process imports this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask Linux to SIGKILL this process when its parent ends; exit if that has happened already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def die_before_parent() -> None:
    """Ask Linux to kill this process first if memory runs out, because its code is a likely cause.

    The collector must survive. It records a failed row if a child dies like this twice.
    """
    with contextlib.suppress(OSError):  # no /proc, or a sandbox forbids it: nothing changes
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
