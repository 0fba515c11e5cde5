"""The time that no launch undercuts: what counts as surely touched, and that no measured row is below it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.analysis import launch_sizes
from llmperf_common.least_time import FLOOR_SHARE, DenseAccess, least_time_ns
from tests.unit.synthetic_dataset import DEVICE
from workers.clang_parse import parse
from workers.dense_accesses import dense_accesses

REPOSITORY = Path(__file__).parents[2]
MEASURED = REPOSITORY / "benchmarks" / "raw" / "2026-11-23-least-time-epyc.csv"
HEAD = "__kernel void k(__global float *a, __global float *b, __global int *c, int n, int m) {"
IDS = " int i = get_global_id(0); int j = get_global_id(1);"


def touched(body: str, *, before: str = "") -> list[tuple[str, tuple[tuple[str, ...], ...], str]]:
    """Return what the body of a kernel surely touches: argument, guards, pitch."""
    parsed = parse(before + HEAD + IDS + body + " }")
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
    assert least_time_ns(access, sizes, {0: 128}, {0: items}, DEVICE) == FLOOR_SHARE * 4000
    unmeasured = replace(DEVICE, peak_dram_gbps=None, launch_floor_ns=None)
    assert least_time_ns(access, sizes, {0: 4}, {0: items}, unmeasured) == 0


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
    with MEASURED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            kernel, dense = accesses[row["kernel"]]
            args = dict(one.split("=") for one in row["args"].split())
            numbers = [float(args[one.name]) for one in kernel.parameters]
            shape = [
                tuple(map(int, row[name].split("x"))) for name in ("global_size", "local_size")
            ]
            names = {one.name: value for one, value in zip(kernel.parameters, numbers, strict=True)}
            device = replace(
                DEVICE,
                launch_floor_ns=float(row["launch_floor_ns"]),
                peak_dram_gbps=float(row["peak_dram_gbps"]),
                peak_l2_gbps=float(row["peak_l2_gbps"]),
                last_level_cache_bytes=int(row["last_level_cache_bytes"]),
            )
            found = least_time_ns(
                dense,
                launch_sizes(shape[0], shape[1], names),
                widths[row["kernel"]],
                dict(enumerate(map(int, numbers))),
                device,
            )
            assert found <= float(row["median_ns"]), row
            num_by_memory += found > FLOOR_SHARE * float(row["launch_floor_ns"])
    assert num_by_memory >= 30
