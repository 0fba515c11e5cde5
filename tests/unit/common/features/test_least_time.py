"""The time that no launch undercuts: what counts as surely touched, and that no measured row is below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llmperf_common.analysis import launch_sizes
from llmperf_common.features.least_time import FLOOR_SHARE, DenseAccess, least_time_ns
from tests.support.factories.synthetic_dataset import DEVICE
from workers.source.clang.parse import parse
from workers.source.dense_accesses import dense_accesses

REPOSITORY = Path(__file__).parents[4]
MEASURED = REPOSITORY / "benchmarks" / "raw" / "2026-11-23-least-time-epyc.parquet"
HEAD = "__kernel void k(__global float *a, __global float *b, __global int *c, int n, int m) {"
IDS = " int i = get_global_id(0); int j = get_global_id(1);"


def touched(
    body: str, *, before: str = "", head: str = HEAD
) -> list[tuple[str, tuple[tuple[str, ...], ...], str]]:
    """Return what the body of a kernel surely touches: argument, guards, pitch."""
    parsed = parse(before + head + IDS + body + " }")
    assert not parsed.errors
    (kernel,) = parsed.kernels
    names = [one.name for one in kernel.parameters]
    return [(names[one.position], one.guards, one.pitch) for one in dense_accesses(parsed, kernel)]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("b[i] = a[i];", {("a", (), ""), ("b", (), "")}),
        ("if (i < n) b[i] = a[i] + 1;", {("a", ("n",), ""), ("b", ("n",), "")}),
        ("if (n > i) b[i] = 1;", {("b", ("n",), "")}),
        ("if (i >= n) return; b[i] = 1;", {("b", ("n",), "")}),
        ("if (i >= n || j >= m) { return; } b[i] = 1;", {("b", ("n",), "")}),
        ("b[j * n + i] = 1;", {("b", (), "n")}),
        ("b[j * get_global_size(0) + i + 4] = 1;", {("b", (), "global_size_0")}),
        ("b[(j + 1) * n + i] = 1;", {("b", (), "")}),
        ("float x = a[i]; b[i] = x;", {("a", (), ""), ("b", (), "")}),
        ("for (int t = 0; t < n; t++) c[t] = 1; b[i] = 1;", {("b", (), "")}),
    ],
)
def test_what_every_work_item_touches_counts(body: str, expected: set[tuple[object, ...]]) -> None:
    assert {(name, guards[0], pitch) for name, guards, pitch in touched(body)} == expected


@pytest.mark.parametrize(
    "body",
    [
        "if (c[i] > 0) b[i] = 1;",  # its condition is touched, what it guards may not be
        "if (i == n) b[i] = 1;",
        "if (i > n) b[i] = 1;",
        "if (i < n - 1) b[i] = 1;",
        "if (i % 64 == 0) b[i] = 1;",
        "if (n) return; b[i] = 1;",
        "if (i >= n) { c[0] = 1; return; } b[i] = 1;",
        "b[i % 64] = 1;",
        "b[i / 2] = 1;",
        "b[2 * i] = 1;",
        "b[c[i]] = 1;",
        "b[(uchar)i] = 1;",
        "n = 3; if (i < n) b[i] = 1;",
        "i = 3; b[i] = 1;",
        "int *p = &i; *p = 3; b[i] = 1;",
        "b = b + 0 * i; b[i] = 1;",
        "for (int t = 0; t < n; t++) b[i] = 1;",
        "while (true) { if (n > 3) return; } b[i] = 1;",
        "c[0] = n > 3 ? b[i] : 0;",
        "c[0] = n > 3 && b[i] > 0;",
        "float x = b[i];",
        "c[0] = sizeof(b[i]);",
        "switch (n) { case 3: b[i] = 1; }",
        "goto end; b[i] = 1; end: c[0] = 1;",
    ],
)
def test_what_may_not_happen_does_not_count(body: str) -> None:
    assert "b" not in {name for name, _, _ in touched(body)}


@pytest.mark.parametrize(
    "body",
    [
        "b[i] = a[i] * 2.0f + 1;",
        "b[i] = n * a[i];",
        "b[i] += -sqrt(a[i]) / 3.0f;",
        "b[i] = fma(a[i], 2.0f, b[i]);",
        "const float k = 2.0f; float x = a[i]; float y = k * x; if (i < n) b[i] = y;",
        "c[i] = 3 * convert_int_rte(a[i]);",
        "b[(int)a[i]] = 1;",
        "atomic_add(c, (int)a[i]); b[i] = 1;",
    ],
)
def test_a_read_that_a_store_needs_counts(body: str) -> None:
    assert "a" in {name for name, _, _ in touched(body)}


@pytest.mark.parametrize(
    "body",
    [
        "float x = a[i]; float y = x * 2;",
        "float x = a[i]; x = 2; b[i] = x;",
        "float x; x = a[i]; b[i] = x;",
        "a[i]; b[i] = 1;",
        "b[i] = a[i] * 0;",
        "b[i] = 0.0f * a[i];",
        "b[i] = a[i] * -0.0f;",
        "b[i] = a[i] * (float)0;",
        "const int zero = 0; b[i] = a[i] * zero;",
        "b[i] = a[i] * (n - n);",
        "c[i] = 65536 * ((int)a[i] * 65536);",
        "b[i] *= 0 * a[i];",
        "b[i] = fma(a[i], 0.0f, 1.0f);",
        "b[i] = a[i] - a[i];",
        "float x = a[i]; float y = x; b[i] = 1 + x - y;",
        "float s = 0; s -= a[i]; b[i] = s + a[i];",
        "float s[1]; s[0] = -a[i]; b[i] = s[0] + a[i];",
        "b[i] = a[i]; b[i] = 1;",
        "b[i] = a[i]; global float *p = b; *p = 1;",
        "b[i] = 0; c[i] = b[i] * a[i];",
        "c[i] = convert_int_sat(a[i]);",
        "float s[2]; s[0] = a[i]; b[i] = 1;",
        "b[i] = ((float2)(a[i], 1)).y;",
        "float2 v = a[i]; v[0] = 1; v[1] = 2; b[i] = v.x;",
        "float2 v = 0; v[0] = -a[i]; b[i] = v.x + a[i];",
        "a[i] = a[i];",
        "float x = a[i]; a[i] = x;",
        "a[i] += 0; a[i] *= 1.0f; a[i] = a[i] * 1 + 0.0f;",
    ],
)
def test_a_read_that_a_compiler_may_drop_does_not_count(body: str) -> None:
    assert "a" not in {name for name, _, _ in touched(body)}


@pytest.mark.parametrize(("name", "buffers"), [("vadd", {0, 1, 2}), ("saxpy", {1, 2})])
def test_plain_kernels_count_all_their_buffers(name: str, buffers: set[int]) -> None:
    parsed = parse((REPOSITORY / "kernels" / f"{name}.cl").read_text(encoding="utf-8"))
    (kernel,) = parsed.kernels
    assert {one.position for one in dense_accesses(parsed, kernel)} == buffers


def test_a_read_takes_the_guards_of_the_store_that_needs_it() -> None:
    found = touched("float x = a[i]; if (i < n) b[i] = x;")
    assert {(name, guards[0]) for name, guards, _ in found} == {("a", ("n",)), ("b", ("n",))}


@pytest.mark.parametrize(
    ("body", "whole"),
    [
        ("a[i] = 1;", {True}),
        ("a[i].x = 1;", {False}),
        ("a[i].lo = 1;", {False}),
        ("b[i] = a[i].x;", {False}),
        # Which lanes a read needs is not in the tree.
        ("b[i] = a[i];", {False}),
    ],
)
def test_a_wide_element_is_whole_only_where_all_of_it_is_stored(
    body: str, whole: set[bool]
) -> None:
    target = "float" if ".x;" in body else "float16"
    head = f"__kernel void k(__global float16 *a, __global {target} *b) {{"
    parsed = parse(head + IDS + body + " }")
    assert not parsed.errors
    found = dense_accesses(parsed, parsed.kernels[0])
    assert {one.is_whole for one in found if one.position == 0} == whole


def test_of_a_record_a_sector_counts() -> None:
    """A compiler drops members that were never set."""
    before = "typedef struct { float x; float y[15]; } S; "
    head = "__kernel void k(__global S *a, __global S *b) {"
    body = "S s; s.x = 1; a[i] = s; b[i].x = 1;"
    parsed = parse(before + head + IDS + body + " }")
    found = dense_accesses(parsed, parsed.kernels[0])
    assert [(one.position, one.is_whole) for one in found] == [(0, False), (1, False)]


def test_a_long_chain_of_variables_is_read() -> None:
    steps = "".join(f"float x{at + 1} = x{at} * x{at};" for at in range(400))
    assert touched(f"float x0 = a[i]; {steps} b[i] = x400;") == [("b", ((), (), ()), "")]


def test_a_helper_may_ignore_its_argument() -> None:
    assert touched("c[0] = f(b[i]);", before="int f(float x) { return 1; } ") == []


def test_elements_of_rows_that_overlap_count_once() -> None:
    rows = DenseAccess(position=0, pitch="w")
    sizes = launch_sizes((8, 4), (1, 1), {"w": 100})
    assert rows.elements(sizes) == 32
    assert rows.elements({**sizes, "w": 3}) == 3 * 3 + 8
    assert rows.elements({**sizes, "w": -3}) == 8
    guarded = DenseAccess(position=0, guards=(("n",), ("m",), ()), pitch="w")
    assert guarded.elements({**sizes, "n": 5, "m": 2}) == 10
    assert guarded.elements({**sizes, "n": 5, "m": 0}) == 0


def test_bytes_beyond_the_caches_take_their_time() -> None:
    items = 2**28
    sizes = launch_sizes((items,), (64,), {})
    access = [DenseAccess(position=0)]
    found = least_time_ns(access, sizes, {0: 4}, {0: items}, DEVICE)
    # 1 GiB but two caches of 4 MiB, at the 1,600 GB/s of the cache.
    assert found == pytest.approx((4 * items - 2 * 2**22) / 1600)
    assert least_time_ns(access, sizes, {0: 4}, {0: 1000}, DEVICE) == FLOOR_SHARE * 4000
    unmeasured = replace(DEVICE, peak_dram_gbps=None, launch_floor_ns=None)
    assert least_time_ns(access, sizes, {0: 4}, {0: items}, unmeasured) == 0


def test_memory_is_no_faster_than_its_bus() -> None:
    """An H200 was said to move 5.4 TB/s: the factor for reads is that of a CPU's write-allocate."""
    card = replace(DEVICE, peak_dram_gbps=4040.0, peak_l2_gbps=4572.0)
    card = replace(card, memory_bus_bits=6016, max_memory_clock_mhz=3201.0)
    items = 2**28
    access = [DenseAccess(position=0)]
    found = least_time_ns(access, launch_sizes((items,), (64,), {}), {0: 4}, {0: items}, card)
    bus_gbps = 2 * 3.201 * 6016 / 8  # two transfers a clock: 4,814
    assert found == pytest.approx((4 * items - 2 * card.last_level_cache_bytes) / bus_gbps)


