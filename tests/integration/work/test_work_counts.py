"""Virtual launches against truth by hand: the side files of kernels/ say what a launch executes."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator

import pytest

from llmperf_common.failures import Failure
from llmperf_common.features.work import Work
from llmperf_common.records import ArgumentKind, Kernel, LaunchArgument, LaunchConfig, Strategy
from tests.support.reading import kernels_from_source
from tests.support.sampling import SLOW
from tests.support.truth.side_files import (
    Launch,
    Ranges,
    SideKernel,
    extent_elements,
    random_launches,
    read_side_files,
)
from tests.support.truth.side_touches import has_accesses, true_touches
from tests.support.truth.side_work import config_of, true_work
from workers.work.counting import CountedLaunch, count_kernel, count_launches
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

EXACT_RANGES = Ranges(max_lanes=16, max_groups=40, max_scalar=2000)
NUM_EXACT = 8
PLANNED_SHAPES: dict[int, list[tuple[tuple[int, ...], tuple[int, ...]]]] = {
    1: [((262_144,), (256,)), ((74_240,), (64,)), ((33_792,), (1024,))],
    2: [((512, 512), (16, 16)), ((640, 96), (32, 8)), ((2048, 24), (64, 4))],
    3: [((128, 64, 64), (8, 8, 4)), ((256, 128, 32), (32, 4, 1)), ((32, 16, 128), (4, 4, 4))],
}
MOST_SCALAR = {"k": 1024}
REGULAR, IRREGULAR = 0.02, 0.10
FEW_ITEMS = 1024
SECTOR_FLOATS = 8
IRREGULAR_KERNELS = {"syrk_grid"}
"""Beside those whose contents decide: a triangle."""

DECIDED_BY_ATOMICS = {"bfs_frontier"}
"""Kernels without counts: an atomic minimum decides whether they do more."""

SIDE_KERNELS = tuple(one for one in read_side_files() if one.name not in DECIDED_BY_ATOMICS)
each_eighth_quickly = pytest.mark.parametrize(
    "side",
    [
        pytest.param(side, marks=SLOW if number % 8 and side.name not in IRREGULAR_KERNELS else ())
        for number, side in enumerate(SIDE_KERNELS)
    ],
    ids=lambda side: side.name,
)


def kernel_of(side: SideKernel) -> Kernel:
    source = side.source.read_text(encoding="utf-8")
    return next(one for one in kernels_from_source(source) if one.name == side.name)


@each_eighth_quickly
def test_all_work_items_give_the_hand_formulas_exactly(
    side: SideKernel, virtual_device: OpenclVirtualDevice
) -> None:
    kernel = kernel_of(side)
    launches = list(random_launches(side, count=NUM_EXACT, seed=11, ranges=EXACT_RANGES))
    configs = [config_of(kernel, side, one, seed=7 + n) for n, one in enumerate(launches)]
    counted = list(count_kernel(kernel, configs, virtual_device, everything=True))
    assert len(counted) == NUM_EXACT
    for launch, config, work in zip(launches, configs, counted, strict=True):
        assert isinstance(work, Work), work
        assert work.is_exact
        assert not work.relative_error
        truth = true_work(kernel, side, launch, config)
        assert {name: getattr(work, name) for name in truth} == truth, launch


@pytest.mark.parametrize(
    "side",
    [one for one in read_side_files() if one.name in DECIDED_BY_ATOMICS],
    ids=lambda side: side.name,
)
def test_kernels_that_atomics_decide_have_a_reason(
    side: SideKernel, virtual_device: OpenclVirtualDevice
) -> None:
    kernel = kernel_of(side)
    launches = random_launches(side, count=NUM_EXACT, seed=11, ranges=EXACT_RANGES)
    configs = [config_of(kernel, side, one, seed=7 + n) for n, one in enumerate(launches)]
    for work in count_kernel(kernel, configs, virtual_device):
        assert isinstance(work, Failure)
        assert "results of atomic operations" in work.detail


@pytest.mark.parametrize(
    "side", [one for one in SIDE_KERNELS if has_accesses(one)], ids=lambda side: side.name
)
def test_what_work_items_touch_together_is_exact(
    side: SideKernel, virtual_device: OpenclVirtualDevice
) -> None:
    """Requests, sectors, lines, atomics that meet, and the bytes of a work-group, from addresses by hand."""
    kernel = kernel_of(side)
    launches = list(random_launches(side, count=NUM_EXACT, seed=5, ranges=EXACT_RANGES))
    launches += [one for one in map(_widened, launches[:2]) if side.accepts(one.sizes)]
    if "k" in launches[0].scalars:
        launches += [dataclasses.replace(launches[0], scalars={"k": depth}) for depth in (64, 128)]
    configs = [config_of(kernel, side, one, seed=7 + n) for n, one in enumerate(launches)]
    counted = list(count_kernel(kernel, configs, virtual_device, everything=True))
    for launch, config, work in zip(launches, configs, counted, strict=True):
        assert isinstance(work, Work), work
        truth = true_touches(kernel, side, launch, config)
        got = {name: getattr(work, name) for name in truth}
        # Of a group that runs as one, sectors and lines are seen of four warps; the others of an odd row's differ.
        is_odd = launch.scalars.get("k", 0) % SECTOR_FLOATS != 0
        for name in ("load_sectors", "load_lines") if is_odd else ():
            seen, true = got.pop(f"global_{name}"), truth.pop(f"global_{name}")
            assert seen == pytest.approx(true, rel=0.03), launch
        assert got == pytest.approx(truth, rel=1e-12), launch


@each_eighth_quickly
def test_access_ranges_end_where_the_extents_by_hand_end(
    side: SideKernel, virtual_device: OpenclVirtualDevice
) -> None:
    """All work-items reach the extent exactly, and a sample never exceeds it."""
    kernel = kernel_of(side)
    assert kernel.signature is not None
    launches = list(random_launches(side, count=NUM_EXACT, seed=11, ranges=EXACT_RANGES))
    configs = [config_of(kernel, side, one, seed=7 + n) for n, one in enumerate(launches)]
    element_bytes = {one.position: one.element_bytes for one in kernel.signature.arguments}
    for how in ({"everything": True}, {}, {"only_ranges": True}):
        counted = list(count_launches(kernel, configs, virtual_device, **how))
        for launch, one in zip(launches, counted, strict=True):
            assert isinstance(one.outcome, Work), one.outcome
            ends = {found.position: found.end_bytes for found in one.ranges}
            assert all(found.start_bytes == 0 for found in one.ranges), launch
            for extent in side.extents:
                elements = extent_elements(extent, launch.sizes)
                if elements is None:
                    continue
                position = extent["position"]
                end = -(-ends.get(position, 0) // element_bytes[position])
                if side.is_data_dependent or "everything" not in how:
                    assert end <= elements, (position, launch)
                else:
                    assert end == elements, (position, launch)


SCANNED = """
__kernel void compact(__global const int *in, __global int *out, __local int *s) {
    int l = get_local_id(0), n = get_local_size(0);
    s[l] = in[get_global_id(0)] > 7;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l == 0)
        for (int i = 1; i < n; ++i) s[i] += s[i - 1];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (s[l] > (l ? s[l - 1] : 0)) out[get_group_id(0) * n + s[l] - 1] = l;
}
"""
TALL = """
__kernel void tall(__global const float *a, __global float *c) {
    size_t y = get_global_id(1), x = get_global_id(0); float t = 0;
    for (int i = 0; i < 8000; ++i) t += a[y * 131072 + i];
    c[x] = t;
}
"""
CUT_OFF = """
__kernel void cut_off(__global const float *a, __global float *out) {
    int best = 2147483647;
    for (int i = 0; i < 1000000; ++i) if (a[i % 64] >= 0) best = i & 7;
    out[best] = 1;
}
"""


def _launched(
    source: str, device: OpenclVirtualDevice, global_size: tuple[int, ...], local: tuple[int, ...]
) -> tuple[CountedLaunch, dict[int, int]]:
    """The counted launch of a kernel, and the ends of its ranges in bytes by position."""
    (kernel,) = kernels_from_source(source)
    assert kernel.signature is not None
    given = [
        LaunchArgument(
            position=one.position,
            kind=one.kind,
            elements=local[0] if one.kind is ArgumentKind.LOCAL_BUFFER else math.prod(global_size),
        )
        for one in kernel.signature.arguments
    ]
    config = LaunchConfig(
        sample_id="s", global_size=global_size, local_size=local, args=tuple(given), regime=None,
        strategies=(Strategy.SIMPLE,), seed=3,
    )  # fmt: skip
    (found,) = count_launches(kernel, [config], device)
    return found, {one.position: one.end_bytes for one in found.ranges}


def test_indices_through_local_memory_are_those_of_work_items_that_wait(
    virtual_device: OpenclVirtualDevice,
) -> None:
    found, ends = _launched(SCANNED, virtual_device, (512,), (64,))
    assert all(one.start_bytes == 0 for one in found.ranges)
    assert 4 * 448 < ends[1] <= 4 * 512
    assert found.is_covered


def test_a_launch_whose_ends_are_too_heavy_is_not_covered(
    virtual_device: OpenclVirtualDevice,
) -> None:
    found, ends = _launched(TALL, virtual_device, (1024, 1024), (16, 16))
    assert isinstance(found.outcome, Work)
    reaches_end = ends[0] >= 4 * (1023 * 131072 + 8000)
    assert found.is_covered is reaches_end


def test_accesses_after_a_loop_was_cut_off_say_nothing(virtual_device: OpenclVirtualDevice) -> None:
    found, ends = _launched(CUT_OFF, virtual_device, (64,), (64,))
    assert not isinstance(found.outcome, Work)
    assert not found.is_covered
    assert ends.get(1, 0) <= 4 * 8


def _widened(launch: Launch) -> Launch:
    """Return the launch with groups four times as wide: of more than one warp."""
    (side, *sides), (lanes, *others) = launch.global_size, launch.local_size
    return dataclasses.replace(
        launch, global_size=(4 * side, *sides), local_size=(4 * lanes, *others)
    )


def test_the_kernels_of_which_addresses_are_known() -> None:
    assert {one.name for one in SIDE_KERNELS if has_accesses(one)} >= {
        "saxpy", "vadd", "strided_read", "reverse_copy", "histogram_global", "histogram_local",
        "matmul_tiled", "transpose_naive", "transpose_tiled", "transpose_pitched",
    }  # fmt: skip


def planned_launches(side: SideKernel) -> Iterator[Launch]:
    """Yield launches as plans have them: scalars are the global size, or a quarter of it to four times that."""
    rng = random.Random(side.name)
    for planned_global, planned_local in PLANNED_SHAPES[side.dims]:
        local_size = (side.required_local_size or planned_local)[: side.dims]
        pairs = zip(planned_global, local_size, strict=True)
        global_size = tuple(max(1, total // lanes) * lanes for total, lanes in pairs)
        for is_decoupled in (False, True):
            scalars = {}
            for one in side.parameters:
                if one.space is None and not one.is_float:
                    factor = 4 ** rng.uniform(-1, 1) if is_decoupled else 1
                    value = max(1, int(global_size[0] * factor))
                    scalars[one.name] = min(value, MOST_SCALAR.get(one.name, value))
            launch = Launch(global_size=global_size, local_size=local_size, scalars=scalars)
            if side.accepts(launch.sizes):
                yield launch


@each_eighth_quickly
def test_sixteen_work_groups_are_enough(
    side: SideKernel, virtual_device: OpenclVirtualDevice
) -> None:
    kernel = kernel_of(side)
    launches = list(planned_launches(side))
    configs = [config_of(kernel, side, one, seed=3 + n) for n, one in enumerate(launches)]
    is_irregular = side.is_data_dependent or side.name in IRREGULAR_KERNELS
    most = IRREGULAR if is_irregular else REGULAR
    for launch, config, work in zip(
        launches, configs, count_kernel(kernel, configs, virtual_device), strict=True
    ):
        assert isinstance(work, Work), work
        assert work.sampled_items <= 16 * max(256, math.prod(launch.local_size))
        # Where work-items loop so long that few of them run, the record says how unsure it is.
        is_short = work.sampled_items < FEW_ITEMS and not work.is_exact
        rel = max(most, 3 * work.relative_error) if is_short else most
        for name, true in true_work(kernel, side, launch, config).items():
            got = getattr(work, name)
            assert got == pytest.approx(true, rel=rel), (name, launch, work.relative_error)
