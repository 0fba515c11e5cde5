"""A driver whose Ray head dies says so and ends with a documented exit code; nothing is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from cluster.ray.head_watch import head_watched, joined_head_s
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import COMMIT_AT_ONCE, Collect, replay_file, write_kernels

NAMES = [f"k{number}" for number in range(12)]


def test_a_head_that_answers_is_not_lost() -> None:
    lost: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with head_watched(address, limit_s=1.0, lost=lost.append):
            time.sleep(4)
        assert lost == []
    with head_watched(address, limit_s=1.0, lost=lost.append):
        time.sleep(6)
    assert len(lost) == 1
    assert address in lost[0]


def test_a_raylet_that_ends_is_lost() -> None:
    lost: list[str] = []
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(["sleep", "60"]) as raylet,
    ):
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with head_watched(
            address, limit_s=1.0, raylet=psutil.Process(raylet.pid), lost=lost.append
        ):
            time.sleep(2)
            assert lost == []
            raylet.kill()  # it is not reaped, as Ray's raylet is not
            time.sleep(2)
    assert len(lost) == 1
    assert "raylet" in lost[0]


def test_the_limit_follows_that_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joined_head_s() == 45.0
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
    assert joined_head_s() == 450.0


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_the_death_of_our_own_head_ends_the_run(tmp_path: Path, name: str) -> None:
    slow = [{"kernel": name, "action": "slow", "seconds": 0.05} for name in NAMES]
    with tempfile.TemporaryDirectory(prefix="lp-", dir="/tmp") as rays:
        collect = Collect(
            write_kernels(tmp_path / "kernels", NAMES),
            tmp_path / "data",
            replay_file(tmp_path / "r.json", behaviours=slow),
            ("--cluster", *COMMIT_AT_ONCE),
            {"RAY_TMPDIR": rays},
        )
        running = collect.start()
        try:
            wait_for_rows(tmp_path / "data")
            begun = psutil.Process(running.pid).children(recursive=True)
            (head,) = [one for one in begun if one.name() == name]
            os.kill(head.pid, signal.SIGKILL)
            _, told = running.communicate(timeout=50)
        finally:
            running.kill()
        assert running.returncode == 3, told
        assert "the head of the Ray cluster" in told
        _, alive = psutil.wait_procs(begun, timeout=20)
        assert not alive
        assert verify(tmp_path / "data").problems == ()
        assert collect.run().returncode == 0


def wait_for_rows(folder: Path) -> None:
    """Wait until the dataset has rows."""
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        with contextlib.suppress(FileNotFoundError):
            if list(folder.glob("manifest-*.json")):
                return
        time.sleep(0.2)
    raise AssertionError("no rows")


def test_a_folder_for_ray_that_is_not_there_is_named(tmp_path: Path) -> None:
    collect = Collect(
        write_kernels(tmp_path / "kernels", ["k"]),
        tmp_path / "data",
        replay_file(tmp_path / "r.json"),
        ("--cluster",),
        {"RAY_TMPDIR": "/tmp/no"},
    )
    done = collect.run()
    assert done.returncode == 2, done.stderr
    assert "/tmp/no" in done.stderr
    assert "Traceback" not in done.stderr
