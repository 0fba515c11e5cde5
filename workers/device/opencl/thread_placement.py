"""Pin each of the busiest threads of this process to a processor of its own, for a short time.

Owns the affinity of threads that a runtime has started. Linux may keep two of our threads on one
processor while another process has a processor to itself. On 2 cores an OpenCL runtime then has
only one processor for seconds, and a launch takes twice as long (116 instead of 232 GFLOP/s, in
half of the starts beside one busy process).
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
        with contextlib.suppress(OSError):  # the thread has just ended
            times_ns[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return times_ns


@contextlib.contextmanager
def placed_apart(before_ns: Mapping[int, int]) -> Iterator[None]:
    """Pin the threads busiest since ``before_ns`` to one processor each until the block ends.

    Args:
        before_ns: ``thread_times_ns()`` before the work that shows which threads are busy.
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
        # A thread that was started in the block has inherited a single processor.
        for thread in thread_times_ns().keys() - own.keys():
            _allow(thread, processors)


def _affinities() -> dict[int, set[int]]:
    """Return the processors that each thread may use; a runtime may have pinned some threads."""
    found = {}
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            found[int(task.name)] = os.sched_getaffinity(int(task.name))
    return found


def _allow(thread: int, processors: Collection[int]) -> None:
    with contextlib.suppress(OSError):  # the thread has ended, or the host forbids it
        os.sched_setaffinity(thread, processors)
