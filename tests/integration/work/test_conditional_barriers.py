"""Kernels with a barrier for each power of two: analysed and counted in time, and by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.analysis.analyse import analyse_kernel, probe_limits
from workers.analysis.opening import open_prober
from workers.device.interface import DeviceRef, Prober
from workers.work.counting import count_kernel
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

STEPS = "".join(
    f"if (side >= {2 * half}) {{ if (l < {half}) t[l] += t[l + {half}]; barrier(CLK_LOCAL_MEM_FENCE); }}\n"
    for half in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
)
REDUCTION = f"""__kernel void k(__global const float *a, __global float *o, __local float *t) {{
    uint l = get_local_id(0), side = get_local_size(0);
    t[l] = a[get_global_id(0)]; barrier(CLK_LOCAL_MEM_FENCE);
    {STEPS}
    if (l == 0) o[get_group_id(0)] = t[0]; }}"""
IN_LOOP = f"""__kernel void k(__global const float *a, __global float *o, __local float *t) {{
    uint l = get_local_id(0), side = get_local_size(0);
    for (int turn = 0; turn < 2; ++turn) {{ t[l] = a[get_global_id(0)]; barrier(CLK_LOCAL_MEM_FENCE);
    {STEPS} }}
    if (l == 0) o[get_group_id(0)] = t[0]; }}"""
MOST_CPU_S = 20.0
"""Compiled with its barriers where they are, the copy takes more than a minute."""


@pytest.fixture(scope="module")
def prober(ref: DeviceRef) -> Iterator[Prober]:
    opened = open_prober(ref)
    yield opened
    opened.close()


def test_a_reduction_is_validated_in_time(prober: Prober) -> None:
    began_s = time.process_time()
    found = analyse_kernel(kernel_of(REDUCTION), prober, probe_limits(prober.device))
    assert time.process_time() - began_s < MOST_CPU_S
    assert [one.validated for one in found.extents] == [True, True, True]


def test_barriers_in_a_loop_give_bounds_in_time(prober: Prober) -> None:
    began_s = time.process_time()
    found = analyse_kernel(kernel_of(IN_LOOP), prober, probe_limits(prober.device))
    assert time.process_time() - began_s < MOST_CPU_S
    assert all(one.form is not None and not one.validated for one in found.extents)
    assert all("too many are inside conditions" in one.reason for one in found.extents)


def test_a_reduction_is_counted_by_hand(virtual_device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(REDUCTION)
    began_s = time.process_time()
    for config in configs_of(kernel, 128):
        (counted,) = count_kernel(kernel, [config], virtual_device)
        assert isinstance(counted, Work)
        # Of 64 work-items, 32, 16, 8, 4, 2 and 1 add two elements.
        assert counted.local_loads == 2 * (2 * 63 + 1)
        assert counted.local_stores == 2 * (64 + 63)
        assert counted.barriers == 128 * 7
        assert counted.active_items == 2
        assert not counted.without_barriers
    assert time.process_time() - began_s < MOST_CPU_S


def test_a_count_without_barriers_says_so(virtual_device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(IN_LOOP)
    (counted,) = count_kernel(kernel, configs_of(kernel, 128), virtual_device)
    assert isinstance(counted, Work)
    assert counted.without_barriers
    assert counted.global_loads == 2 * 128
