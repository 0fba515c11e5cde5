"""Waiting for freed device memory to be cleared: as long as its bytes take, once, and not at all where nothing is cleared."""

from __future__ import annotations

import pytest

from workers.device.opencl.freed_memory import FreedMemory


class Clock:
    """A clock that moves when ``sleep`` is called."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


def freed_memory(clock: Clock, bytes_per_s: float | None) -> FreedMemory:
    return FreedMemory(bytes_per_s, clock=lambda: clock.now_s, sleep=clock.sleep)


def test_what_is_freed_twice_is_cleared_one_after_the_other_and_waited_for_once() -> None:
    clock = Clock()
    freed = freed_memory(clock, 1000.0)
    freed.note(3000)
    clock.now_s += 1.0
    freed.note(2000)
    freed.await_cleared()
    freed.await_cleared()
    assert clock.slept_s == [pytest.approx(4.0)]


def test_what_was_freed_long_ago_is_not_waited_for() -> None:
    clock = Clock()
    freed = freed_memory(clock, 1000.0)
    freed.note(3000)
    clock.now_s += 3.5
    freed.await_cleared()
    assert clock.slept_s == []
    freed.note(2000)
    freed.await_cleared()
    assert clock.slept_s == [pytest.approx(2.0)]


def test_where_nothing_is_cleared_nothing_is_waited_for() -> None:
    clock = Clock()
    freed = freed_memory(clock, None)
    freed.note(10**15)
    freed.await_cleared()
    assert clock.slept_s == []
