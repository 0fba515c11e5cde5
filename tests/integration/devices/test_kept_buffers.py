"""Buffers that outlive their task, on a real CPU device: who gets them, how much is kept, and when they go."""

from __future__ import annotations

from collections.abc import Iterator

import pyopencl as cl  # noqa: TID251
import pytest

from workers.device.opencl.errors import out_of_memory
from workers.device.opencl.kept_buffers import PAGE_BYTES, KeptBuffers
from workers.device.opencl.queue import DeviceQueue
from workers.device.opencl.session import OpenclSession
from workers.discovery.find import choose
from workers.discovery.opening import open_session

pytestmark = pytest.mark.opencl


@pytest.fixture(scope="module")
def queue() -> Iterator[DeviceQueue]:
    with open_session(choose("cpu")) as session:
        assert isinstance(session, OpenclSession)
        yield session._queue


def test_the_next_task_gets_the_buffer_that_fits_it_best(queue: DeviceQueue) -> None:
    kept = KeptBuffers(queue.allocate, queue.free, max_bytes=64 * PAGE_BYTES)
    small, large = kept.take(10), kept.take(5 * PAGE_BYTES + 1)
    assert (small.size, large.size) == (PAGE_BYTES, 6 * PAGE_BYTES), "whole pages"
    kept.give_back(large)
    kept.give_back(small)
    assert kept.num_bytes == 7 * PAGE_BYTES
    assert kept.take(4 * PAGE_BYTES) is large
    assert kept.take(PAGE_BYTES) is small
    kept.give_back(large)
    assert kept.take(4096) is not large, "a small request does not take what a large one will need"
    kept.drop()
    assert kept.num_bytes == 0


def test_the_longest_kept_go_first(queue: DeviceQueue) -> None:
    kept = KeptBuffers(queue.allocate, queue.free, max_bytes=3 * PAGE_BYTES)
    first, second, third = (kept.take(PAGE_BYTES), kept.take(PAGE_BYTES), kept.take(2 * PAGE_BYTES))
    for buffer in (first, second, third):
        kept.give_back(buffer)
    assert kept.num_bytes == 3 * PAGE_BYTES
    assert kept.take(PAGE_BYTES) is second
    kept.give_back(kept.take(4 * PAGE_BYTES))
    assert kept.take(2 * PAGE_BYTES) is third, "one that is too large alone frees no other"


def test_with_nothing_to_keep_sizes_are_exact(queue: DeviceQueue) -> None:
    kept = KeptBuffers(queue.allocate, queue.free, max_bytes=0)
    buffer = kept.take(4096)
    assert buffer.size == 4096
    kept.give_back(buffer)
    assert kept.num_bytes == 0


def test_what_is_kept_makes_room_before_a_request_fails(queue: DeviceQueue) -> None:
    asked: list[int] = []

    def allocate(num_bytes: int) -> cl.Buffer:
        asked.append(num_bytes)
        if kept.num_bytes:
            raise out_of_memory("full")
        return queue.allocate(num_bytes)

    kept = KeptBuffers(allocate, queue.free, max_bytes=8 * PAGE_BYTES)
    kept.give_back(kept.take(PAGE_BYTES))
    wanted = 3 * PAGE_BYTES + 512
    assert kept.take(wanted).size == wanted
    assert asked == [PAGE_BYTES, 4 * PAGE_BYTES, wanted], "the second time for no byte more"


def test_a_request_just_below_the_limit_is_not_rounded_beyond_it(queue: DeviceQueue) -> None:
    limit = 2 * PAGE_BYTES - 4096

    def allocate(num_bytes: int) -> cl.Buffer:
        if num_bytes > limit:
            raise out_of_memory("too large")
        return queue.allocate(num_bytes)

    assert KeptBuffers(allocate, queue.free, max_bytes=8 * PAGE_BYTES).take(limit).size == limit
