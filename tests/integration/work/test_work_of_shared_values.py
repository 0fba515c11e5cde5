"""Kernels that decide by values of other work-items: right counts, or a reason in their place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmperf_common.failures import Failure
from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.analysis.analyse import analyse_kernel, probe_limits
from workers.analysis.opening import open_prober
from workers.device.interface import DeviceRef
from workers.work.counting import CountedLaunch, count_launches
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

QUEUE = """__kernel void take(__global const float *a, __global float *out,
                                volatile __global uint *queue, uint total) {
    uint t;
    while ((t = atomic_inc(queue)) < total) out[t] = a[t] * 2.0f + 1.0f;
}"""
EXCHANGED_QUEUE = """__kernel void work_queue(volatile __global int *head,
        __global const float *a, __global float *o, int total) {
    for (;;) {
        int h;
        do { h = *head; if (h >= total) return; } while (atomic_cmpxchg(head, h, h + 1) != h);
        o[h] = a[h] * 2.5f;
    }
}"""
WINNER = """__kernel void argmax(__global const int *p, volatile __global int *best,
                                 __global int *bp) {
    int i = get_global_id(0), c = p[i * 16];
    if (atomic_max(best, c) < c) { for (int j = 0; j < 16; ++j) bp[j] = p[i * 16 + j]; }
}"""
FLOAT_SUM = """__kernel void sum(__global const float *a, volatile __global int *p) {
    int old, new;
    do { old = *p; new = as_int(as_float(old) + a[get_global_id(0)]); }
    while (atomic_cmpxchg(p, old, new) != old);
}"""
APPEND = """__kernel void append(__global const float *p, volatile __global int *c,
                                  __global float *o) {
    int g = get_global_id(0);
    if (p[g] > 0.1f) { int s = atomic_inc(c); o[2 * s] = p[g]; o[2 * s + 1] = g; }
}"""
FLAG = """__kernel void refine(__global const float *heat, __global float *out) {
    __local int any;
    int g = get_global_id(0), l = get_local_id(0);
    if (l == 0) any = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (heat[g] > 0.99f) any = 1;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (any) { float s = 0; for (int i = 0; i < 64; ++i) s += heat[g] * i; out[g] = s; }
}"""
LARGE_GROUPS = """__kernel void k(__global const float *a, __global float *o) {
    __local float t[256];
    int l = get_local_id(0), n = get_local_size(0), g = get_global_id(0);
    t[l] = a[g];
    barrier(CLK_LOCAL_MEM_FENCE);
    float other = t[n - 1 - l];
    barrier(CLK_LOCAL_MEM_FENCE);
    t[l] = 0;
    o[g + (n >= 256 ? (int)(other * 100.0f) : 0)] = 1;
}"""


def counted(device: OpenclVirtualDevice, source: str, *sizes: int) -> list[CountedLaunch]:
    kernel = kernel_of(source)
    return list(count_launches(kernel, configs_of(kernel, *sizes), device))


@pytest.mark.parametrize("source", [QUEUE, EXCHANGED_QUEUE, WINNER])
def test_a_queue_that_work_items_share_is_not_counted(
    virtual_device: OpenclVirtualDevice, source: str
) -> None:
    """Each work-item was counted as if it did all the work, with an error of 0."""
    for one in counted(virtual_device, source, 256, 4096):
        assert isinstance(one.outcome, Failure)
        assert "atomic" in one.outcome.detail
        assert not one.is_covered


def test_a_sum_by_compare_and_exchange_is_counted(virtual_device: OpenclVirtualDevice) -> None:
    for one, size in zip(counted(virtual_device, FLOAT_SUM, 256, 4096), (256, 4096), strict=True):
        assert isinstance(one.outcome, Work)
        assert one.outcome.global_atomics == size


def test_a_list_that_work_items_append_to_is_counted_without_its_reach(
    virtual_device: OpenclVirtualDevice,
) -> None:
    for one in counted(virtual_device, APPEND, 256, 31552):
        assert isinstance(one.outcome, Work)
        assert one.outcome.global_stores == 2 * one.outcome.global_atomics > 0
        assert not one.is_covered


def test_a_list_that_work_items_append_to_has_no_form(ref: DeviceRef) -> None:
    """Its bound was a constant that fitted only the small probes."""
    prober = open_prober(ref)
    try:
        found = analyse_kernel(kernel_of(APPEND), prober, probe_limits(prober.device))
    finally:
        prober.close()
    extent = found.extent(2)
    assert extent is not None
    assert (extent.form, extent.cap, extent.validated) == (None, None, False)
    assert "result of an atomic operation" in extent.reason


@pytest.mark.parametrize("seed", [3, 5, 7])
def test_a_flag_of_a_group_is_set_before_it_is_read(
    virtual_device: OpenclVirtualDevice, seed: int
) -> None:
    """One after another, only work-items behind the hot one would see the flag."""
    kernel = kernel_of(FLAG)
    small, *others = (replace(one, seed=seed) for one in configs_of(kernel, 1024, 4096, 8192))
    (found, *_) = count_launches(kernel, [small, *others], virtual_device, everything=True)
    assert isinstance(found.outcome, Work)
    assert not found.outcome.without_barriers
    assert found.outcome.active_items > 0
    assert found.outcome.active_items % 64 == 0  # a group refines all its work-items or none
    assert found.outcome.fp32_ops == 128 * found.outcome.active_items


def test_without_a_budget_for_barriers_the_counts_are_marked(
    virtual_device: OpenclVirtualDevice,
) -> None:
    kernel = kernel_of(FLAG.replace("0.99f", "2.0f"))  # never hot, so the ways do not differ
    configs = configs_of(kernel, 1024, 65536, 131072, 262144)
    found = list(count_launches(kernel, configs, virtual_device, time_ns=1e5))
    marks = [one.outcome.without_barriers for one in found if isinstance(one.outcome, Work)]
    assert marks
    assert marks[-1]
    assert not any(one.is_covered for one in found[1:])


def test_the_largest_groups_are_compared_too(virtual_device: OpenclVirtualDevice) -> None:
    """Only groups of 256 use what others wrote, as an index; two smaller sizes show nothing."""
    kernel = kernel_of(LARGE_GROUPS)
    configs = [
        replace(one, local_size=(side,))
        for one, side in zip(configs_of(kernel, 64, 128, 1024), (16, 32, 256), strict=True)
    ]
    *_, last = count_launches(kernel, configs, virtual_device)
    end = next(one.end_bytes for one in last.ranges if one.position == 1)
    assert last.is_covered
    assert end > 4 * 1024
