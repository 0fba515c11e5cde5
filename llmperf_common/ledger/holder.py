"""Identify a process, and tell whether another still runs: pid, start time, boot from ``/proc``."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from llmperf_common.ledger.protocol import Holder


def boot_clock_s() -> float:
    """Return the seconds since boot, suspended time included; all processes of a host agree."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def this_process() -> Holder:
    """Return this process as a holder."""
    pid = os.getpid()
    start_ticks = _start_ticks(pid)
    assert start_ticks is not None, "a running process has a start time"
    return Holder(host=socket.gethostname(), boot_id=_boot_id(), pid=pid, start_ticks=start_ticks)


def is_alive(holder: Holder) -> bool:
    """Return whether ``holder`` still runs; True where this process cannot see it.

    That is on another host or in another container: only its lease tells then. A process of an
    earlier boot of this host is dead, and so is one whose pid has another start time now.
    """
    if holder.host != socket.gethostname():
        return True
    if holder.boot_id.partition("+")[0] != _boot_id().partition("+")[0]:
        return False
    return not has_ended(holder)


def has_ended(holder: Holder) -> bool:
    """Return whether ``holder``, looked for among our own pids, is gone; False if we cannot tell.

    Stricter than ``not is_alive``: a holder with our host's name and another boot may run on
    another machine, as pods may share a name. A local ledger file excludes that: no other host has
    that file.
    """
    if (holder.host, holder.boot_id) != (socket.gethostname(), _boot_id()):
        return False
    try:
        found = _start_ticks(holder.pid)
    except PermissionError:  # hidepid=1: the process exists
        return False
    return found != holder.start_ticks and (found is not None or _sees_all())


def _sees_all() -> bool:
    """Whether ``/proc`` lists other users' processes: not if mounted with ``hidepid=2``."""
    return os.path.isdir("/proc/1")


def _boot_id() -> str:
    """Return the id of this boot and our pid namespace: containers may share a host's name."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    try:
        return f"{boot}+{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # a sandbox without namespaces
        return boot


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the command name may hold spaces and brackets
    if fields[0] in ("Z", "X"):
        return None
    return int(fields[19])
