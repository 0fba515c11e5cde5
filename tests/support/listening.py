"""The network addresses on which a program and its descendants listen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil


def family_of(pid: int) -> Iterator[psutil.Process]:
    """Yield a process and its descendants that are alive."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)


def listening(pid: int) -> dict[str, set[str]]:
    """Return address to process names for all addresses on which a process tree listens."""
    found: dict[str, set[str]] = {}
    for process in family_of(pid):
        with contextlib.suppress(psutil.Error):
            for one in process.net_connections(kind="tcp"):
                if one.status == psutil.CONN_LISTEN:
                    found.setdefault(one.laddr.ip, set()).add(process.name())
    return found
