"""The host processor from which a collector issues its launches, whichever child holds the lock.

The driver does host work between an event's start stamp and the launch itself. So a launch on an
idle device measures longer on a slower processor: on an H200 by 0.3 ns for each ns that the call
takes longer (docs/decisions/0035-one-processor-launches.md). Owns the choice of the processor and
the lock that keeps other collectors of the host off it. Decides to give the processor up if other
processes use it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from workers.device.nvidia.host_lock import lock_folder, try_lock
from workers.sandbox.processors import core_of, for_launches

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_JUDGED_AFTER_S = 3.0
"""Seconds of holding the device lock between two judgements of the processor. A shorter time is not
enough, because the processor may be busy for one second at a run's start."""
_MOST_KEPT_WAITING = 0.1
"""Largest allowed share of this time in which a child is ready to run but has no processor."""

_logger = logging.getLogger(__name__)


class LaunchProcessor:
    """The processor that ``take`` chooses; while ``number`` is None, any processor may launch.

    Its whole core is locked: a collector on the core's second thread would slow launches down.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._lock: int | None = None
        self._held_s = 0.0
        self._kept_waiting_s = 0.0

    def take(self, processors: Collection[int] | None = None) -> None:
        """Take a processor that no other collector of this host launches from, if one is free.

        Args:
            processors: the processors to choose from; None: all that this process may use.
        """
        candidates = for_launches(os.sched_getaffinity(0) if processors is None else processors)
        why = "other collectors have taken them"
        for number in candidates:
            path = lock_folder() / f"llmperf-core-{core_of(number)}.lock"
            try:
                self._lock = try_lock(path)
            except OSError as error:
                why = f"{path}: {error.strerror or error}"
                continue
            if self._lock is not None:
                self.number = number
                return
        if candidates:
            _logger.warning(
                "launches come from any processor: none of the processors %s is free: %s",
                ", ".join(map(str, candidates)),
                why,
            )

    def note_hold(self, length_s: float, kept_waiting_s: float) -> None:
        """Note how long the device lock was held, and how long the child had to wait meanwhile, s.

        ``kept_waiting_s``: time in which the child was ready to run but had no processor.
        """
        if self.number is None:
            return
        self._held_s += length_s
        self._kept_waiting_s += kept_waiting_s
        if self._held_s < _JUDGED_AFTER_S:
            return
        share = self._kept_waiting_s / self._held_s
        self._held_s = self._kept_waiting_s = 0.0
        if share > _MOST_KEPT_WAITING:
            _logger.warning(
                "launches come from any processor from now on: "
                "another process uses processor %d (%.0f %% of the time)",
                self.number,
                100 * share,
            )
            self.give_up()

    def give_up(self) -> None:
        """Release the processor: from now on, launches come from any processor."""
        self.number = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def launching_from(processor: int | None) -> Iterator[None]:
    """Keep this thread on ``processor``; do nothing if it is None or the system refuses."""
    before = os.sched_getaffinity(0)
    try:
        if processor is not None:
            with contextlib.suppress(OSError):  # this process may no longer use that processor
                os.sched_setaffinity(0, {processor})
        yield
    finally:
        if processor is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


def kept_waiting_s() -> float:
    """Return how long this thread has been ready without a processor, s; 0 if not known."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
