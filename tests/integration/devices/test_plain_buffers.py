"""The plain loop's buffers on a CPU device: a kernel's are reused and as large as its largest config, a config's are new."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pyopencl as cl  # noqa: TID251
import pytest

from benchmarks.collecting.collectors import plain_buffers
from benchmarks.collecting.collectors.jobs import GUARD_BYTES, Job
from benchmarks.collecting.collectors.plain_buffers import BUFFER_RULES, PlainBuffers
from benchmarks.collecting.collectors.plain_loop import PlainLoop
from llmperf_common.records import Access, Argument, ArgumentKind, LaunchArgument, LaunchConfig
from workers.config import TimingConfig
from workers.device.interface import DeviceRef
from workers.device.opencl.device import find_cl_device
from workers.device.opencl.freed_memory import FreedMemory
from workers.discovery.find import choose

pytestmark = pytest.mark.opencl

DATA = Argument(
    position=0, name="x", kind=ArgumentKind.GLOBAL_BUFFER, type_name="float*", scalar_type="float",
    vector_width=1, element_bytes=4, access=Access.READ_WRITE,
)  # fmt: skip


def launch_of(elements: int) -> LaunchConfig:
    given = LaunchArgument(position=0, kind=DATA.kind, elements=elements)
    return LaunchConfig(
        sample_id=str(elements), global_size=(1,), local_size=(1,), args=(given,),
        regime=None, strategies=(), seed=0,
    )  # fmt: skip


def job_of(*elements: int) -> Job:
    return Job(
        kernel_id="k", name="k", source="", build_options="", arguments=(DATA,),
        launches=tuple(map(launch_of, elements)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def context() -> cl.Context:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef)
    return cl.Context([find_cl_device(ref)])


def test_a_kernel_has_one_buffer_for_all_its_configs(context: cl.Context) -> None:
    job = job_of(10, 5000, 100)
    buffers = PlainBuffers(context, max_bytes=2**30, rule="kernel")
    buffers.hold(job)
    taken = [buffers.take(DATA, launch.args[0]) for launch in job.launches]
    assert {id(buffer) for buffer, _ in taken} == {id(taken[0][0])}
    assert taken[0][0].size == 4 * 5000 + GUARD_BYTES
    assert all(may_be_stale for _, may_be_stale in taken)
    buffers.hold(job_of(10))
    assert buffers.take(DATA, launch_of(10).args[0])[0] is not taken[0][0], "the next kernel's"


def test_a_config_that_is_too_large_takes_nothing_from_the_others(context: cl.Context) -> None:
    job = job_of(10, 5000)
    buffers = PlainBuffers(context, max_bytes=GUARD_BYTES + 100, rule="kernel")
    buffers.hold(job)
    small, large = (buffers.take(DATA, launch.args[0]) for launch in job.launches)
    assert (small[0].size, small[1]) == (GUARD_BYTES + 40, True)
    assert (large[0].size, large[1]) == (GUARD_BYTES + 20_000, False)


@pytest.mark.parametrize("rule", BUFFER_RULES[1:])
def test_each_config_has_a_new_buffer(context: cl.Context, rule: str) -> None:
    buffers = PlainBuffers(context, max_bytes=2**30, rule=rule)
    buffers.hold(job_of(10, 10))
    (first, may_be_stale), (second, _) = (
        buffers.take(DATA, launch_of(10).args[0]) for _ in range(2)
    )
    assert first is not second
    assert not may_be_stale


@pytest.mark.parametrize(("rule", "waits_s"), [("kernel", []), ("config", []), ("cleared", [0.5])])
def test_only_cleared_waits_for_the_last_config_s_buffers(
    context: cl.Context, monkeypatch: pytest.MonkeyPatch, rule: str, waits_s: list[float]
) -> None:
    slept_s: list[float] = []
    bytes_per_s = 2.0 * (4 * 10 + GUARD_BYTES)
    monkeypatch.setattr(plain_buffers, "CLEARED_BYTES_PER_S", bytes_per_s)
    injected = functools.partial(FreedMemory, clock=lambda: 0.0, sleep=slept_s.append)
    monkeypatch.setattr(plain_buffers, "FreedMemory", injected)
    buffers = PlainBuffers(context, max_bytes=2**30, rule=rule)
    job = job_of(10, 5000)
    for launch in job.launches:
        buffers.await_cleared(job, launch)
    assert slept_s == pytest.approx(waits_s)


def test_a_smaller_config_finds_zeros_behind_its_buffer() -> None:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef)
    source = (
        "__kernel void f(__global float *x, __global float *y) { int i = get_global_id(0);"
        " y[i] = x[i + get_global_size(0)]; x[i] = 1.0f; }"
    )
    behind = dataclasses.replace(DATA, position=1, name="y", access=Access.WRITE)
    launches = tuple(
        dataclasses.replace(
            launch_of(items),
            global_size=(items,),
            args=tuple(LaunchArgument(position=p, kind=DATA.kind, elements=items) for p in (0, 1)),
        )
        for items in (1024, 512)
    )
    job = dataclasses.replace(
        job_of(), name="f", source=source, arguments=(DATA, behind), launches=launches
    )
    rule = TimingConfig(max_readings=5, sample_budget_ms=5).rule()
    loop = PlainLoop(ref, rule, timer_step_ns=1.0, last_level_cache_bytes=2**16)
    kernel = cl.Kernel(cl.Program(loop.context, source).build(), "f")
    loop.hold(job)
    for launch in launches:
        assert loop.time(job, kernel, launch)["status"] == "ok"
        read = np.empty(launch.global_size, np.float32)
        buffer, _ = loop._buffers.take(behind, launch.args[1])
        cl.enqueue_copy(loop._queue, read, buffer)
        assert not read.any()


def test_whose_they_may_be_is_told(context: cl.Context) -> None:
    with pytest.raises(ValueError, match="kernel, config, cleared, not 'mine'"):
        PlainBuffers(context, max_bytes=2**30, rule="mine")
