"""Find the holders of a dataset's lock, so that messages name the process to wait for.

Owns the search: in ``/proc/locks`` for a dataset in a folder, in the objects that make up the lock
(``s3_lock.py``) for a dataset in S3. Only messages depend on the result. Holders on other hosts of
a network file system are not found.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from llmperf_common.masking import masked
from llmperf_common.store.files.filesystem import Filesystem, PosixFilesystem, StoreError

_PROC = Path("/proc")
_COMMAND_CHARACTERS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """One process; unknown fields are empty."""

    host: str
    pid: int
    command: str = ""
    since: str = ""

    def __str__(self) -> str:
        parts = [f"process {self.pid} on {self.host}"]
        parts += [f"({self.command})"] if self.command else []
        parts += [f"since {self.since}"] if self.since else []
        return " ".join(parts)


def lock_holders(fs: Filesystem, name: str) -> tuple[LockHolder, ...]:
    """Return the processes known to hold the lock ``name``; never raises."""
    with contextlib.suppress(OSError, ValueError, StoreError):
        if isinstance(fs, PosixFilesystem):
            return tuple(_of_file(fs.root / name))
        return tuple(_of_claims(fs, name))
    return ()


def who_holds(fs: Filesystem, name: str) -> str:
    """Return the holders of a lock as text."""
    found = lock_holders(fs, name)
    return ", ".join(map(str, found)) or "a process that cannot be seen from here"


def this_command() -> dict[str, str]:
    """Return the facts that a claim of a lock stores: this process's command, and the time."""
    return {"command": _command(os.getpid()), "since": _moment(time.time())}


def _of_file(path: Path) -> Iterator[LockHolder]:
    found = path.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    pids = set()
    for line in (_PROC / "locks").read_text(encoding="ascii", errors="replace").splitlines():
        fields = (
            line.split()
        )  # "1: FLOCK ADVISORY WRITE 4348 fe:00:2213056 0 EOF"; a waiter has "->" as second field
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place:
            pids.add(int(fields[4]))
    for pid in sorted(pids - {os.getpid()}):
        yield LockHolder(
            host=socket.gethostname(), pid=pid, command=_command(pid), since=_since(pid)
        )


def _of_claims(fs: Filesystem, name: str) -> Iterator[LockHolder]:
    for claim in fs.names(name):
        with contextlib.suppress(FileNotFoundError, KeyError, ValueError, TypeError):
            told = json.loads(fs.read_bytes(f"{name}/{claim}"))
            if (told["host"], told["pid"]) != (socket.gethostname(), os.getpid()):
                yield LockHolder(
                    host=str(told["host"]),
                    pid=int(told["pid"]),
                    command=str(told.get("command", "")),
                    since=str(told.get("since", "")),
                )


def _command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    return masked(" ".join(word for word in words if word))[:_COMMAND_CHARACTERS]


def _since(pid: int) -> str:
    """Return the time at which a process was started; empty if unknown."""
    # The modification time of /proc/PID is of no use: the kernel sets it when the folder is first
    # read. RuntimeError means that the host does not say when it booted.
    try:
        return _moment(psutil.Process(pid).create_time())
    except (psutil.Error, OSError, RuntimeError):
        return ""


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
