"""Launches that are larger than their data in two or three dimensions, sampled by work-groups.

Guards cut off a part of the work-groups on each axis, or of the work-items of the last groups.
"""

from __future__ import annotations

import math

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import kernel_of, launch_of
from workers.work.counting import count_launches
from workers.work.opencl_virtual import OpenclVirtualDevice

pytestmark = pytest.mark.opencl

AT = "get_group_id({0}) * get_local_size({0}) + get_local_id({0})"
PLANE = f"""__kernel void k(__global const float *in, __global float *o, int w, int h) {{
    int x = {AT.format(0)}, y = {AT.format(1)};
    if (x < w && y < h) o[y * w + x] = 2 * in[y * w + x];
}}"""
VOLUME = f"""__kernel void k(__global const float *in, __global float *o, int w, int h, int d) {{
    int x = {AT.format(0)}, y = {AT.format(1)}, z = {AT.format(2)};
    if (x < w && y < h && z < d) {{ int p = (z * h + y) * w + x; o[p] = 2 * in[p]; }}
}}"""
INNER = f"""__kernel void k(__global const float *in, __global float *o, int w, int h) {{
    int x = {AT.format(0)}, y = {AT.format(1)};
    if (x > 0 && y > 0 && x < w - 1 && y < h - 1)
        o[y * w + x] = in[y * w + x - 1] + in[y * w + x + 1];
}}"""
CLAMPED = """__kernel void k(__global const float *in, __global float *o, int w, int h) {
    __local float t[18][18];
    int lx = get_local_id(0), ly = get_local_id(1), x = get_global_id(0), y = get_global_id(1);
    int X = min(x, w - 1), Y = min(y, h - 1);
    t[ly + 1][lx + 1] = in[Y * w + X];
    if (lx == 0) t[ly + 1][0] = in[Y * w + max(X - 1, 0)];
    if (lx == 15) t[ly + 1][17] = in[Y * w + min(X + 1, w - 1)];
    if (ly == 0) t[0][lx + 1] = in[max(Y - 1, 0) * w + X];
    if (ly == 15) t[17][lx + 1] = in[min(Y + 1, h - 1) * w + X];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (x < w && y < h) o[y * w + x] = t[ly + 1][lx] + t[ly + 1][lx + 2] + t[ly][lx + 1];
}"""


@pytest.mark.parametrize(
    ("source", "global_size", "local_size", "sides"),
    [
        (PLANE, (2048, 2048), (16, 16), (628, 1476)),
        (PLANE, (2048, 2048), (32, 8), (492, 1063)),
        (PLANE, (1024, 1024), (16, 16), (512, 633)),
        (PLANE, (912, 144), (16, 16), (898, 131)),
        (INNER, (2048, 2048), (64, 1), (628, 1476)),
        (CLAMPED, (2048, 2048), (16, 16), (492, 1063)),
        (CLAMPED, (2048, 2048), (16, 16), (1289, 234)),
        (CLAMPED, (912, 144), (16, 16), (898, 131)),
        (CLAMPED, (512, 512), (16, 16), (500, 500)),
        (VOLUME, (256, 128, 64), (8, 8, 4), (241, 97, 28)),
        (VOLUME, (128, 128, 128), (8, 8, 4), (33, 90, 70)),
    ],
)
def test_guards_on_several_axes_are_found(
    source: str,
    global_size: tuple[int, ...],
    local_size: tuple[int, ...],
    sides: tuple[int, ...],
    virtual_device: OpenclVirtualDevice,
) -> None:
    kernel = kernel_of(source)
    scalars = dict(zip("whd", sides, strict=False))
    config = launch_of(kernel, global_size, local_size, scalars=scalars, elements=2**24)
    (found,) = count_launches(kernel, [config], virtual_device)
    work = found.outcome
    assert isinstance(work, Work)
    assert not work.is_exact
    elements, reach = math.prod(sides), math.prod(sides)
    if source is INNER:
        elements, reach = math.prod(side - 2 for side in sides), reach - sides[0] - 1
    # Of three groups that guards end inside, a sample of this size has a part for one only.
    error = max(0.1, work.relative_error) if source is VOLUME else 0.1
    assert work.global_stores == pytest.approx(elements, rel=error)
    assert work.relative_error < 0.5
    ends = {one.position: one.end_bytes / 4 for one in found.ranges}
    assert reach * 0.999 <= ends[1] <= reach
    assert found.is_covered


