"""Launches in which one row, plane or diagonal does the work: right counts or a large error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import kernel_of, launch_of
from workers.work.counting import count_kernel
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

DIAGONAL = """__kernel void diag_blocks(__global float *a, int n) {
    __local float t[256];
    if (get_group_id(0) != get_group_id(1)) return;
    int x = get_local_id(0), y = get_local_id(1), g = get_global_id(1) * n + get_global_id(0);
    t[y * 16 + x] = a[g];
    barrier(CLK_LOCAL_MEM_FENCE);
    float s = 0;
    for (int k = 0; k < 16; ++k) s += t[y * 16 + k] * t[k * 16 + x];
    a[g] = s;
}"""
PLANE = """__kernel void inject(__global float *ez, __global const float *pulse, int nx, int ny, int nz) {
    int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    if (x < nx && y < ny && z == nz / 2) ez[(z * ny + y) * nx + x] += pulse[y * nx + x];
}"""
PIVOT = """__kernel void scale_row(__global float *m, int n, int k) {
    int c = get_global_id(0), r = get_global_id(1);
    if (c < n && r < n && r == k && c > k) m[r * n + c] = m[r * n + c] / m[k * n + k];
}"""
ROW_OF_GROUPS = """__kernel void k(__global float *m, int n, int kk) {
    int c = get_group_id(0) * 16 + get_local_id(0), r = get_group_id(1) * 16 + get_local_id(1);
    if (r == kk) m[r * n + c] /= m[kk * n + kk];
}"""
ANTIDIAGONAL = """__kernel void k(__global float *a, int n) {
    int x = get_group_id(0), y = get_group_id(1);
    if (x + y != get_num_groups(0) - 1) return;
    a[get_global_id(1) * n + get_global_id(0)] = 1.0f;
}"""
HIDDEN = """__kernel void k(__global float *a, int n) {
    int i = get_global_id(0);
    if (i == n / 3 + 77) for (int j = 0; j < 10; ++j) a[j] = 1.0f;
}"""
Sizes = tuple[int, ...]


def counts(
    device: OpenclVirtualDevice,
    source: str,
    global_size: Sizes,
    local_size: Sizes,
    scalars: Mapping[str, int],
) -> Work:
    kernel = kernel_of(source)
    config = launch_of(kernel, global_size, local_size, scalars=scalars, elements=2**22, seed=3)
    (work,) = count_kernel(kernel, [config], device)
    assert isinstance(work, Work), work
    assert not work.is_exact
    return work


def test_blocks_on_the_diagonal(virtual_device: OpenclVirtualDevice) -> None:
    work = counts(virtual_device, DIAGONAL, (2048, 2048), (16, 16), {"n": 2048})
    assert work.active_items == 16 * 2048
    assert work.fp32_ops == 32 * 16 * 2048


@pytest.mark.parametrize(
    ("sides", "local"), [((48, 64, 88), (16, 8, 8)), ((32, 20, 24), (16, 4, 4))]
)
def test_one_plane(virtual_device: OpenclVirtualDevice, sides: Sizes, local: Sizes) -> None:
    scalars = dict(zip(("nx", "ny", "nz"), sides, strict=True))
    work = counts(virtual_device, PLANE, sides, local, scalars)
    assert work.active_items == pytest.approx(sides[0] * sides[1])
    assert work.global_stores == pytest.approx(sides[0] * sides[1])


@pytest.mark.parametrize("pivot", [1, 77, 200])
def test_the_row_of_a_pivot(virtual_device: OpenclVirtualDevice, pivot: int) -> None:
    work = counts(virtual_device, PIVOT, (256, 992), (32, 32), {"n": 256, "k": pivot})
    assert work.active_items == pytest.approx(255 - pivot, abs=32) or work.relative_error >= 1


@pytest.mark.parametrize("side", [256, 512, 1024])
def test_a_row_of_work_groups(virtual_device: OpenclVirtualDevice, side: int) -> None:
    scalars = {"n": side, "kk": side // 3}
    work = counts(virtual_device, ROW_OF_GROUPS, (side, side), (16, 16), scalars)
    assert work.active_items == pytest.approx(side)


@pytest.mark.parametrize(
    ("source", "sides", "local"),
    [(ANTIDIAGONAL, (1024, 1024), (16, 16)), (HIDDEN, (2**20,), (64,))],
)
def test_what_no_sampled_work_item_does_is_an_error(
    virtual_device: OpenclVirtualDevice, source: str, sides: Sizes, local: Sizes
) -> None:
    work = counts(virtual_device, source, sides, local, {"n": sides[0]})
    assert work.relative_error >= 0.5
