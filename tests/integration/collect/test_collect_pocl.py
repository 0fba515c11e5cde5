"""The whole collect path on a real CPU OpenCL device: honest rows, and kernels that do their worst.

Runs on whatever ``--device cpu`` finds.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import (
    KERNELS,
    Collect,
    descendants,
    is_running,
    kill,
    wait_until,
)
from tests.support.in_process import llmperf
from workers.discovery.find import NoDevice, choose

pytestmark = [pytest.mark.opencl, pytest.mark.timeout(400)]

SMALL = (
    "--samples-per-kernel", "4",
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.sample_budget_ms=20",
    "--set", "plan.max_work_items=4096",
    "--set", "plan.max_groups_per_unit=21",
    "--set", "store.commit_interval_s=0.5",
    "--set", "store.publish_interval_s=0.5",
    "--set", "limits.config_timeout_s=4",
)  # fmt: skip

ADVERSARIAL = {
    "endless": """__kernel void endless(__global int *x) {
        volatile int go = 1; while (go) x[get_global_id(0)] += 1; }""",
    "far_write": "__kernel void far_write(__global int *x) { x[get_global_id(0) + (1L << 40)] = 1; }",
    "null_read": """__kernel void null_read(__global int *x, const int n) {
        volatile __global int *p = (volatile __global int *)(ulong)(n & 0x40000000); x[0] = *p; }""",
    "heap": """__kernel void heap(__global long *x) {
        if (get_global_id(0) == 0) for (int i = 1; i < 9; i++) x[-i] = 0x4141414141414141L; }""",
    "syntax": "__kernel void syntax(__global int *x) { x[0] = not_declared_anywhere(3; }",
    "image": "__kernel void image(read_only image2d_t t, __global float *x) { x[0] = 1; }",
    "pair": """typedef struct { int a; float b; } Pair;
        __kernel void pair(Pair s, __global float *x) { x[0] = s.b; }""",
    "flood": """__kernel void flood(__global int *x) {
        for (int i = 0; i < 20; i++) printf("{\\"ok\\": %d}\\n\\0ConfigFinished\\n{}", i);
        x[get_global_id(0)] = 1; }""",
    "good": "__kernel void good(__global int *x) { x[get_global_id(0)] = 7; }",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def cpu_device() -> None:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(
            f"no CPU OpenCL device, so NOTHING of the real path is tested: {found.message()}"
        )


@dataclass(frozen=True)
class Run:
    """A finished collect and its tables."""

    pid: int
    out: Path
    err: str
    kernels: dict[str, dict[str, Any]]
    samples: dict[str, list[dict[str, Any]]]
    devices: list[dict[str, Any]]

    @property
    def platform(self) -> str:
        """The OpenCL platform of the run's only device."""
        (device,) = self.devices
        return str(device["platform"])

    def statuses(self, name: str) -> Counter[str]:
        """Count the rows of one kernel by status."""
        return Counter(row["status"] for row in self.samples[name])

    def details(self, name: str, status: str) -> list[str]:
        """What is said of the failed rows of one kernel."""
        return [row["failure_detail"] for row in self.samples[name] if row["status"] == status]


def run(corpus: Path, out: Path, options: tuple[str, ...] = SMALL) -> Run:
    process = Collect(corpus, out, "cpu", options).start()
    try:
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, err
    dataset = open_dataset(out)
    kernels = {row["kernel_id"]: row for row in dataset.kernels().to_pylist()}
    samples: dict[str, list[dict[str, Any]]] = {row["name"]: [] for row in kernels.values()}
    for row in dataset.samples().to_pylist():
        samples[kernels[row["kernel_id"]]["name"]].append(row)
    return Run(
        pid=process.pid,
        out=out,
        err=err,
        kernels={row["name"]: row for row in kernels.values()},
        samples=samples,
        devices=dataset.devices().to_pylist(),
    )


