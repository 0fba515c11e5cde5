"""Copies of kernels on PoCL: built without its header where possible, otherwise with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyopencl as cl  # noqa: TID251
import pytest

from llmperf_common.failures import FailureCode
from tests.support.reading import read_signatures
from workers.analysis.copy.instrument import instrument
from workers.device.interface import DeviceFailure
from workers.device.opencl import copy_program
from workers.device.opencl.copy_program import build_copy
from workers.device.opencl.device import opened_queue
from workers.device.opencl.session import build_program
from workers.discovery.find import NoDevice, choose
from workers.work.counted_copy import counted_copy

pytestmark = pytest.mark.opencl

KERNEL_FILES = Path(__file__).parents[3] / "kernels"
KERNELS = (
    "black_scholes",
    "csr_spmv",
    "histogram",
    "matmul_tiled",
    "particles_step",
    "vload_quads",
)


@pytest.fixture(scope="module")
def queue() -> Iterator[cl.CommandQueue]:
    ref = choose("cpu")
    assert not isinstance(ref, NoDevice)
    _, _, opened = opened_queue(ref)
    yield opened
    opened.finish()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the options of each build."""
    options: list[str] = []

    def build(context, device, source, words):
        options.append(words)
        return build_program(context, device, source, words)

    monkeypatch.setattr(copy_program, "build_program", build)
    return options


def built(queue: cl.CommandQueue, source: str, options: str = "") -> cl.Program:
    return build_copy(queue.context, queue.device, source, options)


def only_on_pocl(queue: cl.CommandQueue) -> None:
    if queue.device.platform.name != copy_program.POCL:
        pytest.skip(f"{queue.device.platform.name} reads no such header")


ARITHMETIC = """
__kernel void lp_numbers(__global float *f, __global int *n)
{
    uint at = get_global_id(0) + get_group_id(0) * 0;
    float4 wide = vload4(at, f);
    int4 whole = convert_int4_sat_rtz(wide * 3.7f) + (int4)(mad24((int)at, 3, 1));
    float exact;
    wide = clamp(native_sin(wide) + fract(wide.yxwz, &wide), -1.5f, 2.5f);
    exact = dot(wide, cross(wide, wide.wzyx)) + pown(wide.x, 3) + ldexp(wide.y, 2);
    wide = select(wide, fmax(wide, 0.25f), isgreater(wide, wide.wwww));
    vstore4(wide + exact, at, f);
    atomic_add(n, popcount(whole.x) + (int)abs(whole.y));
    barrier(CLK_GLOBAL_MEM_FENCE);
    atomic_max(n + 1, max(whole.z, (int)mul_hi(whole.w, 1 << 20)));
    n[2 + at] = as_int(rsqrt((float)M_PI + at)) ^ rotate(whole.x, (int)at);
}
"""


def results(queue: cl.CommandQueue, program: cl.Program) -> list[bytes]:
    floats = np.linspace(-2, 3, 64, dtype=np.float32)
    integers = np.zeros(32, dtype=np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(queue.context, flags, hostbuf=one) for one in (floats, integers)]
    program.lp_numbers(queue, (16,), (8,), *buffers)
    for array, buffer in zip((floats, integers), buffers, strict=True):
        cl.enqueue_copy(queue, array, buffer)
    return [floats.tobytes(), integers.tobytes()]


def test_results_are_those_of_a_build_with_the_header(
    queue: cl.CommandQueue, builds: list[str]
) -> None:
    only_on_pocl(queue)
    ours = results(queue, built(queue, ARITHMETIC))
    assert len(builds) == 1
    theirs, _ = build_program(queue.context, queue.device, ARITHMETIC, "")
    assert ours == results(queue, theirs)


@pytest.mark.parametrize("name", KERNELS)
def test_copies_are_built_once_and_without_the_header(
    queue: cl.CommandQueue, builds: list[str], name: str
) -> None:
    only_on_pocl(queue)
    source = (KERNEL_FILES / f"{name}.cl").read_text(encoding="utf-8")
    found, *_ = read_signatures(source)
    for copy in (instrument(source, found.name), counted_copy(source, found.name)):
        builds.clear()
        built(queue, copy.source, "-DLP_DOUBLES=0 -DLP_LEAVES=0")
        assert ["_OPENCL_H_" in one for one in builds] == [True]


@pytest.mark.parametrize(
    ("code", "options", "with_header"),
    [
        ("*f = shuffle((float4)(*f), (uint4)(1)).x;", "", [False, True]),
        ("*f = sqrt(*f);", "-cl-std=CL2.0", [True]),
        ("*f = sqrt(*f);", "-cl-std=CL1.2", [False]),
    ],
)
def test_other_copies_are_built_with_the_header(
    queue: cl.CommandQueue, builds: list[str], code: str, options: str, with_header: list[bool]
) -> None:
    only_on_pocl(queue)
    built(queue, f"__kernel void k(__global float *f) {{ {code} }}", options)
    assert ["_OPENCL_H_" not in one for one in builds] == with_header


def test_a_copy_that_does_not_build_gives_the_log_of_the_build_with_the_header(
    queue: cl.CommandQueue,
) -> None:
    with pytest.raises(DeviceFailure) as failure:
        built(queue, "__kernel void k(__global float *f) { *f = sqrt(none); }")
    assert failure.value.failure.code is FailureCode.BUILD_ERROR
    assert "none" in failure.value.failure.detail
