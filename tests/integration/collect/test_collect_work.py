"""Collections count what their launches execute, beside the timing; a kernel that cannot be counted is timed all the same.

Most run on the replay device: a pipeline as a GPU's, whose launches are counted on this host's CPU device.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from llmperf_common.features.work import WORK_NAMES
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import (
    Collect,
    events,
    replay_file,
    run_llmperf,
    wait_until,
    write_kernels,
)
from tests.support.factories.earlier_dataset import NUM_ROWS, OPTIONS, unpack
from workers.discovery.find import NoDevice, choose
from workers.execution.helper_devices import NO_CPU_DEVICE

SMALL = (
    "--samples-per-kernel", "4", "--set", "timing.spin_up_ms=0", "--set", "plan.strategies=['simple']",
    "--set", "plan.max_work_items=16384", "--set", "store.commit_interval_s=0",
    "--set", "store.publish_interval_s=0.05",
)  # fmt: skip
ENDLESS = "__kernel void endless(__global float *a) { while (a[0] < 2.0f) a[1] += 1.0f; }"
ENDS_ITS_PROCESS = """
__kernel void ends(__global float *a, __local float *b) {
    int i = get_local_id(0);
    b[i] = a[get_global_id(0)];
    for (int k = 0; k < 1 << 30; k++) { barrier(CLK_LOCAL_MEM_FENCE); b[i] += b[i ^ 1]; }
    a[get_global_id(0)] = b[i];
}
"""


@pytest.fixture(autouse=True, scope="module")
def cpu_device() -> None:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())


pytestmark = pytest.mark.opencl


def rows_of(data: Path) -> dict[str, list[dict[str, object]]]:
    dataset = open_dataset(data)
    names = {
        one["kernel_id"]: one["name"] for one in dataset.kernels(["kernel_id", "name"]).to_pylist()
    }
    found: dict[str, list[dict[str, object]]] = {}
    columns = ["sample_id", "kernel_id", "status", "global_size", "work", "work_reason", "args"]
    for row in dataset.samples(columns).to_pylist():
        found.setdefault(names[row["kernel_id"]], []).append(row)
    return found


def test_a_collection_counts_beside_the_timing(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0", "k1"])
    (corpus / "endless.cl").write_text(ENDLESS)
    (corpus / "ends.cl").write_text(ENDS_ITS_PROCESS)
    device = replay_file(tmp_path / "r.json", counts_work=True)
    data = tmp_path / "data"
    done = Collect(corpus, data, device, (*SMALL, "--set", "limits.work_timeout_s=15")).run()
    assert done.returncode == 0, done.stderr
    assert verify(data).problems == ()
    found = rows_of(data)
    assert {name: [row["status"] for row in rows] for name, rows in found.items()} == {
        name: ["ok"] * 4 for name in ("k0", "k1", "endless", "ends")
    }
    for row in (*found["k0"], *found["k1"]):
        assert row["work_reason"] is None
        (num_items,) = row["global_size"]
        work = row["work"]
        assert list(work) == list(WORK_NAMES)
        n = min(num_items, row["args"][2]["value"])  # if (i < n) b[i] = a[i] * f
        counts = [
            work[name] for name in ("active_items", "global_stores", "fp32_ops", "global_loads")
        ]
        assert counts == pytest.approx([n] * 4, rel=0.02)
    for name in ("endless", "ends"):
        assert [row["work"] for row in found[name]] == [None] * 4
        assert all(row["work_reason"] for row in found[name])


@pytest.mark.slow
def test_a_cpu_device_counts_what_it_times(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0"])
    done = Collect(corpus, tmp_path / "data", "cpu", SMALL).run()
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "data")["k0"]
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert all(row["work"]["global_stores"] > 0 for row in rows)


@pytest.mark.slow
def test_rows_with_and_without_work_are_mixed_by_a_resumed_run(tmp_path: Path) -> None:
    """Whether work is counted is no part of the plan: neither tasks nor samples change their ids."""
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(6)])
    device = replay_file(
        tmp_path / "r.json",
        counts_work=True,
        behaviours=[{"kernel": "*", "action": "slow", "seconds": 0.01}],
    )
    data = tmp_path / "data"
    process = Collect(corpus, data, device, (*SMALL, "--set", "limits.work=off")).start()
    wait_until(lambda: len(list((data / "kernels").glob("*.parquet"))) >= 1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    before = {row["sample_id"] for rows in rows_of(data).values() for row in rows}
    assert 0 < len(before) < 24
    done = Collect(corpus, data, device, SMALL).run()
    assert done.returncode == 0, done.stderr
    assert verify(data).problems == ()
    after = [row for rows in rows_of(data).values() for row in rows]
    assert len({row["sample_id"] for row in after}) == len(after) == 24
    for row in after:
        assert (row["work"] is None) == (row["sample_id"] in before)
        assert row["work_reason"] is None, "it was not tried, or it was counted"
    untouched = Collect(corpus, tmp_path / "off", device, (*SMALL, "--set", "limits.work=off"))
    assert untouched.run().returncode == 0
    ids = {row["sample_id"] for rows in rows_of(tmp_path / "off").values() for row in rows}
    assert ids == {row["sample_id"] for row in after}


def test_without_a_cpu_device_the_columns_are_null_and_say_so(
    tmp_path: Path, no_device: dict[str, str]
) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0"])
    device = replay_file(tmp_path / "r.json", counts_work=True)
    done = Collect(corpus, tmp_path / "data", device, SMALL, environment=no_device).run()
    assert done.returncode == 0, done.stderr
    (rows,) = rows_of(tmp_path / "data").values()
    assert [(row["status"], row["work"], row["work_reason"]) for row in rows] == [
        ("ok", None, NO_CPU_DEVICE)
    ] * 4
    assert any(NO_CPU_DEVICE in str(one) for one in events(tmp_path / "data")), done.stderr


@pytest.mark.slow
def test_a_run_of_harness_version_1_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its times mean something else: it is read as before, and nothing of today is mixed into it."""
    data = unpack(tmp_path)
    before = open_dataset(data).samples()
    device = replay_file(tmp_path / "r.json", counts_work=True)
    done = Collect(tmp_path / "kernels", data, device, OPTIONS).run()
    assert done.returncode == 2, done.stderr
    assert "its times have version 1 of the measuring code" in done.stderr
    assert "this LLMPerf has version 2" in done.stderr
    assert "choose another --out" in done.stderr
    assert open_dataset(data).samples().equals(before)
    assert run_llmperf("dataset", "compact", data).returncode == 0
    assert open_dataset(data).samples().column("work").null_count == NUM_ROWS
    assert verify(data).problems == ()


IDLE = """
__kernel void idle(__global float *a, const int n) {
    int i = get_global_id(0);
    if (i > n + 100000000) a[i] = 1.0f;
}
"""


def test_a_kernel_that_does_nothing_is_marked(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0"])
    (corpus / "idle.cl").write_text(IDLE)
    device = replay_file(tmp_path / "r.json", counts_work=True)
    done = Collect(corpus, tmp_path / "data", device, SMALL).run()
    assert done.returncode == 0, done.stderr
    kernels = open_dataset(tmp_path / "data").kernels(["name", "activity"]).to_pylist()
    assert {one["name"]: one["activity"] for one in kernels} == {"k0": "active", "idle": "nothing"}
    told = run_llmperf("dataset", "stats", tmp_path / "data", "--json")
    assert '"by_activity"' in told.stdout
