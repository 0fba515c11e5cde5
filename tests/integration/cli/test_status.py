"""``llmperf status`` beside running collectors, on both ledgers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.collecting import (
    Collect,
    llmperf_command,
    replay_file,
    run_llmperf,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf
from tests.support.servers.redis_server import RedisServer

NUM_KERNELS, SAMPLES = 10, 6
OPTIONS = (
    "--samples-per-kernel", str(SAMPLES),
    "--set", "timing.spin_up_ms=0",
    "--set", "ledger.claim_ahead=2",
    "--set", "store.commit_interval_s=0.1",
    "--set", "store.publish_interval_s=0.1",
)  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path / "redis")
    yield made
    made.kill()


def slow_run(folder: Path, *options: str) -> Collect:
    """A run of some ten seconds."""
    names = [f"k{n}" for n in range(NUM_KERNELS)]
    slow = [{"kernel": name, "action": "slow", "seconds": 0.015} for name in names]
    corpus = write_kernels(folder / "kernels", names)
    device = replay_file(folder / "r.json", behaviours=slow)
    return Collect(corpus, folder / "data", device, (*OPTIONS, *options))


def document(*arguments: object) -> Any:
    done = llmperf("status", *arguments, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def has_committed(*arguments: object) -> bool:
    done = llmperf("status", *arguments, "--json")
    if done.code:
        return False
    found = json.loads(done.out)
    runs = found.get("runs", [found])
    return any(one["tasks_done"] for run in runs for one in run["workers"])


@pytest.mark.slow
def test_status_of_a_folder_while_it_is_collected(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = slow_run(tmp_path)
    process = run.start()
    wait_until(lambda: has_committed(run.out))
    watching = subprocess.Popen(
        llmperf_command("status", run.out, "--watch"), stdout=subprocess.PIPE, text=True
    )
    state = document(run.out)
    (worker,) = state["workers"]
    assert (state["collecting"], state["ledger"], state["tasks"]) == (True, "sqlite", NUM_KERNELS)
    assert (worker["state"], worker["stale"], worker["pid"]) == ("collecting", False, process.pid)
    (one,) = state["classes"]
    assert (one["device_class"], one["first_task"], one["tasks"]) == ("replay", 0, NUM_KERNELS)
    assert one["done"] >= 1
    assert state["tasks_leased"] == one["leased"] >= 1
    assert state["ok_per_s"] > 0
    assert state["eta_s"] is None or state["eta_s"] > 0
    _, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    out, _ = watching.communicate(timeout=20)
    assert watching.returncode == 0
    assert "collecting now" in out
    assert f"{NUM_KERNELS} of {NUM_KERNELS} tasks" in out.splitlines()[-2]
    assert "ended" in out.splitlines()[-1]
    last = document(run.out)
    assert (last["collecting"], last["ok"], last["rows_from"]) == (
        False,
        NUM_KERNELS * SAMPLES,
        "manifest",
    )
    monkeypatch.setenv("LLMPERF_LEDGER", server.url)
    assert document(run.out)["ledger"] == "sqlite", "the server does not know this run"
    monkeypatch.setenv("LLMPERF_LEDGER", "sqlite")
    assert llmperf("status").code == 2
    file = tmp_path / "ledger"
    file.write_text(server.url)
    file.chmod(0o600)
    assert document("--ledger-file", file) == {"runs": []}


@pytest.mark.slow
def test_status_of_a_server_needs_no_folder(tmp_path: Path, server: RedisServer) -> None:
    assert document("--ledger", server.url) == {"runs": []}
    run = slow_run(tmp_path, "--ledger", server.url)
    processes = [run.start(), run.start()]
    wait_until(lambda: has_committed("--ledger", server.url))
    (state,) = document("--ledger", server.url)["runs"]
    assert (state["directory"], state["tasks"]) == (str(run.out), NUM_KERNELS)
    assert (state["collecting"], state["rows_from"]) == (True, "reports")
    with_folder = document(run.out, "--ledger", server.url)
    assert (with_folder["rows_from"], with_folder["plan_hash"]) == ("manifest", state["plan_hash"])
    assert with_folder["workers"]
    for process in processes:
        _, told = process.communicate(timeout=100)
        assert process.returncode == 0, told
    shutil.rmtree(run.out)
    done = run_llmperf("status", "--ledger", server.url, "--watch")
    assert done.returncode == 0
    assert f"{NUM_KERNELS} of {NUM_KERNELS} tasks" in done.stdout
    assert "complete" in done.stdout
    (state,) = document("--ledger", server.url)["runs"]
    assert state["ok"] == NUM_KERNELS * SAMPLES
    assert {one["state"] for one in state["workers"]} == {"ended"}
    server.kill()
    server.start()
    assert document("--ledger", server.url) == {"runs": []}


@pytest.mark.slow
def test_a_killed_collector_grows_stale_and_watching_ends_by_a_signal(
    tmp_path: Path, server: RedisServer
) -> None:
    run = slow_run(tmp_path, "--ledger", server.url)
    process = run.start()
    wait_until(lambda: has_committed("--ledger", server.url))
    process.kill()
    process.communicate()
    for key in server.client().scan_iter("llmperf:*:board"):  # 20 s later
        ((worker, text),) = server.client().hgetall(key).items()
        at_us, _, told = text.partition(b" ")
        server.client().hset(key, worker, b"%d %s" % (int(at_us) - 20_000_000, told))
    done = run_llmperf("status", "--ledger", server.url)
    assert "STALE" in done.stdout
    assert "not running" in done.stdout
    watching = subprocess.Popen(
        llmperf_command("status", "--ledger", server.url, "--watch"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert "STALE" in watching.stdout.readline() + watching.stdout.readline()
    os.kill(watching.pid, signal.SIGINT)
    _, err = watching.communicate(timeout=20)
    assert watching.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ((), 2, "name a dataset folder or a ledger"),
        (("--ledger", "sqlite"), 2, "must be redis://HOST:PORT"),
        (("--ledger", "redis://127.0.0.1:1/0"), 3, "the Redis server cannot be reached"),
        (("--ledger", "redis://127.0.0.1:1/0", "--watch", "--json"), 2, "cannot be combined"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], code: int, told: str) -> None:
    done = llmperf("status", *arguments)
    assert done.code == code
    assert told in done.err
