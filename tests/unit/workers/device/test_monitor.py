"""The monitor: windows, the throttle rule, and a thread that never lets its trouble out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from workers.device.nvidia.monitor import (
    MAX_NEIGHBOUR_DISTANCE_S,
    THROTTLING,
    ClockReason,
    Condition,
    Monitor,
    Reading,
    condition_of,
    is_throttled,
)

MAX_MHZ = 1980.0
NONE = ClockReason(0)
WAIT_S = 10.0


class Script:
    """A source that gives prepared readings one after the other, then waits to be closed."""

    def __init__(self, readings: Sequence[Reading | Exception]) -> None:
        self._left = list(readings)
        self.all_given = threading.Event()
        self.closed = threading.Event()
        self.num_reads = 0

    def read(self, at_s: float) -> Reading:
        self.num_reads += 1
        if not self._left:
            self.all_given.set()
            return Reading(at_s=at_s)
        one = self._left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    def close(self) -> None:
        self.closed.set()


def busy(at_s: float, mhz: float, reasons: ClockReason = NONE, celsius: float = 60.0) -> Reading:
    return Reading(at_s=at_s, sm_clock_mhz=mhz, temperature_c=celsius, reasons=reasons)


def between(readings: Sequence[Reading], start_s: float, end_s: float) -> Condition:
    """Ask a monitor whose real thread has polled exactly ``readings``."""
    source = Script(readings)
    # Beyond its script the source answers blanks at a time far from any window.
    with Monitor(source, poll_hz=1000, max_sm_clock_mhz=MAX_MHZ, clock=lambda: 1e9) as monitor:
        assert source.all_given.wait(WAIT_S)
        return monitor.between(start_s, end_s)


READINGS = (busy(1.0, 1900.0), busy(1.1, 1800.0), busy(1.2, 1700.0, celsius=63.0))


@pytest.mark.parametrize(
    ("start_s", "end_s", "clock_mhz", "temperature_c"),
    [
        pytest.param(1.0, 1.2, 1800.0, 61.0, id="all inside"),
        pytest.param(1.05, 1.15, 1800.0, 60.0, id="one inside: neighbours do not count"),
        pytest.param(1.12, 1.13, 1750.0, 61.5, id="none inside: both neighbours"),
        pytest.param(1.2001, 1.25, 1700.0, 63.0, id="after the last"),
        pytest.param(0.8, 0.9, 1900.0, 60.0, id="before the first"),
        pytest.param(0.2, 0.7, None, None, id="too long before"),
        pytest.param(1.6, 1.7, None, None, id="too long after"),
    ],
)
def test_windows(start_s, end_s, clock_mhz, temperature_c):
    found = between(READINGS, start_s, end_s)
    assert found.sm_clock_mhz == clock_mhz
    assert found.temperature_c == temperature_c
    assert found.throttled is (None if clock_mhz is None else False)


def test_a_far_neighbour_does_not_count_beside_a_near_one():
    apart = (busy(1.0, 1000.0), busy(1.9, 1900.0))
    assert between(apart, 1.7, 1.8).sm_clock_mhz == 1900.0
    assert MAX_NEIGHBOUR_DISTANCE_S < 0.7


def test_before_the_first_reading_nothing_is_known():
    assert between((), 1.0, 2.0) == Condition()


@pytest.mark.parametrize("reason", list(ClockReason))
def test_which_reasons_are_throttling(reason):
    fast = busy(0.0, MAX_MHZ, reason)
    expected = None if reason is ClockReason.GPU_IDLE else reason in THROTTLING
    assert is_throttled(fast, max_sm_clock_mhz=MAX_MHZ) is expected


@pytest.mark.parametrize(
    ("reading", "max_mhz", "expected"),
    [
        (busy(0.0, 0.74 * MAX_MHZ), MAX_MHZ, True),
        (busy(0.0, 0.76 * MAX_MHZ), MAX_MHZ, False),
        (busy(0.0, 345.0), None, False),
        (busy(0.0, 345.0, ClockReason.GPU_IDLE), MAX_MHZ, None),
        (busy(0.0, 345.0, ClockReason.GPU_IDLE | ClockReason.HARDWARE_THERMAL), MAX_MHZ, True),
        (busy(0.0, 1900.0, ClockReason(0x10000)), MAX_MHZ, False),
        (Reading(at_s=0.0, sm_clock_mhz=345.0), MAX_MHZ, None),
        (Reading(at_s=0.0, sm_clock_mhz=345.0, busy_share=0.0), MAX_MHZ, None),
        (Reading(at_s=0.0, sm_clock_mhz=345.0, busy_share=0.5), MAX_MHZ, True),
        (Reading(at_s=0.0, reasons=NONE), MAX_MHZ, False),
        (Reading(at_s=0.0), MAX_MHZ, None),
    ],
)
def test_the_clock_rule(reading, max_mhz, expected):
    assert is_throttled(reading, max_sm_clock_mhz=max_mhz) is expected


def test_one_throttled_reading_marks_the_window_and_resting_ones_say_nothing():
    capped = busy(1.0, 1500.0, ClockReason.SOFTWARE_POWER_CAP)
    resting = busy(1.1, 345.0, ClockReason.GPU_IDLE, celsius=40.0)
    fine = busy(1.2, 1900.0)
    together = condition_of((capped, resting, fine), max_sm_clock_mhz=MAX_MHZ)
    assert together == Condition(sm_clock_mhz=1700.0, temperature_c=pytest.approx(160 / 3), throttled=True)  # fmt: skip
    assert condition_of((resting, fine), max_sm_clock_mhz=MAX_MHZ).throttled is False
    assert condition_of((resting,), max_sm_clock_mhz=MAX_MHZ) == Condition(temperature_c=40.0)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_errors_become_nulls_and_one_warning(caplog):
    source = Script([RuntimeError("GPU is lost"), RuntimeError("GPU is lost"), busy(1.0, 1900.0)])
    with (
        caplog.at_level(logging.WARNING),
        Monitor(source, poll_hz=1000, clock=lambda: 1.05) as monitor,
    ):
        assert source.all_given.wait(WAIT_S)
        assert monitor.between(0.9, 1.01).sm_clock_mhz == 1900.0
    assert [record.getMessage() for record in caplog.records] == [
        "the device cannot be monitored: RuntimeError: GPU is lost"
    ]


def test_the_thread_polls_at_its_rate_on_the_real_clock_and_ends():
    source = Script([])
    monitor = Monitor(source, poll_hz=50)
    started_s = time.monotonic()
    wait_for(lambda: source.num_reads >= 20)
    took_s = time.monotonic() - started_s
    assert took_s > 0.3, "20 polls at 50 Hz take 0.38 s"
    latest = monitor.latest()
    assert latest is not None
    assert started_s - 1 < latest.at_s <= time.monotonic()
    num_threads = threading.active_count()
    monitor.close()
    assert source.closed.is_set()
    assert threading.active_count() == num_threads - 1
    num_reads = source.num_reads
    time.sleep(0.1)
    assert source.num_reads == num_reads


def test_a_poll_that_hangs_is_left_behind(caplog, monkeypatch):
    monkeypatch.setattr("workers.device.nvidia.monitor._JOIN_TIMEOUT_S", 0.05)
    gate = threading.Event()

    class Stuck(Script):
        def read(self, at_s: float) -> Reading:
            gate.wait(WAIT_S)
            return Reading(at_s=at_s)

    source = Stuck([])
    monitor = Monitor(source, poll_hz=100)
    monitor.close()
    assert not source.closed.is_set(), "the library must not go while a call is in it"
    assert "left running" in caplog.text
    gate.set()


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="poll_hz 0"):
        Monitor(Script([]), poll_hz=0)
