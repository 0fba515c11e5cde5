"""The plain loop's buffers on a CPU device: a kernel's are reused and as large as its largest config, a config's are new."""

from __future__ import annotations

import pyopencl as cl  # noqa: TID251
import pytest

from benchmarks.collectors.jobs import GUARD_BYTES, Job
from benchmarks.collectors.plain_buffers import WHOSE, PlainBuffers
from llmperf_common.records import Access, Argument, ArgumentKind, LaunchArgument, LaunchConfig
from workers.device.find import choose
from workers.device.interface import DeviceRef
from workers.device.opencl_device import find_cl_device

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
    buffers = PlainBuffers(context, max_bytes=2**30, whose="kernel")
    buffers.hold(job)
    taken = [buffers.take(DATA, launch.args[0]) for launch in job.launches]
    assert {id(buffer) for buffer, _ in taken} == {id(taken[0][0])}
    assert taken[0][0].size == 4 * 5000 + GUARD_BYTES
    assert all(is_used for _, is_used in taken)
    buffers.hold(job_of(10))
    assert buffers.take(DATA, launch_of(10).args[0])[0] is not taken[0][0], "the next kernel's"


def test_a_config_that_is_too_large_takes_nothing_from_the_others(context: cl.Context) -> None:
    job = job_of(10, 5000)
    buffers = PlainBuffers(context, max_bytes=GUARD_BYTES + 100, whose="kernel")
    buffers.hold(job)
    small, large = (buffers.take(DATA, launch.args[0]) for launch in job.launches)
    assert (small[0].size, small[1]) == (GUARD_BYTES + 40, True)
    assert (large[0].size, large[1]) == (GUARD_BYTES + 20_000, False)


@pytest.mark.parametrize("whose", WHOSE[1:])
def test_each_config_has_a_new_buffer(context: cl.Context, whose: str) -> None:
    buffers = PlainBuffers(context, max_bytes=2**30, whose=whose)
    buffers.hold(job_of(10, 10))
    (first, is_used), (second, _) = (buffers.take(DATA, launch_of(10).args[0]) for _ in range(2))
    assert first is not second
    assert not is_used


def test_whose_they_may_be_is_told(context: cl.Context) -> None:
    with pytest.raises(ValueError, match="kernel, config, cleared, not 'mine'"):
        PlainBuffers(context, max_bytes=2**30, whose="mine")
