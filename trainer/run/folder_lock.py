"""The lock on a run's folder: one process at a time changes the folder's content."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import RunExists

_PAUSE_S = 0.05


@contextmanager
def locked(folder: Path, taken: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock on ``folder`` while the block runs.

    The lock is on the folder itself, so no lock file remains; a killed process releases the lock.
    On a file system without locks nothing is locked.

    Args:
        folder: an existing folder.
        taken: message of the error if another process holds the lock.
        wait_s: seconds to wait until the other process releases the lock.

    Raises:
        RunExists: Another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    end_s = time.monotonic() + wait_s
    try:
        while not _is_ours(descriptor):
            if time.monotonic() >= end_s:
                raise RunExists(taken)
            time.sleep(_PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether another process holds the lock on ``folder``."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        return not _is_ours(descriptor)
    finally:
        os.close(descriptor)


def _is_ours(descriptor: int) -> bool:
    """Try to take the lock; also True on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
