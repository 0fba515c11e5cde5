"""Choose the processors and threads of children so that the timing child has a core of its own.

Timing a launch config takes about a hundred calls from Python between launches of microseconds. It
took twice as long beside eight compilers and analysers on 16 processors, because a thread that
shares its core with a busy thread gets half a core.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

FEWEST_PROCESSORS = 8
"""Fewest processors of a host on which some are set aside for timing. A smaller host needs all for
the children that prepare tasks."""
_SET_ASIDE, _SET_ASIDE_OF_FEW, _FEW_PROCESSORS = 4, 3, 16
"""Number of processors that are set aside, of more and of at most 16; see ``num_set_aside``."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Variables that give a child's linear algebra one thread. There are many children, and their
matrices are small: with more threads, linear algebra takes four times the processor time."""

_TOPOLOGY = Path("/sys/devices/system/cpu")


def num_set_aside(num_processors: int) -> int:
    """Return how many processors are set aside for timing, of a number that suffices for that.

    They are for the child that times, the child that loads, and the collector's threads. Timing
    used 1.3 of four, and a collector that analyses its corpus on 16 processors is a tenth faster if
    it sets aside three. A larger host may have several collectors, each of which needs a processor
    for its launches.

    >>> num_set_aside(16), num_set_aside(64)
    (3, 4)
    """
    return _SET_ASIDE_OF_FEW if num_processors <= _FEW_PROCESSORS else _SET_ASIDE


def for_work_ahead(
    processors: Collection[int], siblings_of: Callable[[int], frozenset[int]] | None = None
) -> frozenset[int] | None:
    """Return the processors for all children but the timing child; None if they may use all.

    Whole cores are set aside for timing, because the threads of a core share it.

    Args:
        processors: the processors that this process may use.
        siblings_of: returns all hardware threads of a processor's core; None: ask Linux.

    >>> sorted(for_work_ahead(range(8), lambda one: frozenset({one % 4, one % 4 + 4})) or ())
    [2, 3, 6, 7]
    >>> for_work_ahead(range(4)) is None
    True
    """
    left = frozenset(processors).difference(*_cores_set_aside(processors, siblings_of))
    return left if len(left) < len(processors) else None


def for_launches(
    processors: Collection[int], siblings_of: Callable[[int], frozenset[int]] | None = None
) -> tuple[int, ...]:
    """Return the processors from which launches may be issued, best first; () if none is set aside.

    The result has one processor of each core that is set aside. The host's first core comes last,
    because it serves most interrupts.

    >>> for_launches(range(16), lambda one: frozenset({one % 8, one % 8 + 8}))
    (1, 0)
    >>> for_launches(range(4))
    ()
    """
    return tuple(min(core) for core in reversed(_cores_set_aside(processors, siblings_of)))


def core_of(processor: int) -> int:
    """Return the number of a processor's core, which is the number of the core's lowest thread."""
    return min(_siblings(processor))


def share_of(
    processors: Collection[int],
    index: int,
    num_shares: int,
    siblings_of: Callable[[int], frozenset[int]] | None = None,
) -> frozenset[int]:
    """Return one of ``num_shares`` equal parts of the processors, in whole cores.

    If there are fewer cores than parts, the result has all processors.

    >>> siblings_of = lambda one: frozenset({one % 4, one % 4 + 4})
    >>> [sorted(share_of(range(8), index, 2, siblings_of)) for index in (0, 1)]
    [[0, 1, 4, 5], [2, 3, 6, 7]]
    """
    cores = _cores(processors, siblings_of)
    share = len(cores) // num_shares
    if not share:
        return frozenset(processors)
    return frozenset().union(*cores[index * share : (index + 1) * share])


def _cores_set_aside(
    processors: Collection[int], siblings_of: Callable[[int], frozenset[int]] | None
) -> list[frozenset[int]]:
    aside: list[frozenset[int]] = []
    if len(processors) >= FEWEST_PROCESSORS:
        for core in _cores(processors, siblings_of):
            if sum(map(len, aside)) >= num_set_aside(len(processors)):
                break
            aside.append(core)
    return aside if sum(map(len, aside)) < len(processors) else []


def _cores(
    processors: Collection[int], siblings_of: Callable[[int], frozenset[int]] | None
) -> list[frozenset[int]]:
    """Return the processors by core; cores are in the order of their lowest threads."""
    siblings_of = siblings_of or _siblings
    cores: list[frozenset[int]] = []
    for processor in sorted(processors):
        if not any(processor in core for core in cores):
            cores.append(siblings_of(processor) & frozenset(processors) | {processor})
    return cores


def _siblings(processor: int) -> frozenset[int]:
    try:
        text = (_TOPOLOGY / f"cpu{processor}/topology/thread_siblings_list").read_text().strip()
        found: set[int] = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        return frozenset({processor})
    return frozenset(found)
