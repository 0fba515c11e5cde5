"""Waiting for freed device memory to be cleared: as long as its bytes take, once, and not at all where nothing is cleared."""

from __future__ import annotations

import time

import pytest

from workers.device.freed_memory import FreedMemory


def waited_s(freed: FreedMemory) -> float:
    began_s = time.monotonic()
    freed.await_cleared()
    return time.monotonic() - began_s


def test_what_is_freed_twice_is_cleared_one_after_the_other() -> None:
    freed = FreedMemory(1e6)
    began_s = time.monotonic()
    freed.note(30_000)
    freed.note(20_000)
    freed.await_cleared()
    assert time.monotonic() - began_s >= 0.05
    assert waited_s(freed) < 0.02, "it is cleared already"


def test_what_was_freed_long_ago_is_not_waited_for() -> None:
    freed = FreedMemory(1e6)
    freed.note(20_000)
    time.sleep(0.03)
    assert waited_s(freed) < 0.01
    freed.note(30_000)
    assert waited_s(freed) >= 0.025


@pytest.mark.parametrize("num_bytes", [0, 10**15])
def test_nothing_is_waited_for_where_nothing_is_cleared(num_bytes: int) -> None:
    freed = FreedMemory(None)
    freed.note(num_bytes)
    assert waited_s(freed) < 0.01