@pytest.mark.parametrize(
    ("global_size", "sides"),
    [
        ((912, 144), (898, 131)),
        ((1488, 240), (1480, 230)),
        ((512, 512), (500, 500)),
        ((2048, 2048), (587, 1313)),
        ((1024, 1024), (900, 610)),
    ],
)
def test_bytes_that_groups_touch_are_those_of_groups_inside_and_at_borders(
    global_size: tuple[int, int], sides: tuple[int, int], virtual_device: OpenclVirtualDevice
) -> None:
    kernel = kernel_of(CLAMPED)
    scalars = {"w": sides[0], "h": sides[1]}
    config = launch_of(kernel, global_size, (16, 16), scalars=scalars, elements=2**24)
    (found,) = count_launches(kernel, [config], virtual_device)
    assert isinstance(found.outcome, Work)
    assert found.outcome.group_bytes == pytest.approx(_touched(global_size, sides), rel=0.1)


def _touched(global_size: tuple[int, int], sides: tuple[int, int]) -> int:
    """Return the sum of the distinct bytes that each work-group of ``CLAMPED`` touches."""
    (wide, tall) = (
        [_of_group(start, side) for start in range(0, whole, 16)]
        for whole, side in zip(global_size, sides, strict=True)
    )
    return 4 * sum(
        own_x * own_y + (with_x - own_x) * own_y + (with_y - own_y) * own_x + in_x * in_y
        for own_x, with_x, in_x in wide
        for own_y, with_y, in_y in tall
    )


def _of_group(start: int, side: int) -> tuple[int, int, int]:
    """Return the columns that a group loads, those with its neighbours, and those that it stores."""
    own = {min(at, side - 1) for at in range(start, start + 16)}
    inside = sum(at < side for at in range(start, start + 16))
    return len(own), len(own | {max(min(own) - 1, 0), min(max(own) + 1, side - 1)}), inside


@pytest.mark.parametrize("only_ranges", [False, True])
@pytest.mark.parametrize(
    "guard",
    ["x + y < w", "x >= y && x < w", "x > 200 && x < w && y > 100 && y < h", "x < w && y < h"],
)
@pytest.mark.parametrize("local_size", [(16, 16), (64, 4)])
def test_ranges_that_end_too_early_do_not_count_as_complete(
    guard: str,
    local_size: tuple[int, int],
    only_ranges: bool,
    virtual_device: OpenclVirtualDevice,
) -> None:
    source = PLANE.replace("x < w && y < h", guard)
    kernel = kernel_of(source)
    config = launch_of(
        kernel, (1024, 1024), local_size, scalars={"w": 628, "h": 876}, elements=2**20
    )
    (found,) = count_launches(kernel, [config], virtual_device, only_ranges=only_ranges)
    (truth,) = count_launches(kernel, [config], virtual_device, everything=True, time_ns=1e13)
    if found.is_covered:
        assert found.ranges == truth.ranges
    assert found.is_covered or guard != "x < w && y < h"


@pytest.mark.parametrize("value", ["INFINITY", "-INFINITY", "HUGE_VALF", "(float)HUGE_VAL", "NAN"])
def test_constants_of_the_language_are_no_special_functions(
    value: str, virtual_device: OpenclVirtualDevice
) -> None:
    source = f"__kernel void k(__global float *o) {{ o[get_global_id(0)] = {value}; }}"
    kernel = kernel_of(source)
    (found,) = count_launches(kernel, [launch_of(kernel, (64,), (64,))], virtual_device)
    assert isinstance(found.outcome, Work)
    assert (found.outcome.special_ops, found.outcome.fp32_ops) == (0, 0)
