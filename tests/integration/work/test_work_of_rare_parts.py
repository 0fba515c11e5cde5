"""Launches in which a row, a plane, a diagonal or some distant work-items do the work.

Their counts are right, or the error is large.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import kernel_of, launch_of
from workers.work.counting import CountedLaunch, count_launches
from workers.work.opencl_virtual import OpenclVirtualDevice
from workers.work.sampling.runs import KERNEL_NS

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
XY = "int x = get_global_id(0), y = get_global_id(1);"
SOURCES = {
    "tree": """__kernel void k(__global float *a, int s) {
        int i = get_global_id(0); if (i % (2 * s) == 0) a[i] += a[i + s]; }""",
    "prefix_of_rows": """__kernel void k(__global float *a, int w) {
        int i = get_global_id(0); int x = i % w, y = i / w;
        if (x == 0) { for (int j = 1; j < w; ++j) a[y * w + j] += a[y * w + j - 1]; } }""",
    "leaders": """__kernel void k(__global float *a, __global float *o, int seg) {
        int i = get_global_id(0);
        if (i % seg == 0) { float s = 0; for (int j = 0; j < seg; ++j) { s += a[i + j]; }
                            o[i / seg] = s; } }""",
    "corners_of_tiles": f"""__kernel void k(__global float *a, int w, int t) {{ {XY}
        if (y % t == 0 && x % t == 0)
            for (int j = 0; j < t; ++j) for (int q = 0; q < t; ++q)
                a[(y + j) * w + x + q] += 1.5f; }}""",
    "rows_of_tiles": f"""__kernel void k(__global float *a, int w) {{ {XY}
        if (y % 512 == 0) for (int j = 0; j < 100; ++j) a[y * w + x] += 1.5f; }}""",
    "two_windows": """__kernel void k(__global float *a, int n) {
        int i = get_global_id(0);
        if (i < 64 || (i >= n / 3 && i < n / 3 + 640))
            for (int j = 0; j < 100; ++j) a[i] += 1.5f; }""",
    "corners": f"""__kernel void k(__global float *a, int w) {{ {XY}
        if ((x == 0 || x == w - 1) && (y == 0 || y == w - 1))
            for (int j = 0; j < 1000; ++j) a[y * w + x] += 1.5f * j; }}""",
    "tiles_of_groups": """__kernel void k(__global const float *a, __global float *o, int t) {
        __local float s[256]; int l = get_local_id(0), g = get_group_id(0);
        s[l] = a[get_global_id(0)]; barrier(1);
        if (g % t == 0) { for (int j = 0; j < 256; ++j) s[l] += a[j]; }
        o[get_global_id(0)] = s[l]; }""",
    "border": f"""__kernel void k(__global float *a, int w) {{ {XY}
        if (y == 0 || y == w - 1 || x == 0 || x == w - 1) a[y * w + x] = 0.5f * a[y * w + x]; }}""",
    "border_of_tiles": f"""__kernel void k(__global float *a, int w) {{ {XY}
        __local float t[256]; t[get_local_id(1) * 16 + get_local_id(0)] = a[y * w + x]; barrier(1);
        if (y == 0 || y == w - 1 || x == 0 || x == w - 1)
            a[y * w + x] = t[get_local_id(0) * 16 + get_local_id(1)]; }}""",
    "faces": """__kernel void k(__global float *a, int n) {
        int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
        if (x == 0 || y == 0 || z == 0 || x == n - 1 || y == n - 1 || z == n - 1)
            a[(z * n + y) * n + x] = 0.0f; }""",
}
COUNTS = ("fp32_ops", "int_ops", "global_loads", "global_stores", "local_loads", "active_items")
MEGA = 2**20


def launched(
    device: OpenclVirtualDevice,
    source: str,
    global_size: Sizes,
    local_size: Sizes,
    scalars: Mapping[str, int],
    *,
    everything: bool = False,
) -> tuple[CountedLaunch, Work]:
    kernel = kernel_of(source)
    config = launch_of(kernel, global_size, local_size, scalars=scalars, elements=2**23, seed=3)
    time_ns = 1e13 if everything else KERNEL_NS
    (launch,) = count_launches(kernel, [config], device, everything=everything, time_ns=time_ns)
    assert isinstance(launch.outcome, Work), launch.outcome
    assert launch.outcome.is_exact is everything
    return launch, launch.outcome


def counts(
    device: OpenclVirtualDevice,
    source: str,
    global_size: Sizes,
    local_size: Sizes,
    scalars: Mapping[str, int],
) -> Work:
    return launched(device, source, global_size, local_size, scalars)[1]


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


@pytest.mark.parametrize(
    ("name", "sides", "local", "scalars"),
    [
        ("tree", (MEGA // 4,), (128,), {"s": 2**14}),
        ("tree", (MEGA // 16,), (64,), {"s": 2**12}),
        ("prefix_of_rows", (MEGA,), (64,), {"w": 2**14}),
        ("leaders", (MEGA,), (64,), {"seg": 2**16}),
        ("corners_of_tiles", (1024, 1024), (32, 8), {"w": 1024, "t": 128}),
        ("rows_of_tiles", (2048, 2048), (16, 16), {"w": 2048}),
        ("two_windows", (MEGA,), (64,), {"n": MEGA}),
        ("corners", (512, 512), (16, 16), {"w": 512}),
        ("tiles_of_groups", (2**16,), (256,), {"t": 32}),
    ],
)
def test_counts_are_right_or_the_error_is_large(
    virtual_device: OpenclVirtualDevice,
    name: str,
    sides: Sizes,
    local: Sizes,
    scalars: dict[str, int],
) -> None:
    work = counts(virtual_device, SOURCES[name], sides, local, scalars)
    if work.relative_error < 1:
        _, truth = launched(virtual_device, SOURCES[name], sides, local, scalars, everything=True)
        for one in COUNTS:
            likely = max(0.1, 2 * work.relative_error)
            assert getattr(work, one) == pytest.approx(getattr(truth, one), rel=likely), one


@pytest.mark.parametrize(
    ("name", "side", "dims", "local"),
    [
        ("border", 1024, 2, (16, 16)),
        ("border", 1024, 2, (64, 4)),
        ("border", 4096, 2, (16, 16)),
        ("border_of_tiles", 512, 2, (16, 16)),
        ("faces", 128, 3, (8, 8, 4)),
    ],
)
def test_borders_are_counted_in_each_dimension(
    virtual_device: OpenclVirtualDevice, name: str, side: int, dims: int, local: Sizes
) -> None:
    scalars = {"w" if dims == 2 else "n": side}
    work = counts(virtual_device, SOURCES[name], (side,) * dims, local, scalars)
    truth = side**dims - (side - 2) ** dims
    likely = 2 * work.relative_error * truth
    assert work.global_stores == pytest.approx(truth, abs=max(likely, 0.02 * truth))
    assert work.active_items == pytest.approx(truth, abs=max(likely, 0.02 * truth))


def test_a_border_of_an_unusual_width(virtual_device: OpenclVirtualDevice) -> None:
    work = counts(virtual_device, SOURCES["border"], (352, 672), (16, 32), {"w": 352})
    truth = 2 * 672 + 2 * 350  # x is 0 or 351, or y is 0 or 351
    assert work.global_stores == pytest.approx(truth, rel=0.05) or work.relative_error >= 0.5


def test_a_guard_that_leaves_most_work_items_idle_has_no_error(
    virtual_device: OpenclVirtualDevice,
) -> None:
    source = """__kernel void k(__global float *a, int n) {
        int i = get_global_id(0); if (i < n) a[i] *= 2.5f; }"""
    for limit in (100, 128, 129, 1000, 300_000):
        launch, work = launched(virtual_device, source, (MEGA,), (64,), {"n": limit})
        assert work.global_stores == pytest.approx(limit, rel=0.01)
        assert work.relative_error < 0.1
        assert launch.is_covered


def test_a_border_with_code_of_its_own_has_a_small_error(
    virtual_device: OpenclVirtualDevice,
) -> None:
    source = f"""__kernel void k(__global const float *a, __global float *b, int w, int h) {{ {XY}
        int p = y * w + x;
        if (y == 0) b[p] = a[p + w]; else if (y == h - 1) b[p] = a[p - w];
        else if (x == 0) b[p] = a[p + 1]; else if (x == w - 1) b[p] = a[p - 1];
        else b[p] = a[p] * 0.5f; }}"""
    work = counts(virtual_device, source, (512, 512), (16, 16), {"w": 512, "h": 512})
    assert work.fp32_ops == pytest.approx(510 * 510)
    assert work.relative_error < 0.6


def test_the_first_groups_of_a_heavy_launch_are_not_at_its_edge(
    virtual_device: OpenclVirtualDevice,
) -> None:
    source = f"""__kernel void k(__global const float *a, __global float *o, int n) {{ {XY}
        __local float s[256], t[256]; int l = get_local_id(0), m = get_local_id(1); float r = 0;
        for (int q = 0; q < n; q += 16) {{
            s[m * 16 + l] = y < n && q + l < n ? a[y * n + q + l] : 0;
            t[m * 16 + l] = x < n && q + m < n ? a[(q + m) * n + x] : 0;
            barrier(1);
            for (int k = 0; k < 16; ++k) r += s[m * 16 + k] * t[k * 16 + l];
            barrier(1);
        }}
        if (x < n && y < n) o[y * n + x] = r; }}"""
    work = counts(virtual_device, source, (128, 128), (16, 16), {"n": 120})
    assert work.global_stores == pytest.approx(120 * 120, rel=max(0.15, 2 * work.relative_error))


@pytest.mark.parametrize(
    ("source", "scalars"),
    [
        (SOURCES["tree"], {"s": 2**16}),
        (
            """__kernel void k(__global const float *a, __global float *o, int seg) {
                int i = get_global_id(0); if (i % seg == 0) o[2 * i + seg] = a[i]; }""",
            {"seg": 2**16},
        ),
        (
            """__kernel void k(__global const float *a, __global float *o, int seg) {
                int i = get_global_id(0);
                o[i] = a[i]; if ((i & (seg - 1)) == seg / 2) o[i + 2 * seg] = 1; }""",
            {"seg": 2**17},
        ),
    ],
)
def test_ranges_of_a_sample_that_misses_such_work_items_are_not_complete(
    virtual_device: OpenclVirtualDevice, source: str, scalars: dict[str, int]
) -> None:
    launch, _ = launched(virtual_device, source, (MEGA,), (64,), scalars)
    truth, _ = launched(virtual_device, source, (MEGA,), (64,), scalars, everything=True)
    if launch.is_covered:
        assert launch.ranges == truth.ranges
