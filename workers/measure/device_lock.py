"""The lock of a device: run children load kernels side by side, but only its holder launches.

Owns a lock file that the run children of one collector share, and what the next holder must know
about the last one. The lock is an ``flock``: the operating system releases it when its holder dies,
so no parent process has to pass it on.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from llmperf_common.files.plain_files import open_lock_file

_MAX_RECORD_BYTES = 64  # fixed length of the record in the lock file
_GONE_POLL_S = 0.005
GONE_TIMEOUT_S = 10.0
_ENDED_STATES = "ZXx"  # states in /proc/PID/stat: zombie, dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """How the last holder left the device.

    ``idle_s``: seconds since the last holder released the lock; None if there was none or it died.
    ``dead_pid``: process id of a last holder that died while it held the lock, else None.
    """

    idle_s: float | None
    dead_pid: int | None


@contextmanager
def device_lock(path: Path | None) -> Iterator[Handover]:
    """Wait for the lock and hold it. After an exception or a death the lock is marked as abandoned.

    Open the device before calling this. A dying process closes its files in the order of their
    descriptors, so it then releases the device before the lock.

    Args:
        path: the lock file, created if missing; None if no other process uses the device.
    """
    if path is None:
        yield Handover(idle_s=None, dead_pid=None)
        return
    descriptor = open_lock_file(path, create=True, mode=0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        handover = _read(descriptor)
        _write(descriptor, f"held {os.getpid()}")
        yield handover
        _write(descriptor, f"free {time.monotonic()!r}")
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> Handover:
    state, _, value = os.pread(descriptor, _MAX_RECORD_BYTES, 0).decode().strip().partition(" ")
    if state == "free":
        return Handover(idle_s=max(0.0, time.monotonic() - float(value)), dead_pid=None)
    return Handover(idle_s=None, dead_pid=int(value) if state == "held" else None)


def _write(descriptor: int, record: str) -> None:
    os.pwrite(descriptor, record.ljust(_MAX_RECORD_BYTES).encode(), 0)


def await_end(pid: int) -> None:
    """Wait until the process of a dead holder has ended, but at most ``GONE_TIMEOUT_S``."""
    deadline_s = time.monotonic() + GONE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return
        if stat.rpartition(")")[2].split()[0] in _ENDED_STATES:
            return
        time.sleep(_GONE_POLL_S)
