"""End this process when it uses too much memory: a kernel's private arrays can ask for all of it.

A limit of the system (``address_space.py``) would make allocations fail. Intel's OpenCL runtime
then leaves a kernel out and reports success, so the results would be wrong. A process that ends is
an ordinary failure of its kernel, whose reason is the process's last line on stderr.
"""

from __future__ import annotations

import os
import resource
import threading
import time

_INTERVAL_S = 0.05
"""Seconds between two looks, in which a process can fill a few hundred MiB. OpenCL calls that wait
release Python's lock, so the thread can look while a kernel runs."""
_MIB = 2**20


def end_above(num_bytes: int) -> None:
    """Start a thread that ends this process, once more than ``num_bytes`` of it are in memory."""
    try:
        pages = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no /proc: no watch
        return
    arguments = (pages, num_bytes)
    threading.Thread(target=_watch, args=arguments, name="memory watch", daemon=True).start()


def _watch(pages: int, most: int) -> None:
    page_bytes = resource.getpagesize()
    while int(os.pread(pages, 128, 0).split()[1]) * page_bytes <= most:
        time.sleep(_INTERVAL_S)
    os.write(2, f"the process needs more than {most // _MIB:,} MiB of memory\n".encode())
    os._exit(1)  # at once; a runtime may have a handler for a signal, and print a lot
