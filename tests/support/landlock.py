"""Which version of Landlock this Linux has, and whether it has filters of system calls."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

_HAS_FILTERS = Path("/proc/sys/kernel/seccomp/actions_avail").exists()
needs_filters = pytest.mark.skipif(
    not _HAS_FILTERS or platform.machine() not in ("x86_64", "aarch64"),
    reason="this Linux has no seccomp filters, or there is no table for this processor",
)


def landlock_version() -> int:
    """Return the version; negative without Landlock."""
    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))
