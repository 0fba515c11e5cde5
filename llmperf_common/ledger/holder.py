"""Who a process is, and whether another one still lives: pid, start time and boot, from ``/proc``."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from llmperf_common.ledger.protocol import Holder


def boot_clock_s() -> float:
    """Seconds since boot, suspended time included; the same for all processes of a host."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def this_process() -> Holder:
    """Return the holder that this process is."""
    pid = os.getpid()
    start_ticks = _start_ticks(pid)
    assert start_ticks is not None, "a running process has a start time"
    return Holder(host=socket.gethostname(), boot_id=_boot_id(), pid=pid, start_ticks=start_ticks)


def is_alive(holder: Holder) -> bool:
    """Return whether ``holder`` still runs; True where only its lease can tell: on another host, or in another container of this one.

    A process of an earlier boot of this host is dead, and so is a pid that now has another start time.
    """
    if holder.host != socket.gethostname():
        return True
    if holder.boot_id.partition("+")[0] != _boot_id().partition("+")[0]:
        return False
    return not has_ended(holder)


def has_ended(holder: Holder) -> bool:
    """Return whether ``holder`` was looked for, among our own pids, and is gone; False where this host cannot tell.

    Stricter than ``not is_alive``: who has our host's name and another boot may be another machine, as pods are
    that share one name. A ledger in a local file knows better, for no other host has that file.
    """
    if (holder.host, holder.boot_id) != (socket.gethostname(), _boot_id()):
        return False
    try:
        found = _start_ticks(holder.pid)
    except PermissionError:  # hidepid=1: the process exists
        return False
    return found != holder.start_ticks and (found is not None or _sees_all())


def _sees_all() -> bool:
    """Whether ``/proc`` lists the processes of other users, too; not where it is mounted with ``hidepid=2``."""
    return os.path.isdir("/proc/1")


def _boot_id() -> str:
    """Return the id of this boot and, since containers of one host may share its name but not its pids, of our pids' namespace."""
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
