"""The state of a device while it is timed: clock, temperature and throttling, polled in a thread.

Owns the polling thread, the readings that belong to one launch config, and what counts as
throttled. Does not own where readings come from: a ``Source`` is a card in NVML (``nvml_gpu.py``)
or a test's object. No error here reaches the thread that measures.
"""

from __future__ import annotations

import logging
import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntFlag
from types import TracebackType
from typing import Protocol, Self

MAX_NEIGHBOUR_DISTANCE_S = 0.25
"""Maximum seconds between a launch config and the polls before and after it that count for the
config. A config takes about 1 ms, and polls are 100 ms apart."""
THROTTLED_CLOCK_SHARE = 0.75
"""Share of the highest clock below which a busy device counts as throttled, as in nvbench."""
KEPT_S = 1800.0
"""Seconds for which readings are kept. A task asks for its readings after its end. By then it may
have waited for the device, and may have held it for ``limits.task_timeout_s``."""
_JOIN_TIMEOUT_S = 2.0
"""Seconds to wait for the end of the polling thread: the driver of a lost GPU may never answer."""

_logger = logging.getLogger(__name__)


class ClockReason(IntFlag):
    """Reasons for a clock: NVML's bits (nvml.h, ``nvmlClocksEventReason…``); keeps unknown bits."""

    GPU_IDLE = 0x1
    APPLICATION_CLOCKS = 0x2
    SOFTWARE_POWER_CAP = 0x4
    HARDWARE_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SOFTWARE_THERMAL = 0x20
    HARDWARE_THERMAL = 0x40
    POWER_BRAKE = 0x80
    DISPLAY_CLOCKS = 0x100
    BOARD_LIMIT = 0x200
    RELIABILITY = 0x400


THROTTLING = (
    ClockReason.SOFTWARE_POWER_CAP
    | ClockReason.HARDWARE_SLOWDOWN
    | ClockReason.SOFTWARE_THERMAL
    | ClockReason.HARDWARE_THERMAL
    | ClockReason.POWER_BRAKE
)
"""Reasons that slow a card down. These reasons are left out: idle; clocks that a user chose
(application, display, sync boost); the limits of voltage and board (``RELIABILITY``,
``BOARD_LIMIT``), which are always set for a card at its highest clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One poll; a field is None if the source does not report it.

    ``at_s``: monotonic seconds. ``busy_share``: share, 0 to 1, of the driver's last sampling period
    in which a kernel ran; this period is longer than the time between two polls.
    """

    at_s: float
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: ClockReason | None = None
    busy_share: float | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the device was idle, so that its clock says nothing about a launch."""
        return self.reasons is not None and ClockReason.GPU_IDLE in self.reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a device in a window of time; None if unknown."""

    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttled: bool | None = None


