"""Traced launches against truth by hand: which work-item accesses which bytes of which buffer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from llmperf_common.analysis import Contents, ContentsRule
from llmperf_common.failures import Failure, FailureCode
from llmperf_common.features.accesses import AccessMap, AccessTrace, AccessUse, AccessView
from llmperf_common.records import Kernel, LaunchConfig
from tests.support.factories.launch_factory import kernel_of, launch_of
from workers.device.interface import DeviceRef
from workers.plan.inputs import fill_spec, reference_fill
from workers.work.opencl_virtual import OpenclVirtualDevice
from workers.work.opening import open_virtual
from workers.work.trace_children import trace_all
from workers.work.tracing import COLUMNS, MOST_ITEMS, ROWS, trace_accesses

pytestmark = pytest.mark.opencl

VADD = "__kernel void vadd(__global const float *a, __global float *c, int n) { int i = get_global_id(0); if (i < n) c[i] = a[i] + 1.0f; }"
TRANSPOSE = """__kernel void transpose(__global const float *in, __global float *out) {
 size_t x = get_global_id(0), y = get_global_id(1), w = get_global_size(0), h = get_global_size(1);
 out[x * h + y] = in[y * w + x]; }"""
GATHER = "__kernel void gather(__global const int *at, __global const float *table, __global float *c) { int i = get_global_id(0); c[i] = table[at[i]]; }"
BROADCAST = "__kernel void one(__constant float *k, __global float *c) { int i = get_global_id(0); c[i] = k[5]; }"
REVERSED = """__kernel void rev(__global const int *a, __global int *c) { __local int t[64];
 int l = get_local_id(0), i = get_global_id(0); t[l] = a[i]; barrier(CLK_LOCAL_MEM_FENCE);
 c[get_group_id(0) * 64 + t[l] * 0 + 63 - l] = t[63 - l]; }"""
UPDATES = """__kernel void up(__global int *a, __global int *hist, __global float4 *v) { int i = get_global_id(0);
 a[i] += 1; atomic_inc(&hist[i % 4]); v[i].y = 1.0f; a[i - 1] = 2; }"""
COPIES = """__kernel void cp(__global const float *a, __global float *c) { __local float t[64];
 event_t e = async_work_group_copy(t, a + get_group_id(0) * 64, 64, 0); wait_group_events(1, &e);
 c[get_global_id(0)] = t[get_local_id(0)]; }"""
FIRST_ONLY = (
    "__kernel void few(__global float *c) { int i = get_global_id(0); if (i < 64) c[i] = 1.0f; }"
)

Seen = tuple[int, int, int]
"""Place of the work-item among those traced, first byte, bytes."""


@pytest.fixture(scope="module")
def device(ref: DeviceRef) -> Iterator[OpenclVirtualDevice]:
    opened = open_virtual(ref)
    yield opened
    opened.close()


def traced(kernel: Kernel, config: LaunchConfig, device: OpenclVirtualDevice) -> AccessTrace:
    found = trace_accesses(kernel, config, device)
    assert isinstance(found, AccessTrace), found
    assert (found.global_size, found.local_size) == (config.global_size, config.local_size)
    assert not found.without_barriers
    return found


def group_of(trace: AccessTrace) -> AccessView:
    assert trace.group is not None
    return trace.group


def map_of(view: AccessView, position: int, use: AccessUse) -> AccessMap:
    (found,) = [one for one in view.maps if (one.position, one.use) == (position, use)]
    return found


def items_of(view: AccessView, local_size: tuple[int, ...], num_groups: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:  # fmt: skip
    """Yield the place and the global id of each traced work-item, by the words of OpenCL's specification."""
    place = itertools.count()
    for group in view.groups:
        at, left = [], group
        for side in num_groups:
            left, one = divmod(left, side)
            at.append(one)
        reversed_sides = [range(side) for side in reversed(local_size)]
        for local in itertools.product(*reversed_sides):
            ids = zip(at, local_size, reversed(local), strict=True)
            yield next(place), tuple(one * side + inside for one, side, inside in ids)


