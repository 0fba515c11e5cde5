"""The rows of ``ncu`` beside the launches they belong to, and how far a count is from a counter."""

from __future__ import annotations

import csv
import math
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.collecting.collectors.jobs import Job
from benchmarks.device.hardware_counts.comparing import compare, error_of, is_far
from benchmarks.device.hardware_counts.ncu import (
    COUNTERS,
    _jobs_touched,
    _run,
    counter_rows,
    matched,
)
from llmperf_common.records import LaunchConfig, Strategy


def page(*rows: tuple[str, str, int]) -> list[str]:
    """Lines of a raw page: id, grid size and one value for all counters of each launch."""
    columns = ["ID", "Grid Size", *COUNTERS.values()]
    quoted = [[*row[:2], *[f"{row[2]:,}"] * len(COUNTERS)] for row in rows]
    units = ["", "", *["inst"] * len(COUNTERS)]
    return [
        "==PROF== Connected to process 7",
        *(",".join(f'"{one}"' for one in line) for line in [columns, units, *quoted]),
    ]


def progress(*steps: str) -> list[dict[str, str]]:
    """``A begun`` and the like."""
    return [
        {"sample_id": step.split()[0], "stage": step.split()[1], "note": " ".join(step.split()[2:])}
        for step in steps
    ]


def test_each_launch_gets_its_own_counters() -> None:
    rows = counter_rows(page(("0", "(1, 1, 1)", 1234567), ("1", "(2, 1, 1)", 8)))
    lines = progress("A begun", "A launched", "B begun", "B launched")
    found = list(matched(lines, rows))
    assert [(one["sample_id"], one["ffma"], one["note"]) for one in found] == [
        ("A", "1234567", ""), ("B", "8", ""),
    ]  # fmt: skip


def test_a_launch_that_was_refused_takes_no_counters_from_the_next() -> None:
    rows = counter_rows(page(("0", "(0, 0, 0)", 0), ("1", "(2, 1, 1)", 8)))
    lines = progress("A begun", "A failed too many groups", "B begun", "B launched")
    assert [(one["sample_id"], one.get("ffma"), one["note"]) for one in matched(lines, rows)] == [
        ("A", None, "too many groups"), ("B", "8", ""),
    ]  # fmt: skip


def test_a_launch_that_has_not_ended_has_no_row_and_one_without_counters_says_so() -> None:
    lines = progress("A begun", "A launched", "B begun")
    found = list(matched(lines, []))
    assert found == [{"sample_id": "A", "note": "ncu has no counters"}]


def job(*sample_ids: str) -> Job:
    launches = tuple(
        LaunchConfig(
            sample_id=one, global_size=(64,), local_size=(32,), args=(), regime=None,
            strategies=(Strategy.MEMORY_ANALYSIS,), seed=1,
        )
        for one in sample_ids
    )  # fmt: skip
    return Job(
        kernel_id="k", name="k", source="", build_options="", arguments=(), launches=launches
    )


def test_the_next_process_goes_on_behind_the_last_kernel_that_was_begun() -> None:
    jobs = [job("A", "B"), job("C", "D"), job("E")]
    assert _jobs_touched(jobs, [{"sample_id": "A"}, {"sample_id": "C"}]) == 2
    assert _jobs_touched(jobs, []) == 1, "a process that dies at once must not be repeated for ever"


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    child = f"import time\nwhile True: open({str(beat)!r}, 'a').write('.'); time.sleep(0.05)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert _run([sys.executable, "-c", parent], timeout_s=3.0) != 0
    size = beat.stat().st_size
    time.sleep(0.3)
    assert beat.stat().st_size == size > 0


@pytest.mark.parametrize(
    ("counted", "counter", "error", "far"),
    [(5, 5, 0.0, False), (6, 5, 0.2, False), (10, 5, 1.0, True), (0, 5, 1.0, True), (5, 0, math.inf, True),
     (49.99, 100, 0.5001, True), (51, 100, 0.49, False)],
)  # fmt: skip
def test_errors(counted: float, counter: float, error: float, far: bool) -> None:
    assert error_of(counted, counter) == pytest.approx(error)
    assert is_far(counted, counter) is far


def test_nothing_counted_where_nothing_is_executed_is_no_error() -> None:
    assert error_of(0, 0) is None


COUNTED = {
    "kernel_id": "k", "name": "k", "reason": None, "is_exact": True, "without_barriers": False,
    "special_ops": 0.0, "group_bytes": 128.0, "fp32_ops": 3.0, "fp64_ops": 0.0,
    "global_load_requests": 2.0, "global_store_requests": 1.0, "global_load_sectors": 8.0,
    "global_store_sectors": 4.0,
}  # fmt: skip


def test_the_comparison_joins_by_launch_and_leaves_out_those_without_either(tmp_path: Path) -> None:
    values = dict.fromkeys(COUNTERS, "0") | {
        "fadd": "1", "ffma": "1", "load_requests": "4", "store_requests": "1", "load_sectors": "8",
        "store_sectors": "4", "l2_load_sectors": "6", "l2_store_sectors": "4",
    }  # fmt: skip
    with (tmp_path / "counters.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, ["sample_id", "device", *COUNTERS, "note"])
        writer.writeheader()
        writer.writerow({"sample_id": "A", "device": "H200", **values, "note": ""})
        writer.writerow({"sample_id": "B", "device": "H200", "note": "the process died"})
        writer.writerow({"sample_id": "C", "device": "H200", **values, "note": ""})
    counts = [
        {"sample_id": "A", **COUNTED},
        {"sample_id": "C", **COUNTED, "reason": "hangs"},
    ]
    pq.write_table(pa.Table.from_pylist(counts), tmp_path / "counts.parquet")
    text = compare(tmp_path / "counters.csv", tmp_path / "counts.parquet", tmp_path / "rows.csv")
    assert "1 launches of 1 kernels compared; 1 without counters" in text
    assert "fp operations: 1 launches, median error 0.00%" in text
    assert "global load requests: 1 launches, median error 50.00%" in text
    assert "2x or more off 100.0%" in text
    (row,) = csv.DictReader((tmp_path / "rows.csv").read_text().splitlines())
    assert (row["device"], row["sample_id"], row["L2 sectors, counter"]) == ("H200", "A", "10.0")