class Source(Protocol):
    """A source of readings; only the monitor's thread calls it."""

    def read(self, at_s: float) -> Reading:
        """Return the values that can be read now, with the time ``at_s``; other fields are None."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...


def is_throttled(reading: Reading, *, max_sm_clock_mhz: float | None) -> bool | None:
    """Return whether a reading shows a throttled device; None if the reading does not tell.

    True for a reason among ``THROTTLING``, or for a busy device below three quarters of its highest
    clock. An idle device has slowed down by itself, so its reading shows nothing.

    >>> busy = Reading(at_s=0.0, sm_clock_mhz=1200.0, reasons=ClockReason(0))
    >>> is_throttled(busy, max_sm_clock_mhz=1980.0), is_throttled(busy, max_sm_clock_mhz=1500.0)
    (True, False)
    """
    reasons, clock = reading.reasons, reading.sm_clock_mhz
    if reasons is not None and reasons & THROTTLING:
        return True
    if reading.is_idle or (reasons is None and not reading.busy_share):
        return None
    if clock is not None and max_sm_clock_mhz is not None:
        return clock < THROTTLED_CLOCK_SHARE * max_sm_clock_mhz
    return None if reasons is None else False


def condition_of(readings: Sequence[Reading], *, max_sm_clock_mhz: float | None) -> Condition:
    """Return the state over several readings: means, and whether any reading shows throttling.

    Clocks of idle readings are left out, because the driver lowers the clocks between launches.
    """
    verdicts = {is_throttled(one, max_sm_clock_mhz=max_sm_clock_mhz) for one in readings}
    return Condition(
        sm_clock_mhz=_mean(one.sm_clock_mhz for one in readings if not one.is_idle),
        temperature_c=_mean(one.temperature_c for one in readings),
        throttled=True if True in verdicts else (False if False in verdicts else None),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


class Monitor:
    """Polls a source in its own thread and keeps the last readings; must be closed.

    Args:
        source: where readings come from; the monitor closes it.
        poll_hz: polls per second, above 0.
        max_sm_clock_mhz: highest clock of the device; if None, only reasons show throttling.
        clock: monotonic seconds, the same clock as in calls of ``between``.
    """

    def __init__(
        self,
        source: Source,
        *,
        poll_hz: float = 10.0,
        max_sm_clock_mhz: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not poll_hz > 0:
            raise ValueError(f"poll_hz {poll_hz}: must be above 0")
        self._source = source
        self._period_s = 1.0 / poll_hz
        self._max_sm_clock_mhz = max_sm_clock_mhz
        self._clock = clock
        self._readings: deque[Reading] = deque(maxlen=max(2, math.ceil(KEPT_S * poll_hz)))
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._poll, name="device-monitor", daemon=True)
        self._thread.start()

    def between(self, start_s: float, end_s: float) -> Condition:
        """Return the device's state from ``start_s`` to ``end_s``, monotonic seconds.

        The state comes from the readings in this window. Without such readings, it comes from the
        nearest reading before and after the window, each at most ``MAX_NEIGHBOUR_DISTANCE_S`` away.
        Right after the window has ended, only the reading before it exists.
        """
        inside, before, after = self._around(start_s, end_s)
        chosen = inside
        if not inside:
            ages_s = (
                (before, start_s - before.at_s if before else math.inf),
                (after, after.at_s - end_s if after else math.inf),
            )
            chosen = [one for one, age_s in ages_s if one and age_s <= MAX_NEIGHBOUR_DISTANCE_S]
        return condition_of(chosen, max_sm_clock_mhz=self._max_sm_clock_mhz)

    def readings(self) -> tuple[Reading, ...]:
        """Return the kept readings, oldest first."""
        with self._lock:
            return tuple(self._readings)

    def latest(self) -> Reading | None:
        """Return the last reading, None before the first."""
        with self._lock:
            return self._readings[-1] if self._readings else None

    def close(self) -> None:
        """End the thread, then close the source; leave both if the thread waits for the driver."""
        self._closing.set()
        self._thread.join(_JOIN_TIMEOUT_S)
        if self._thread.is_alive():
            _logger.warning(
                "the device monitor's last poll has not returned: its thread is left running"
            )
        else:
            self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _around(
        self, start_s: float, end_s: float
    ) -> tuple[list[Reading], Reading | None, Reading | None]:
        """Return the readings in a window, the last reading before it and the first after it."""
        inside: list[Reading] = []
        after: Reading | None = None
        with self._lock:
            for reading in reversed(self._readings):  # from the end: most windows are recent
                if reading.at_s > end_s:
                    after = reading
                elif reading.at_s >= start_s:
                    inside.append(reading)
                else:
                    return inside, reading, after
        return inside, None, after

    def _poll(self) -> None:
        next_s = self._clock()
        while not self._closing.is_set():
            reading = self._read()
            with self._lock:
                self._readings.append(reading)
            # Missed polls are skipped and not repeated later.
            next_s = max(next_s + self._period_s, self._clock())
            self._closing.wait(max(0.0, next_s - self._clock()))

    def _read(self) -> Reading:
        at_s = self._clock()
        try:
            return self._source.read(at_s)
        except Exception as error:  # noqa: BLE001  (the thread's boundary: no data, no lost run)
            if not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "the device cannot be monitored: %s: %s", type(error).__name__, error
                )
            return Reading(at_s=at_s)
