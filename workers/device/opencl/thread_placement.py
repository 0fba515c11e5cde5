"""One processor for each of the busiest threads of this process, for a moment.

Owns the affinity of threads that a runtime has started. Linux leaves two of our threads on one
processor while another process has the next one for itself: on 2 cores an OpenCL runtime then works
on one thread for seconds, and a launch takes twice as long (116 instead of 232 GFLOP/s, half of the
starts beside one busy process).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

_TASKS = Path("/proc/self/task")


def thread_times_ns() -> dict[int, int]:
    """Return the processor time of each thread of this process so far, ns."""
    times_ns = {}
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            times_ns[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return times_ns


@contextlib.contextmanager
def placed_apart(before_ns: Mapping[int, int]) -> Iterator[None]:
    """Keep the busiest threads since ``before_ns`` on a processor each; at the end all have their affinity back.

    Args:
        before_ns: ``thread_times_ns()`` before the work whose threads are meant.
    """
    own = _affinities()
    processors = set[int]().union(*own.values())
    worked_ns = {
        thread: total_ns - before_ns.get(thread, 0)
        for thread, total_ns in thread_times_ns().items()
        if thread in own
    }
    busiest = sorted(worked_ns, key=worked_ns.__getitem__, reverse=True)
    placed = dict(zip(busiest, sorted(processors), strict=False))
    for thread, processor in placed.items():
        _allow(thread, {processor})
    try:
        yield
    finally:
        for thread in placed:
            _allow(thread, own[thread])
        # A thread that was started meanwhile has inherited a single processor.
        for thread in thread_times_ns().keys() - own.keys():
            _allow(thread, processors)


def _affinities() -> dict[int, set[int]]:
    """Return the processors that each thread of this process may use; a runtime may have pinned some."""
    found = {}
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found[int(task.name)] = os.sched_getaffinity(int(task.name))
    return found


def _allow(thread: int, processors: Collection[int]) -> None:
    with contextlib.suppress(OSError):  # the thread has ended, or the host forbids it
        os.sched_setaffinity(thread, processors)
