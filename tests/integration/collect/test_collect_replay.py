"""The whole collect path on the replay device: real processes, real store, scripted misbehaviour."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.collecting.collectors.slicing import was_launched
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import (
    Collect,
    descendants,
    is_running,
    kill,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf

FAST = (
    "--samples-per-kernel", "6",
    "--set", "timing.spin_up_ms=0",
    "--set", "store.commit_interval_s=0.1",
    "--set", "store.publish_interval_s=0.1",
)  # fmt: skip


def statuses(out: Path) -> dict[str, Counter[str]]:
    """Kernel name to status counts."""
    dataset = open_dataset(out)
    names = {
        row["kernel_id"]: row["name"] for row in dataset.kernels(["kernel_id", "name"]).to_pylist()
    }
    counts: dict[str, Counter[str]] = {name: Counter() for name in names.values()}
    for row in dataset.samples(["kernel_id", "status"]).to_pylist():
        counts[names[row["kernel_id"]]][row["status"]] += 1
    return counts


def assert_clean(out: Path) -> None:
    """The command itself must find nothing wrong."""
    done = llmperf("dataset", "verify", out)
    assert done.code == 0, done.out + done.err


@pytest.mark.slow
def test_a_quiet_run_times_every_config_once(tmp_path: Path) -> None:
    out = tmp_path / "data"
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(5)])
    done = Collect(corpus, out, replay_file(tmp_path / "r.json"), FAST).run()
    assert done.returncode == 0, done.stderr
    assert "planned 30 = ok 30 + failed 0 + pending 0" in done.stderr
    assert_clean(out)
    assert sorted(p.name for p in out.glob("*.json"))[-1] == "run.json"
    assert (out / "README.md").exists()
    again = Collect(corpus, out, replay_file(tmp_path / "r.json"), FAST).run()
    assert again.returncode == 0, again.stderr
    assert "planned 30 = ok 30 + failed 0 + pending 0" in again.stderr


@pytest.mark.parametrize(
    ("noise", "factors", "words"),
    [
        pytest.param(0.005, [1.0] * 8, [], marks=pytest.mark.slow),
        pytest.param(0.2, [1.0] * 8, ["launches of 0.1 to 5 ms scatter by more than"], marks=pytest.mark.slow),
        pytest.param(0.005, [1.0, 1.5] * 4, ["a fixed sentinel kernel took 50% longer at times (p90 / p10 of 8"], marks=pytest.mark.slow),
    ],
    ids=["quiet", "noisy", "drifting"],
)  # fmt: skip
def test_a_noisy_machine_is_warned_about_at_the_end_and_in_the_report(
    tmp_path: Path, noise: float, factors: list[float], words: list[str]
) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(8)])
    model = {"floor_ns": 2e5, "ns_per_work_item": 0.0, "noise": noise}
    device = replay_file(tmp_path / "r.json", model=model, sentinel_factors=factors)
    every_task = ("--set", "timing.sentinel_every_tasks=1")
    done = Collect(corpus, tmp_path / "data", device, FAST + every_task).run_here()
    assert done.returncode == 0, done.stderr
    report = llmperf("report", tmp_path / "data", "--out", tmp_path / "r.html")
    assert report.code == 0, report.err
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    for text in (done.stderr, page):
        assert ("the machine was not quiet" in text) == bool(words)
        assert all(word in text for word in words)


@pytest.mark.slow
def test_a_task_begins_no_config_beyond_its_budget(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0", "slow"])
    slow = [{"kernel": "slow", "action": "slow", "seconds": 0.02}]
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    budget = ("--set", "limits.task_budget_s=0.12")
    done = Collect(corpus, tmp_path / "data", device, FAST + budget).run_here()
    assert done.returncode == 0, done.stderr
    counts = statuses(tmp_path / "data")
    assert counts["k0"] == {"ok": 6}
    assert set(counts["slow"]) == {"ok", "over_time_budget"}
    assert counts["slow"].total() == 6
    rows = open_dataset(tmp_path / "data").samples(["status", "failure_detail"]).to_pylist()
    details = {row["failure_detail"] for row in rows if row["status"] == "over_time_budget"}
    assert details == {"launch: not reached within limits.task_budget_s"}
    assert [was_launched(row) for row in rows] == [row["status"] == "ok" for row in rows]
    censored = open_dataset(tmp_path / "data").samples(["status", "censor_reason"]).to_pylist()
    assert {(row["status"], row["censor_reason"]) for row in censored} == {
        ("ok", None),
        ("over_time_budget", "task_budget"),
    }
    kernels = open_dataset(tmp_path / "data").kernels(["task_budget_s", "one_processor"])
    assert kernels.to_pylist() == [{"task_budget_s": 0.12, "one_processor": False}] * 2
    assert_clean(tmp_path / "data")


def test_a_censored_row_says_why_in_a_column(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["hangs", "lengthy"])
    device = replay_file(
        tmp_path / "r.json",
        model={"floor_ns": 1e5, "ns_per_work_item": 3e3},
        behaviours=[{"kernel": "hangs", "action": "hang"}],
    )
    options = ("--set", "limits.config_timeout_s=1", "--set", "timing.max_launch_ms=2")
    done = Collect(corpus, tmp_path / "data", device, FAST + options).run()
    assert done.returncode == 0, done.stderr
    rows = open_dataset(tmp_path / "data").samples(["status", "failure_detail", "censor_reason"])
    found = {(row["status"], row["censor_reason"]) for row in rows.to_pylist()}
    assert found >= {
        ("hang", "hung"),
        ("quarantined", "larger_than_hung"),
        ("over_time_budget", "too_long"),
        ("over_time_budget", "larger_than_too_long"),
    }
    assert_clean(tmp_path / "data")


@pytest.mark.slow
def test_a_stall_of_the_host_is_not_charged_to_the_task(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["stalled"])
    stall = [{"kernel": "stalled", "action": "slow", "seconds": 0.3, "at_config": 0}]
    device = replay_file(tmp_path / "r.json", behaviours=stall)
    budget = ("--set", "limits.task_budget_s=0.2")
    done = Collect(corpus, tmp_path / "data", device, FAST + budget).run_here()
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "data")["stalled"] == {"ok": 6}


@pytest.mark.slow
def test_a_fault_that_used_up_the_budget_ends_the_task(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["faults"])
    behaviours = [
        {"kernel": "faults", "action": "slow", "seconds": 0.5},
        {"kernel": "faults", "action": "fault", "at_config": 0},
    ]
    device = replay_file(tmp_path / "r.json", behaviours=behaviours)
    budget = ("--set", "limits.task_budget_s=0.04")
    done = Collect(corpus, tmp_path / "data", device, FAST + budget).run_here()
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path / "data")["faults"] == {"device_fault": 1, "over_time_budget": 5}
    assert_clean(tmp_path / "data")


def test_every_misbehaviour_costs_one_kernel_and_gets_its_code(tmp_path: Path) -> None:
    names = [
        "good",
        "faults",
        "hangs",
        "exits",
        "late",
        "refused",
        "badbuild",
        "crashes",
        "stuck",
        "big",
    ]
    corpus = write_kernels(tmp_path / "kernels", names)
    device = replay_file(
        tmp_path / "r.json",
        behaviours=[
            {"kernel": "faults", "action": "fault", "at_config": 1},
            {"kernel": "hangs", "action": "hang"},
            {"kernel": "exits", "action": "exit"},
            {"kernel": "late", "action": "exit_after_result", "at_config": 2},
            {"kernel": "late", "action": "slow", "seconds": 0.01},
            {"kernel": "refused", "action": "launch_error"},
            {"kernel": "badbuild", "action": "build_error"},
            {"kernel": "crashes", "action": "crash_compile"},
            {"kernel": "stuck", "action": "hang_compile"},
            {"kernel": "big", "action": "out_of_memory", "at_config": 0},
        ],
    )
    limits = ("--set", "limits.config_timeout_s=1", "--set", "limits.build_timeout_s=2")
    done = Collect(corpus, tmp_path / "data", device, FAST + limits).run()
    assert done.returncode == 0, done.stderr
    counts = statuses(tmp_path / "data")
    assert counts["good"] == {"ok": 6}
    assert counts["hangs"] == {"hang": 1, "quarantined": 5}
    assert counts["exits"] == {"device_fault": 2, "quarantined": 4}
    assert counts["refused"] == {"launch_error": 6}
    assert counts["badbuild"] == {"build_error": 1}
    assert counts["crashes"] == {"compiler_crash": 1}
    assert counts["stuck"] == {"build_timeout": 1}
    assert counts["big"] == {"out_of_memory": 1, "ok": 5}
    assert counts["faults"]["device_fault"] >= 1
    assert counts["late"]["device_fault"] >= 1, "a child that dies after its result has failed too"
    assert counts["faults"].total() == counts["late"].total() == 6
    assert_clean(tmp_path / "data")


def test_max_failures_ends_with_5_and_keeps_everything(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(6)])
    device = replay_file(
        tmp_path / "r.json", behaviours=[{"kernel": "*", "action": "launch_error"}]
    )
    done = Collect(corpus, tmp_path / "data", device, (*FAST, "--max-failures", "7")).run_here()
    assert done.returncode == 5, done.stderr
    assert_clean(tmp_path / "data")


def test_another_plan_on_the_same_folder_is_a_usage_error(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0"])
    device = replay_file(tmp_path / "r.json")
    assert Collect(corpus, tmp_path / "data", device, FAST).run_here().returncode == 0
    done = Collect(corpus, tmp_path / "data", device, (*FAST, "--seed", "9")).run_here()
    assert done.returncode == 2
    assert "plan.seed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_finishes_the_task_in_hand_and_the_rest_is_resumed(
    tmp_path: Path, number: signal.Signals
) -> None:
    """So does a terminal that closes (SIGHUP), which ended the run at once."""
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(8)])
    device = replay_file(
        tmp_path / "r.json", behaviours=[{"kernel": "*", "action": "slow", "seconds": 0.01}]
    )
    command = Collect(corpus, tmp_path / "data", device, FAST)
    process = command.start()
    wait_until(lambda: any((tmp_path / "data").glob("manifest-*.json")))
    wait_until(lambda: len(list((tmp_path / "data" / "kernels").glob("*.parquet"))) >= 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "resume" in err
    assert "Traceback" not in err
    assert_clean(tmp_path / "data")
    before = open_dataset(tmp_path / "data").samples(["sample_id", "time_ns"]).to_pylist()
    assert 0 < len(before) < 48
    done = command.run()
    assert done.returncode == 0, done.stderr
    after = {
        r["sample_id"]: r["time_ns"] for r in open_dataset(tmp_path / "data").samples().to_pylist()
    }
    assert len(after) == 48
    assert all(after[row["sample_id"]] == row["time_ns"] for row in before)


@pytest.mark.slow
def test_no_child_outlives_a_killed_parent(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(4)])
    device = replay_file(tmp_path / "r.json", behaviours=[{"kernel": "*", "action": "hang"}])
    process = Collect(corpus, tmp_path / "data", device, FAST).start()
    wait_until(lambda: len(descendants(process.pid)) >= 2)
    children = descendants(process.pid)
    kill(process.pid)
    process.communicate(timeout=10)
    wait_until(lambda: not any(is_running(pid) for pid in children), timeout_s=10)


def test_two_collectors_share_one_folder(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(16)])
    device = replay_file(
        tmp_path / "r.json", behaviours=[{"kernel": "*", "action": "slow", "seconds": 0.01}]
    )
    command = Collect(corpus, tmp_path / "data", device, FAST)
    both = [command.start(), command.start()]
    outputs = [process.communicate(timeout=100) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    rows = open_dataset(tmp_path / "data").samples(["sample_id", "worker_id"]).to_pylist()
    assert len({row["sample_id"] for row in rows}) == len(rows) == 96
    assert len({row["worker_id"] for row in rows}) == 2, "both must have worked"
    assert_clean(tmp_path / "data")


def command_line(pid: int) -> str:
    """Return the words of a process; none once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.parametrize(
    "where", [pytest.param("compile_child", marks=pytest.mark.slow), "run_child"]
)
def test_a_killed_child_costs_no_row(tmp_path: Path, where: str) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(6)])
    device = replay_file(
        tmp_path / "r.json", behaviours=[{"kernel": "*", "action": "slow", "seconds": 0.01}]
    )
    process = Collect(corpus, tmp_path / "data", device, FAST).start()

    def victims() -> list[int]:
        return [pid for pid in descendants(process.pid) if where in command_line(pid)]

    wait_until(lambda: bool(victims()))
    for pid in victims():
        kill(pid)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert sum(statuses(tmp_path / "data").values(), Counter()) == {"ok": 36}
    assert_clean(tmp_path / "data")


def test_a_wiped_ledger_is_rebuilt_from_the_shards(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{i}" for i in range(4)])
    device = replay_file(tmp_path / "r.json")
    command = Collect(corpus, tmp_path / "data", device, FAST)
    assert command.run_here().returncode == 0
    before = open_dataset(tmp_path / "data").samples().to_pylist()
    for path in (tmp_path / "data" / "ledger").iterdir():
        path.unlink()
    done = command.run_here()
    assert done.returncode == 0, done.stderr
    assert open_dataset(tmp_path / "data").samples().to_pylist() == before
    assert len(os.listdir(tmp_path / "data" / "epochs")) == 2


@pytest.mark.slow
def test_status_tells_how_far_a_run_is(tmp_path: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k0", "k1"])
    done = Collect(corpus, tmp_path / "data", replay_file(tmp_path / "r.json"), FAST).run_here()
    assert done.returncode == 0, done.stderr
    state = json.loads(llmperf("status", tmp_path / "data", "--json").out)
    assert (state["tasks"], state["tasks_done"], state["ok"]) == (2, 2, 12)
    assert state["collecting"] is False