def assert_is(found: AccessMap, items_a_column: int, accesses: list[Seen]) -> None:
    """The histogram holds exactly these accesses, with rows that are as fine as they can be."""
    truth: Counter[tuple[int, int]] = Counter()
    for item, byte, num_bytes in accesses:
        first = (byte - found.first_byte) // found.bytes_a_row
        last = (byte + num_bytes - 1 - found.first_byte) // found.bytes_a_row
        truth.update((item // items_a_column, row) for row in range(first, last + 1))
    assert {(c, r): n for c, r, n in found.cells} == dict(truth)
    assert found.num_accesses == len(accesses)
    assert found.first_byte % found.bytes_a_row == 0
    assert found.num_rows == max(row for _, row in truth) + 1 <= ROWS
    assert min(row for _, row in truth) == 0
    assert found.num_rows > ROWS // 2 - 1 or found.bytes_a_row <= 16


def assert_views(
    trace: AccessTrace,
    position: int,
    use: AccessUse,
    byte_of: Callable[[tuple[int, ...]], int],
    num_bytes: int = 4,
) -> None:
    """Each work-item of both views has one such access, at this byte."""
    sides = zip(trace.global_size, trace.local_size, strict=True)
    groups = tuple(total // side for total, side in sides)
    for view in (trace.launch, group_of(trace)):
        accesses = [
            (place, byte_of(ids), num_bytes)
            for place, ids in items_of(view, trace.local_size, groups)
        ]
        assert view.items_a_column == max(1, -(-len(accesses) // COLUMNS))
        assert_is(map_of(view, position, use), view.items_a_column, accesses)


def test_a_vector_add_is_a_diagonal(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(VADD)
    trace = traced(kernel, launch_of(kernel, (4096,), (64,)), device)
    assert trace.launch.groups == tuple(range(64))
    loads, stores = (map_of(trace.launch, *one) for one in ((0, AccessUse.LOAD), (1, AccessUse.STORE)))  # fmt: skip
    # 32 work-items a column and 256 bytes, which are 64 floats, a row: two columns to a row.
    assert loads.cells == stores.cells == tuple((c, c // 2, 32) for c in range(128))
    assert (loads.first_byte, loads.bytes_a_row, loads.num_rows) == (0, 256, 64)
    group = group_of(trace)
    assert (group.groups, group.items_a_column) == ((32,), 1)
    inner = map_of(group, 0, AccessUse.LOAD)
    assert inner.cells == tuple((c, c, 1) for c in range(64))
    assert (inner.first_byte, inner.bytes_a_row) == (32 * 64 * 4, 4)
    assert {(one.position, one.use) for one in group.maps} == {
        (0, AccessUse.LOAD),
        (1, AccessUse.STORE),
    }


def test_a_transpose_loads_rows_and_stores_columns(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(TRANSPOSE)
    width, height = 128, 64
    trace = traced(kernel, launch_of(kernel, (width, height), (16, 8)), device)
    assert_views(trace, 0, AccessUse.LOAD, lambda ids: (ids[1] * width + ids[0]) * 4)
    assert_views(trace, 1, AccessUse.STORE, lambda ids: (ids[0] * height + ids[1]) * 4)
    # In the group, neighbouring work-items store a column apart: 64 floats.
    assert group_of(trace).groups == (4 + 8 * 4,)
    stores = map_of(group_of(trace), 1, AccessUse.STORE)
    assert stores.bytes_a_row == 64
    assert [row for column, row, _ in stores.cells if column < 16] == [4 * n for n in range(16)]


def test_a_gather_goes_where_contents_say(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(GATHER)
    bounded = Contents(rule=ContentsRule.BOUNDED, limit=1000)
    config = launch_of(kernel, (2048,), (32,), contents={0: bounded})
    assert kernel.signature is not None
    spec = fill_spec(kernel.signature.arguments[0], elements=2048, seed=7, contents=bounded)
    index = reference_fill(spec).tolist()
    assert len(set(index)) > 500
    trace = traced(kernel, config, device)
    assert_views(trace, 0, AccessUse.LOAD, lambda ids: ids[0] * 4)
    assert_views(trace, 1, AccessUse.LOAD, lambda ids: index[ids[0]] * 4)
    assert_views(trace, 2, AccessUse.STORE, lambda ids: ids[0] * 4)


def test_a_broadcast_is_one_row(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(BROADCAST)
    trace = traced(kernel, launch_of(kernel, (256,), (64,)), device)
    for view, columns, each in ((trace.launch, 128, 2), (group_of(trace), 64, 1)):
        found = map_of(view, 0, AccessUse.LOAD)
        assert found.cells == tuple((c, 0, each) for c in range(columns))
        assert (found.first_byte, found.bytes_a_row, found.num_rows) == (20, 4, 1)


def test_work_items_that_meet_at_barriers_run_as_a_group(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(REVERSED)
    trace = traced(kernel, launch_of(kernel, (640,), (64,)), device)
    assert_views(trace, 0, AccessUse.LOAD, lambda ids: ids[0] * 4)
    assert_views(trace, 1, AccessUse.STORE, lambda ids: (ids[0] // 64 * 64 + 63 - ids[0] % 64) * 4)


def test_updates_atomics_lanes_and_what_lies_outside(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(UPDATES)
    trace = traced(kernel, launch_of(kernel, (128,), (32,)), device)
    assert_views(trace, 0, AccessUse.LOAD, lambda ids: ids[0] * 4)
    assert_views(trace, 1, AccessUse.ATOMIC, lambda ids: ids[0] % 4 * 4)
    # One lane of a vector is an access to the vector.
    assert_views(trace, 2, AccessUse.STORE, lambda ids: ids[0] * 16, 16)
    stores = map_of(trace.launch, 0, AccessUse.STORE)
    accesses = [(n, n * 4, 4) for n in range(128)] + [(n, n * 4 - 4, 4) for n in range(1, 128)]
    assert_is(stores, trace.launch.items_a_column, accesses)
    assert stores.num_outside == 1  # a[-1]
    assert map_of(group_of(trace), 0, AccessUse.STORE).num_outside == 0


def test_a_copy_of_a_group_is_of_each_of_its_work_items(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(COPIES)
    trace = traced(kernel, launch_of(kernel, (128,), (64,)), device)
    copied = map_of(group_of(trace), 0, AccessUse.OTHER)
    assert copied.cells == tuple((c, r, 1) for c in range(64) for r in range(64))
    assert_views(trace, 1, AccessUse.STORE, lambda ids: ids[0] * 4)


def test_of_a_large_launch_groups_from_end_to_end_run(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(VADD)
    items = 1 << 22
    trace = traced(kernel, launch_of(kernel, (items,), (256,)), device)
    assert len(trace.launch.groups) == MOST_ITEMS // 256
    assert (trace.launch.groups[0], trace.launch.groups[-1]) == (0, items // 256 - 1)
    assert_views(trace, 0, AccessUse.LOAD, lambda ids: ids[0] * 4)


def test_a_group_that_does_nothing_gives_way_to_one_that_works(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(FIRST_ONLY)
    trace = traced(kernel, launch_of(kernel, (4096,), (32,)), device)
    assert group_of(trace).groups in {(0,), (1,)}
    assert map_of(group_of(trace), 0, AccessUse.STORE).num_accesses == 32
    assert map_of(trace.launch, 0, AccessUse.STORE).num_accesses == 64


def test_a_launch_of_one_group_has_one_view(device: OpenclVirtualDevice) -> None:
    kernel = kernel_of(VADD)
    trace = traced(kernel, launch_of(kernel, (64,), (64,)), device)
    assert trace.group is None
    assert trace.launch.groups == (0,)


HANGS = (
    "__kernel void k(__global int *a, int n) { __local int t[64]; int l = get_local_id(0); t[l] = n;"
    " while (t[0] > 0) { barrier(CLK_LOCAL_MEM_FENCE); t[l] = n; } a[get_global_id(0)] = t[l]; }"
)
"""Its loop has a barrier, so that it may not be cut off."""
ENDLESS = "__kernel void k(__global int *a, int n) { while (n > 0) a[0] = n; }"
HEAVY = "__kernel void k(__global int *a, int n) { int i = get_global_id(0); for (int j = 0; j < 1024; ++j) a[i] += j; }"


@pytest.mark.slow
def test_a_hang_costs_its_own_child_only(ref: DeviceRef) -> None:
    kernels = [kernel_of(one) for one in (HANGS, VADD)]
    launches = [(one, launch_of(one, (128,), (64,))) for one in kernels]
    hung, sound = trace_all(launches, ref, timeout_s=300, cpu_s=3)
    assert isinstance(hung, Failure)
    assert hung.code is FailureCode.HANG
    assert "3 s of processor time" in hung.detail
    assert isinstance(sound, AccessTrace), sound


@pytest.mark.slow
def test_a_trace_has_its_time_and_no_more(ref: DeviceRef) -> None:
    kernel = kernel_of(HANGS)
    launch = (kernel, launch_of(kernel, (128,), (64,)))
    (hung,) = trace_all([launch], ref, timeout_s=4, cpu_s=300)
    assert isinstance(hung, Failure)
    assert hung.code is FailureCode.HANG
    assert "killed after 4 s" in hung.detail


def test_loops_without_an_end_are_cut_off(ref: DeviceRef) -> None:
    kernel = kernel_of(ENDLESS)
    (found,) = trace_all([(kernel, launch_of(kernel, (128,), (64,)))], ref)
    assert isinstance(found, Failure)
    assert "loops of more than" in found.detail


@pytest.mark.slow
def test_of_heavy_groups_fewer_run(ref: DeviceRef) -> None:
    kernel = kernel_of(HEAVY)
    (found,) = trace_all([(kernel, launch_of(kernel, (1 << 20,), (1024,)))], ref)
    assert isinstance(found, AccessTrace), found
    # 2^20 turns in a group; of work-groups of 1024 no more than 4 run anyway.
    assert found.launch.groups == (0, 341, 682, 1023)
    heavier = kernel_of(HEAVY.replace("1024", "4096"))
    (found,) = trace_all([(heavier, launch_of(heavier, (1 << 20,), (1024,)))], ref)
    assert isinstance(found, AccessTrace), found
    assert found.launch.groups == (0, 1023)
    assert found.group is not None
    assert map_of(found.group, 0, AccessUse.LOAD).num_accesses == 1024 * 4096


def test_where_other_groups_do_far_more_the_middle_one_is_shown_alone(ref: DeviceRef) -> None:
    kernel = kernel_of(
        "__kernel void k(__global int *a, int n) { int i = get_global_id(0);"
        " for (int j = 0; j < (i < 64 ? 1 << 30 : 1); ++j) a[i] += j; }"
    )
    (found,) = trace_all([(kernel, launch_of(kernel, (4096,), (64,)))], ref)
    assert isinstance(found, AccessTrace), found
    assert (found.launch.groups, found.group) == ((32,), None)


def test_work_items_that_leave_before_a_barrier_access_nothing_after_it(
    device: OpenclVirtualDevice,
) -> None:
    """PoCL would run them on: a barrier that not all work-items reach has no defined meaning."""
    kernel = kernel_of(
        "__kernel void k(__global int *a, int n) { __local int t[64]; int i = get_global_id(0), l = get_local_id(0);"
        " if (i >= n - 7) return; t[l] = i; barrier(CLK_LOCAL_MEM_FENCE); a[i] = t[l]; }"
    )
    found = trace_accesses(kernel, launch_of(kernel, (640,), (64,)), device)
    assert isinstance(found, AccessTrace), found
    assert map_of(found.launch, 0, AccessUse.STORE).num_accesses == 640 - 7
    assert found.without_barriers
