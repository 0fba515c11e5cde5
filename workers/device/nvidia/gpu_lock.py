"""The lock of one GPU, with a note on its holder that every user of the host can read.

Owns this note. ``host_lock.py`` owns the lock file and its safety, and ``ownership.py`` decides who
needs the lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import json
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.records import Device
from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE, lock_folder, lock_now, open_lock

PATIENCE_S = 2.0
"""Seconds to wait for a lock. A collector that was just killed has ended after this time."""
POLL_S = 0.1
_MAX_OWNER_BYTES = 4096


class GpuTakenError(LlmperfError):
    """The GPU is in use or cannot be locked; the message says by whom or why, and what to do."""

    exit_code = Exit.NO_DEVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The holder of a GPU's lock, as it wrote about itself; used only in messages."""

    pid: int
    host: str
    user: str
    started_at: str
    out: str

    def describe(self) -> str:
        """Return the holder in one line."""
        return (
            f"pid {self.pid} of {self.user} on {self.host}, since {self.started_at}, "
            f"at work for {self.out}"
        )


def lock_path(device: Device, folder: Path | None = None) -> Path:
    """Return the lock file of a GPU."""
    name = re.sub(r"[^0-9a-zA-Z-]", "-", device.device_uuid.lower().removeprefix("gpu-"))
    return (folder or lock_folder()) / f"llmperf-gpu-{name}.lock"


def owner_of(device: Device, folder: Path | None = None) -> Owner | None:
    """Return the holder of a GPU's lock; None if it is free or its lock cannot be read."""
    try:
        descriptor = os.open(
            lock_path(device, folder), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_owner(descriptor)
    finally:
        os.close(descriptor)
    return None


@contextlib.contextmanager
def gpu_lock(device: Device, out: str) -> Iterator[None]:
    """Hold the GPU's lock and note the dataset folder ``out`` in it; raises GpuTakenError."""
    path = lock_path(device)
    try:
        descriptor = open_lock(path)
    except OSError as error:
        raise GpuTakenError(
            f"{device.name} cannot be locked: {path}: {error.strerror or error}; "
            f"set {LOCK_FOLDER_VARIABLE} to a folder that all users of this GPU may write to"
        ) from error
    try:
        if not _lock_soon(descriptor):
            owner = _read_owner(descriptor)
            who = owner.describe() if owner else f"a process that holds {path}"
            raise GpuTakenError(
                f"{device.name} ({device.device_uuid}) is taken by {who}: wait for it or stop it, "
                "or choose another --device (several GPUs may collect into one --out)"
            )
        _write_owner(descriptor, _this_owner(out))
        try:
            yield
        finally:
            _write_owner(descriptor, None)
    finally:
        os.close(descriptor)


def _lock_soon(descriptor: int) -> bool:
    deadline_s = time.monotonic() + PATIENCE_S
    while not lock_now(descriptor):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True


def _this_owner(out: str) -> Owner:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, the user may have no name
        user = f"uid {os.getuid()}"
    return Owner(
        pid=os.getpid(),
        host=socket.gethostname(),
        user=user,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        out=out if "://" in out else os.path.abspath(out),
    )


def _write_owner(descriptor: int, owner: Owner | None) -> None:
    """Write a note for other processes; the lock does not depend on it."""
    data = json.dumps(dataclasses.asdict(owner)).encode()[:_MAX_OWNER_BYTES] if owner else b""
    with contextlib.suppress(OSError):  # opened for reading only, or the disk is full
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)


def _read_owner(descriptor: int) -> Owner | None:
    try:
        values = json.loads(os.pread(descriptor, _MAX_OWNER_BYTES, 0))
        texts = {key: printable(str(values[key])) for key in ("host", "user", "started_at", "out")}
        return Owner(pid=int(values["pid"]), **texts)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def printable(text: str) -> str:
    """Return another user's ``text`` without control characters, which could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
