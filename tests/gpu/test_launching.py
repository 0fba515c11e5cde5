"""Launches and buffers of ``workers/device`` on a real NVIDIA GPU: what a CPU device does not show."""

from __future__ import annotations

import statistics

import numpy as np
import pyopencl as cl  # noqa: TID251
import pytest

from benchmarks.device.freed_memory import Bench
from llmperf_common.records import Kernel
from tests.gpu.test_cuda import BOTH, GLOBAL, READ, VADD, WRITE, arg, config_of, kernel
from workers.device.interface import FRONT_PADDING_BYTES, DeviceRef
from workers.device.opencl.buffers import OpenclLoadedKernel
from workers.device.opencl.freed_memory import FreedMemory
from workers.device.opencl.launcher import AT_ONCE
from workers.device.opencl.session import OpenclSession
from workers.discovery.opening import open_compiler

pytestmark = pytest.mark.gpu

UPDATE = kernel(
    "update",
    "__kernel void update(__global float *a) { size_t i = get_global_id(0); a[i] = a[i] * 0.5f + 1.0f; }",
    arg(GLOBAL, "float", BOTH),
)
ITEMS_BEFORE = FRONT_PADDING_BYTES // 4
BEFORE = kernel(
    "before",
    "__kernel void before(__global const int *a, __global int *b) {"
    f" long i = get_global_id(0); b[i] = a[i - {ITEMS_BEFORE}]; }}",
    arg(GLOBAL, "int", READ), arg(GLOBAL, "int", WRITE),
)  # fmt: skip


def loaded_by(session: OpenclSession, ref: DeviceRef, one: Kernel) -> OpenclLoadedKernel:
    return session.load(one, open_compiler(ref).compile(one))


@pytest.mark.parametrize("one", [VADD, UPDATE], ids=lambda one: one.name)
def test_launches_at_once_take_as_long_as_launches_waited_for(
    one: Kernel, session: OpenclSession, ref: DeviceRef
) -> None:
    loaded = loaded_by(session, ref, one)
    launcher = loaded.prepare(config_of(one, 2**14))
    session.spin_up(50)
    assert launcher.num_at_once(6_000.0) == AT_ONCE
    assert launcher.num_at_once(50_000.0) == 1
    waited_for, at_once = [], []
    for _ in range(30):
        for _ in range(AT_ONCE):
            launcher.refill(seed=7)
            waited_for.append(launcher.launch())
        at_once += launcher.launch_each(AT_ONCE, refill_seed=7)
    assert len(at_once) >= 0.9 * len(waited_for), "most find the device idle"
    ratio = statistics.median(at_once) / statistics.median(waited_for)
    assert 0.95 < ratio < 1.05
    loaded.release()


def test_what_lies_before_a_padded_buffer_is_mapped_and_zero(
    session: OpenclSession, ref: DeviceRef
) -> None:
    loaded = loaded_by(session, ref, BEFORE)
    config = config_of(BEFORE)
    loaded.reserve([config], with_padding=True)
    launcher = loaded.prepare(config)
    launcher.poison_output(255)
    assert launcher.launch() > 0
    num_bytes = 4 * config.global_size[0]
    assert not any(loaded.read_buffer(1, num_bytes))
    loaded.release()


def test_a_task_that_ends_does_not_disturb_launches_of_another_context(
    session: OpenclSession, ref: DeviceRef
) -> None:
    launch = Bench(ref).launcher("read")
    before_ns = statistics.median([launch() for _ in range(100)][50:])

    def ratio() -> float:
        return statistics.median(launch() for _ in range(15)) / before_ns

    config = config_of(VADD, 2**28)

    def end_a_task() -> None:
        loaded = loaded_by(session, ref, VADD)
        loaded.prepare(config).launch()
        loaded.release(keep=False)

    queue = session._queue
    own, queue.freed = queue.freed, FreedMemory(None)
    try:
        end_a_task()
        if ratio() < 1.05:
            pytest.skip("this driver does not clear what is freed beside launches")
    finally:
        queue.freed = own
    session.spin_up(50)  # till that is cleared
    end_a_task()
    assert ratio() < 1.05


def test_more_than_two_gibibytes_can_be_filled(session: OpenclSession) -> None:
    queue, num_bytes = session._queue, 2**31 + 2**30 + 64
    if session.device.max_allocation_bytes < num_bytes:
        pytest.skip("no buffer of 3 GiB is possible here")
    buffer = queue.allocate(num_bytes)
    queue.fill_bytes(buffer, 7, num_bytes=num_bytes)
    for start in (0, 2**31 - 32, num_bytes - 64):
        found = np.empty(64, np.uint8)
        cl.enqueue_copy(queue.queue, found, buffer, src_offset=start)
        assert (found == 7).all()
    buffer.release()


def test_the_next_task_takes_over_what_the_last_one_had(
    session: OpenclSession, ref: DeviceRef
) -> None:
    queue, config = session._queue, config_of(BEFORE)
    queue.kept.drop()
    first = loaded_by(session, ref, BEFORE)
    first.reserve([config], with_padding=True)
    assert queue.kept.num_bytes == 0
    first.release()
    num_bytes = queue.kept.num_bytes
    assert num_bytes > 2 * FRONT_PADDING_BYTES
    second = loaded_by(session, ref, BEFORE)
    second.reserve([config], with_padding=True)
    assert queue.kept.num_bytes == 0, "both buffers were taken over"
    launcher = second.prepare(config)
    launcher.poison_output(255)
    launcher.launch()
    assert not any(second.read_buffer(1, 4 * config.global_size[0])), "and the room is zero again"
    second.release()
    assert queue.kept.num_bytes == num_bytes