def children_of(parent: int) -> list[psutil.Process]:
    """Return the children that a collector has started, dead parent or not: each got its pid as an argument."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if str(parent) in line and any(part.startswith("workers.") for part in line):
            found.append(process)
    return found


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("honest")
    (folder / "kernels").mkdir()
    for name in ("saxpy", "matmul_tiled", "reduce_sum"):
        source = (KERNELS / f"{name}.cl").read_text(encoding="utf-8")
        (folder / "kernels" / f"{name}.cl").write_text(source, encoding="utf-8")
    # A busy machine compiles for seconds inside a launch; nothing here may be taken for a hang.
    return run(folder / "kernels", folder / "data", (*SMALL, "--set", "limits.config_timeout_s=30"))


@pytest.fixture(scope="module")
def adversarial(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("adversarial")
    (folder / "kernels").mkdir()
    for name, source in ADVERSARIAL.items():
        (folder / "kernels" / f"{name}.cl").write_text(source, encoding="utf-8")
    return run(folder / "kernels", folder / "data")


# ------------------------------------------------------------------ honest kernels


def test_every_config_is_ok_and_there_once(honest: Run) -> None:
    assert {name: honest.statuses(name) for name in honest.samples} == {
        name: {"ok": 4} for name in ("saxpy", "matmul_tiled", "reduce_sum")
    }
    assert "planned 12 = ok 12 + failed 0 + pending 0" in honest.err


@pytest.mark.parametrize("which", ["honest", pytest.param("adversarial", marks=pytest.mark.slow)])
def test_the_dataset_verifies_clean(which: str, request: pytest.FixtureRequest) -> None:
    done = llmperf("dataset", "verify", request.getfixturevalue(which).out)
    assert done.code == 0, done.out


def test_times_are_sane(honest: Run) -> None:
    for row in (row for rows in honest.samples.values() for row in rows):
        readings = row["time_ns"]
        assert len(readings) >= 5 or row["stop_reason"] == "long_launch"
        assert row["stop_reason"] is not None
        assert all(100 < reading < 10e9 for reading in readings)
        assert row["min_ns"] == min(readings) <= row["median_ns"] <= max(readings)
        assert row["first_ns"] > 0
        assert row["cold_ns"], "launches with a flushed cache are timed too"
        assert row["launches_per_reading"] >= 1


def test_payloads_are_checked_on_the_smallest_the_largest_and_another_config(honest: Run) -> None:
    for name, rows in honest.samples.items():

        def groups(row: dict[str, Any]) -> float:
            sizes = zip(row["global_size"], row["local_size"], strict=True)
            product = 1.0
            for items, group in sizes:
                product *= items / group
            return product

        ordered = sorted(rows, key=groups)
        checked = [row for row in rows if row["checks"]["writes_output"] is not None]
        assert len(checked) == 3, name
        assert {groups(row) for row in checked} >= {groups(ordered[0]), groups(ordered[-1])}
        assert all(row["checks"]["writes_output"] for row in checked), name
        assert all(row["checks"]["deterministic"] for row in checked), name
        assert all(row["checks"]["input_sensitive"] for row in checked), name


def test_the_device_is_recorded_with_its_peaks(honest: Run) -> None:
    (device,) = honest.devices
    peaks = (
        "peak_dram_gbps",
        "peak_l2_gbps",
        "peak_fp32_gflops",
        "launch_floor_ns",
        "timer_step_ns",
    )
    assert all(device[name] > 0 for name in peaks), device
    assert device["compute_units"] >= 1
    assert {row["device_id"] for rows in honest.samples.values() for row in rows} == {
        device["device_id"]
    }


def test_the_build_is_recorded(honest: Run) -> None:
    for row in honest.kernels.values():
        assert row["build"]["seconds"] > 0
        assert len(row["build"]["binary_sha256"]) == 64


# ------------------------------------------------------------------ kernels that do their worst


@pytest.mark.slow
def test_an_endless_loop_is_a_hang_and_then_quarantined(adversarial: Run) -> None:
    assert adversarial.statuses("endless") == {"hang": 1, "quarantined": 3}
    assert "limits.config_timeout_s" in adversarial.details("endless", "hang")[0]


@pytest.mark.parametrize("name", ["far_write", "null_read"])
@pytest.mark.slow
def test_a_wild_pointer_is_a_device_fault(adversarial: Run, name: str) -> None:
    assert adversarial.statuses(name) == {"device_fault": 2, "quarantined": 2}
    assert "SIGSEGV" in adversarial.details(name, "device_fault")[0]


@pytest.mark.slow
def test_a_kernel_that_damages_the_heap_has_failed(adversarial: Run) -> None:
    """When the damage shows is up to the allocator: with PoCL's at the exit at the latest.

    Intel's runtime aligns buffers to pages in a pool of its own. What lies before one may be unused there, so
    that nothing ever notices; then only the count of rows can be promised.
    """
    statuses = adversarial.statuses("heap")
    assert set(statuses) <= {"ok", "device_fault", "quarantined"}
    assert statuses.total() == 4
    if adversarial.platform != "Intel(R) OpenCL":
        assert statuses["device_fault"] >= 1


@pytest.mark.slow
def test_a_syntax_error_is_one_row_with_the_compilers_log(adversarial: Run) -> None:
    assert adversarial.statuses("syntax") == {"build_error": 1}
    assert "not_declared_anywhere" in adversarial.details("syntax", "build_error")[0]
    assert adversarial.samples["syntax"][0]["global_size"] == []


@pytest.mark.parametrize(("name", "word"), [("image", "image"), ("pair", "structure")])
@pytest.mark.slow
def test_an_argument_we_cannot_fill_is_unsupported(adversarial: Run, name: str, word: str) -> None:
    assert adversarial.statuses(name) == {"unsupported": 1}
    assert word in adversarial.details(name, "unsupported")[0]


@pytest.mark.slow
def test_a_flood_of_printf_does_not_reach_the_verdict(adversarial: Run) -> None:
    statuses = adversarial.statuses("flood")
    if adversarial.platform == "Intel(R) OpenCL":
        # This runtime counts the printing as device time: long launches are rightly over budget, and nothing else.
        assert set(statuses) <= {"ok", "over_time_budget"}
        assert statuses["ok"] >= 1
        assert statuses.total() == 4
    else:
        assert statuses == {"ok": 4}


@pytest.mark.slow
def test_failed_rows_have_no_times(adversarial: Run) -> None:
    failed = [r for rows in adversarial.samples.values() for r in rows if r["status"] != "ok"]
    assert failed
    assert all(row["time_ns"] is None and row["median_ns"] is None for row in failed)


@pytest.mark.slow
def test_a_good_kernel_among_them_is_unharmed(adversarial: Run) -> None:
    assert adversarial.statuses("good") == {"ok": 4}


@pytest.mark.parametrize("which", ["honest", pytest.param("adversarial", marks=pytest.mark.slow)])
def test_no_process_is_left(which: str, request: pytest.FixtureRequest) -> None:
    parent = request.getfixturevalue(which).pid
    assert children_of(parent) == []


def test_no_child_outlives_a_killed_parent(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "e.cl").write_text(ADVERSARIAL["endless"], encoding="utf-8")
    patient = (*SMALL, "--set", "limits.config_timeout_s=60")
    process = Collect(tmp_path / "kernels", tmp_path / "data", "cpu", patient).start()
    wait_until(lambda: is_busy(process), timeout_s=60)
    children = descendants(process.pid)
    kill(process.pid)
    process.communicate(timeout=10)
    wait_until(lambda: not any(is_running(pid) for pid in children), timeout_s=10)
    assert children_of(process.pid) == []


def is_busy(process: subprocess.Popen[str]) -> bool:
    """Whether the endless kernel is at work: its process has burnt a second of CPU since the compile."""
    assert process.poll() is None, "it must not end by itself"
    for child in children_of(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # a child of the start may end meanwhile
            if "workers.measure.run_child" in child.cmdline() and child.cpu_times().user > 2:
                return True
    return False
