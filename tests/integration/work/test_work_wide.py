"""Wide vectors: a GPU makes several requests of one access, and the counts say so.

Truth: counters of an H200, benchmarks/reports/2026-11-27-counters-strategies-ablations.md; the numbers here are by hand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.work.counting import count_kernel
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

COPY = "__kernel void k(__global const {0} *a, __global {0} *c, int n) {{ int i = get_global_id(0); {1} }}"
PLAIN = "c[i] = a[i];"
ITEMS, WARPS = 128, 4


def count(virtual_device: OpenclVirtualDevice, source: str) -> Work:
    kernel = kernel_of(source)
    (work,) = count_kernel(kernel, configs_of(kernel, ITEMS), virtual_device, everything=True)
    assert isinstance(work, Work), work
    return work


@pytest.mark.parametrize(
    ("element", "body", "requests", "sectors"),
    [
        ("float", PLAIN, 1, 4),
        ("float4", PLAIN, 1, 16),
        ("float8", PLAIN, 2, 32),  # of a request each lane has half of a sector of its own
        ("float16", PLAIN, 4, 32),
        ("uchar4", PLAIN, 1, 4),
        ("uchar8", PLAIN, 2, 8),
        ("uchar16", PLAIN, 4, 16),
        ("short16", PLAIN, 4, 32),
        ("ulong2", PLAIN, 1, 16),
        ("ulong4", PLAIN, 2, 32),
        ("float", "vstore4(vload4(i, a), i, c);", 4, 16),  # not aligned: an element at a time
        ("uchar", "vstore16(vload16(i, a), i, c);", 16, 16),
        ("half", "vstore_half4(vload_half4(i, a), i, c);", 4, 8),
        ("half", "vstorea_half4(vloada_half4(i, a), i, c);", 1, 8),
    ],
)
def test_a_wide_access_is_several_requests(
    virtual_device: OpenclVirtualDevice, element: str, body: str, requests: int, sectors: int
) -> None:
    """``requests`` of a warp at the one load and the one store, and the sectors of each of them."""
    work = count(virtual_device, COPY.format(element, body))
    for use in ("load", "store"):
        assert getattr(work, f"global_{use}_requests") == WARPS * requests
        assert getattr(work, f"global_{use}_sectors") == WARPS * requests * sectors


def test_the_members_of_a_structure_are_requests(virtual_device: OpenclVirtualDevice) -> None:
    source = "typedef struct { float x, y; int n; } s; " + COPY.format("s", PLAIN)
    work = count(virtual_device, source)
    assert work.global_load_requests == work.global_loads / 32 == 3 * WARPS
    assert work.global_load_sectors == 3 * WARPS * 12  # 12 bytes a lane: 384 bytes hold every x


def test_an_access_by_atomics_is_one_request(virtual_device: OpenclVirtualDevice) -> None:
    work = count(virtual_device, COPY.format("int", "atomic_add(c + i, a[i]);"))
    assert (work.global_atomic_requests, work.global_atomic_addresses) == (WARPS, ITEMS)


@pytest.mark.parametrize("groups", [1000, 3000])
def test_groups_of_one_work_item_are_counted_from_a_thousand_of_them(
    virtual_device: OpenclVirtualDevice, groups: int
) -> None:
    one_item = "__attribute__((reqd_work_group_size(1, 1, 1))) "
    kernel = kernel_of(COPY.format("float", PLAIN).replace("void ", "void " + one_item))
    (config,) = configs_of(kernel, groups)
    (work,) = count_kernel(kernel, [replace(config, local_size=(1,))], virtual_device)
    assert isinstance(work, Work), work
    assert 1000 <= work.sampled_items <= 1024
    assert work.is_exact == (groups == 1000)
    assert work.global_loads == pytest.approx(groups)
    assert work.active_items == pytest.approx(groups)
