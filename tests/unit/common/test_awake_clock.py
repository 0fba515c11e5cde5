"""The clock of deadlines: it stands still while the process is stopped."""

from __future__ import annotations

import pytest

from llmperf_common.awake_clock import LONGEST_GAP_S, POLL_S, AwakeClock


class Time:
    """The monotonic clock, moved by the test."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def time_s() -> Time:
    return Time()


def test_time_between_polls_counts(time_s: Time) -> None:
    clock = AwakeClock(time_s)
    begin_s = clock()
    for _ in range(120):
        time_s.now_s += POLL_S
        clock()
    assert clock() - begin_s == pytest.approx(120 * POLL_S)
    assert clock.missed_s == 0.0


def test_a_stop_counts_as_one_poll(time_s: Time) -> None:
    clock = AwakeClock(time_s)
    begin_s = clock()
    time_s.now_s += 3600.0
    assert 0 < clock() - begin_s <= POLL_S
    assert clock.missed_s == pytest.approx(3600.0, abs=POLL_S)


def test_a_second_stop_counts_no_more_than_the_first(time_s: Time) -> None:
    clock = AwakeClock(time_s)
    begin_s = clock()
    for _ in range(3):
        time_s.now_s += 60.0
        clock()
        time_s.now_s += POLL_S
        clock()
    assert clock() - begin_s <= 3 * 2 * POLL_S


def test_polls_that_take_a_little_more_than_the_longest_gap_halve_the_speed(time_s: Time) -> None:
    clock = AwakeClock(time_s)
    begin_s = clock()
    for _ in range(100):
        time_s.now_s += LONGEST_GAP_S + 0.001
        clock()
    assert clock() - begin_s == pytest.approx(50.0 * LONGEST_GAP_S)


def test_it_never_runs_backwards(time_s: Time) -> None:
    clock, seen = AwakeClock(time_s), []
    for step_s in (0.1, LONGEST_GAP_S, LONGEST_GAP_S + 0.001, 100.0, 0.0, 0.3):
        time_s.now_s += step_s
        seen.append(clock())
    assert seen == sorted(seen)
