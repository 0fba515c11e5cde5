"""Identify a process, and tell whether it still runs, by pid, start time and boot in ``/proc``."""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from pathlib import Path

from llmperf_common.ledger.protocol import Holder

_ROUNDING_TICKS = 1
"""By how much the start time of a process may differ between two time namespaces. The kernel and
``_start_ticks`` each round, and the shift of a namespace may be no whole number of ticks."""


def boot_clock_s() -> float:
    """Return the seconds since boot, suspended time included; all processes of a host agree.

    They agree even if they are in different time namespaces, whose boot clocks are shifted.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _boot_shift_s()


@cache
def _boot_shift_s() -> float:
    """Return by how much the boot clock of this process's time namespace is ahead of the host's."""
    try:
        ours, of_children = (
            os.readlink(f"/proc/self/ns/{name}") for name in ("time", "time_for_children")
        )
        lines = Path("/proc/self/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError:  # a Linux without time namespaces
        return 0.0
    if ours != of_children:
        return 0.0  # the file is about the namespace of later children
    shifts = {name: int(s) + int(ns) / 1e9 for name, s, ns in map(str.split, lines)}
    return shifts.get("boottime", 0.0)


def this_process() -> Holder:
    """Return this process as a holder."""
    pid = os.getpid()
    start_ticks = _start_ticks(pid)
    assert start_ticks is not None, "a running process has a start time"
    return Holder(host=socket.gethostname(), boot_id=_boot_id(), pid=pid, start_ticks=start_ticks)


def is_alive(holder: Holder) -> bool:
    """Return whether ``holder`` still runs; True if this process cannot see the holder.

    A holder on another host or in another container cannot be seen: it counts as dead only when its
    lease has expired. A process of an earlier boot of this host is dead. So is a process if its pid
    now belongs to a process with another start time.
    """
    if holder.host != socket.gethostname():
        return True
    if holder.boot_id.partition("+")[0] != _boot_id().partition("+")[0]:
        return False
    return not has_ended(holder)


def has_ended(holder: Holder) -> bool:
    """Return whether ``holder`` is certainly gone; False if that is unknown.

    The answer is known only for a holder of this host, boot and pid namespace. ``is_alive`` also
    calls a holder dead if it has this host's name but another boot. Here such a holder may run on
    another machine, because pods may share a name. (``is_alive`` is used for a local ledger file,
    which no other host has.)
    """
    if (holder.host, holder.boot_id) != (socket.gethostname(), _boot_id()):
        return False
    try:
        found = _start_ticks(holder.pid)
    except PermissionError:  # hidepid=1: the process exists
        return False
    if found is None:
        return _sees_all()
    return abs(found - holder.start_ticks) > _ROUNDING_TICKS


def _sees_all() -> bool:
    """Whether ``/proc`` lists other users' processes; it does not if mounted with ``hidepid=2``."""
    return os.path.isdir("/proc/1")


def _boot_id() -> str:
    """Return the id of this boot and pid namespace, because containers may share a host's name."""
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
    return int(fields[19]) - round(_boot_shift_s() * os.sysconf("SC_CLK_TCK"))
