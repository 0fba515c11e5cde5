"""Counting in children of its own: what a kernel does there costs its child, and its configs get a reason."""

from __future__ import annotations

import dataclasses
import time

import pytest

from llmperf_common.failures import Failure, FailureCode
from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.device.interface import DeviceRef
from workers.work.children import CountedKernel, CountWork, count_all, count_work
from workers.work.counting import count_kernel
from workers.work.opening import open_virtual

pytestmark = pytest.mark.opencl

VADD = "__kernel void vadd(__global const float *a, __global float *c, int n) { int i = get_global_id(0); if (i < n) c[i] = a[i] + 1.0f; }"


def test_a_child_counts_what_this_process_does(ref: DeviceRef) -> None:
    kernel = kernel_of(VADD)
    configs = configs_of(kernel, 64, 4096, 1 << 22)
    counted = count_work(kernel, configs, ref)
    device = open_virtual(ref)
    assert counted == tuple(count_kernel(kernel, configs, device))
    device.close()
    for size, work in zip((64, 4096, 1 << 22), counted, strict=True):
        assert isinstance(work, Work), work
        assert (work.fp32_ops, work.active_items) == pytest.approx((size, size))
        assert work.global_load_sectors == pytest.approx(size * 4 / 32)
        assert work.is_exact == (size <= 4096)


def test_a_kernel_that_hangs_costs_its_own_child_only(ref: DeviceRef) -> None:
    endless = kernel_of(
        "__kernel void k(__global int *a, int n) { __local int t[64]; int l = get_local_id(0); t[l] = n;"
        " while (t[0] > 0) { barrier(CLK_LOCAL_MEM_FENCE); t[l] = n; } a[get_global_id(0)] = t[l]; }"
    )
    sound = kernel_of(VADD)
    jobs = [(one, configs_of(one, 128, 256)) for one in (endless, sound)]
    found = {one.kernel.name: one.outcomes for one in count_all(jobs, ref, num_children=1, timeout_s=6)}  # fmt: skip
    assert all(isinstance(one, Work) for one in found["vadd"])
    for outcome in found["k"]:
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.HANG
        assert "killed after 6 s" in outcome.detail


DIVERGING = (
    "__kernel void k(__global int *a, int n) { __local int t[64]; int l = get_local_id(0); t[l] = n;"
    " while (t[0] > 200) { barrier(CLK_LOCAL_MEM_FENCE); t[l] = n; } a[get_global_id(0)] = t[l]; }"
)
"""Ends with 128 work-items, hangs with 256: its loop has a barrier, so that it may not be cut off."""


@pytest.mark.slow
def test_what_was_counted_before_a_hang_is_kept_whatever_the_order(ref: DeviceRef) -> None:
    kernel = kernel_of(DIVERGING)
    configs = configs_of(kernel, 256, 64, 320, 128)
    hung, small, lost, middle = count_work(kernel, configs, ref, timeout_s=6)
    assert isinstance(small, Work)
    assert isinstance(middle, Work)
    assert (small.active_items, middle.active_items) == (64, 128)
    for outcome in (hung, lost):
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.HANG


def test_a_kernel_is_ended_by_its_processor_time_too(ref: DeviceRef) -> None:
    kernel = kernel_of(DIVERGING)
    began_s = time.monotonic()
    small, hung = count_work(kernel, configs_of(kernel, 64, 256), ref, timeout_s=300, cpu_s=2)
    assert time.monotonic() - began_s < 200
    assert isinstance(small, Work)
    assert isinstance(hung, Failure)
    assert "2 s of processor time" in hung.detail


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("__kernel void k(__global int *a, int n) { for (;;) a[0] = n; }", "loops of more than"),
        ("__kernel void k(__global int *a, int n) { a[0] = undeclared_function(n); }", ""),
    ],
    ids=["endless", "unbuildable"],
)
def test_what_cannot_be_counted_says_why(ref: DeviceRef, source: str, detail: str) -> None:
    kernel = dataclasses.replace(kernel_of(VADD), name="k", source=source)
    assert kernel.signature is not None
    arguments = (kernel.signature.arguments[1], kernel.signature.arguments[2])
    moved = tuple(dataclasses.replace(one, position=n) for n, one in enumerate(arguments))
    signature = dataclasses.replace(kernel.signature, arguments=moved)
    kernel = dataclasses.replace(kernel, signature=signature)
    for outcome in count_work(kernel, configs_of(kernel, 128, 256), ref):
        assert isinstance(outcome, Failure)
        assert outcome.detail
        assert detail in outcome.detail


@pytest.mark.slow
def test_work_items_that_return_before_a_barrier_are_not_counted(ref: DeviceRef) -> None:
    """Several times: with barriers PoCL runs those that returned, or does not, as it happens."""
    kernel = kernel_of(
        "__kernel void k(__global int *a, int n) { __local int t[64]; int i = get_global_id(0), l = get_local_id(0);"
        " if (i >= n - 7) return; t[l] = i; barrier(CLK_LOCAL_MEM_FENCE); a[i] = t[l]; }"
    )
    for _ in range(3):
        outcomes = count_work(kernel, configs_of(kernel, 128, 640), ref, timeout_s=20)
        assert len(outcomes) == 2
        for outcome, size in zip(outcomes, (128, 640), strict=True):
            assert isinstance(outcome, Work), outcome
            assert outcome.active_items == outcome.barriers == size - 7
            assert outcome.without_barriers


def test_a_home_that_cannot_be_written_does_not_matter(
    ref: DeviceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc")  # not even root makes a folder there
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    kernel = kernel_of(VADD)
    (outcome,) = count_work(kernel, configs_of(kernel, 64), ref)
    assert isinstance(outcome, Work), outcome


def test_an_internal_error_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    kernel = kernel_of(VADD)
    item = CountedKernel(kernel=kernel, configs=configs_of(kernel, 64))
    report = "Traceback (most recent call last):\n  File ...\nOSError: no space\n"
    with caplog.at_level("WARNING"):
        assert not CountWork(20, 8).died(item, "exit 1", report, 0.1)
    assert "the virtual launches of vadd failed: OSError: no space" in caplog.text
    (outcome,) = item.outcomes
    assert isinstance(outcome, Failure)
    assert outcome.code is FailureCode.INTERNAL_ERROR


def test_an_index_below_the_start_ends_and_is_one_sector(ref: DeviceRef) -> None:
    kernel = kernel_of(
        "__kernel void k(__global const ulong *a, __global ulong *c, int n) { int i = get_global_id(0); c[i] = a[i - n] + a[i - 1]; }"
    )
    (work,) = count_work(kernel, configs_of(kernel, 128), ref, timeout_s=6)
    assert isinstance(work, Work), work
    assert work.global_loads == 2 * 128
    # Of a[i - n] each warp touches 8 sectors; a[i - 1] begins one earlier.
    assert work.global_load_sectors == 4 * (8 + 9)
