"""The processor of the host from which a collector issues its launches, whichever of its children holds the device lock.

Between the start stamp of an event and the launch itself lies work of the driver's on the host, so a launch that finds the
device idle is the longer the slower its processor is: on an H200 by 0.3 ns a ns of the call
(docs/decisions/0035-one-processor-launches.md). Owns which processor that is, that no other collector of the host has it too, and giving it up where it
turns out to be shared.
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
"""Seconds of holding the device lock: one bad second, as at a run's start, says little."""
_MOST_KEPT_WAITING = 0.1
"""Of the time for which the device lock was held."""

_logger = logging.getLogger(__name__)


class LaunchProcessor:
    """Chosen by ``take``; until then, and where there is none to be had, ``number`` is None and launches come from anywhere.

    Its whole core is taken: another collector on the core's second thread would slow it down.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._lock: int | None = None
        self._held_s = 0.0
        self._kept_waiting_s = 0.0

    def take(self, processors: Collection[int] | None = None) -> None:
        """Take a processor that no other collector of this host launches from.

        Args:
            processors: those that may be used; by default this process's.
        """
        candidates = for_launches(os.sched_getaffinity(0) if processors is None else processors)
        why = "others have taken it"
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
                "launches come from any processor: none of %s is free: %s",
                ", ".join(map(str, candidates)),
                why,
            )

    def note_hold(self, length_s: float, kept_waiting_s: float) -> None:
        """Learn for how long the lock was held, and for how much of it its child was ready to run and did not."""
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
                "launches come from any processor from now on: another process uses processor %d (%.0f %% of the time)",
                self.number,
                100 * share,
            )
            self.give_up()

    def give_up(self) -> None:
        """Let it go: launches come from anywhere."""
        self.number = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def launching_from(processor: int | None) -> Iterator[None]:
    """Keep this thread on a processor; with None, or where that is refused, it stays where it may be."""
    before = os.sched_getaffinity(0)
    try:
        if processor is not None:
            with contextlib.suppress(OSError):  # taken out of this process's set since
                os.sched_setaffinity(0, {processor})
        yield
    finally:
        if processor is not None:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, before)


def kept_waiting_s() -> float:
    """Return for how long this thread has been ready to run without a processor, s; 0 where the kernel does not tell."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