def test_of_a_wide_element_one_sector_counts_unless_it_is_stored_whole() -> None:
    items = 2**28
    sizes = launch_sizes((items,), (64,), {})
    cached = 2 * 2**22
    member, whole = DenseAccess(position=0), DenseAccess(position=0, is_whole=True)
    for accesses, size, moved in (
        ([member], 64, 32),
        ([member], 128, 32),
        ([member], 24, 24),
        ([whole], 128, 128),
        ([whole, member], 64, 64),
    ):
        found = least_time_ns(accesses, sizes, {0: size}, {0: items}, DEVICE)
        assert found == pytest.approx((moved * items - cached) / 1600)


def test_no_measured_launch_is_below_it() -> None:
    """1,504 medians of a CPU device: kernels/ by the demo's preset, and 14 of them with up to 1 GiB."""
    accesses, widths = {}, {}
    for file in (REPOSITORY / "kernels").glob("*.cl"):
        parsed = parse(file.read_text(encoding="utf-8"))
        for kernel in parsed.kernels:
            accesses[kernel.name] = (kernel, dense_accesses(parsed, kernel))
            widths[kernel.name] = {
                position: one.type.pointee.size_bytes if one.type.pointee else 0
                for position, one in enumerate(kernel.parameters)
            }
    num_by_memory = 0
    for row in pq.read_table(MEASURED).to_pylist():
        kernel, dense = accesses[row["kernel"]]
        args = dict(one.split("=") for one in row["args"].split())
        numbers = [float(args[one.name]) for one in kernel.parameters]
        shape = [tuple(map(int, row[name].split("x"))) for name in ("global_size", "local_size")]
        names = {one.name: value for one, value in zip(kernel.parameters, numbers, strict=True)}
        device = replace(
            DEVICE,
            launch_floor_ns=row["launch_floor_ns"],
            peak_dram_gbps=row["peak_dram_gbps"],
            peak_l2_gbps=row["peak_l2_gbps"],
            last_level_cache_bytes=row["last_level_cache_bytes"],
        )
        found = least_time_ns(
            dense,
            launch_sizes(shape[0], shape[1], names),
            widths[row["kernel"]],
            dict(enumerate(map(int, numbers))),
            device,
        )
        assert found <= row["median_ns"], row
        num_by_memory += found > FLOOR_SHARE * row["launch_floor_ns"]
    assert num_by_memory >= 24
