"""The command takes the GPU it times on, and gives way to its owner with exit code 4.

On the replay device, said to need an owner: what is locked, by whom and when it ends is real.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmperf.exits import Exit
from tests.integration.conftest import FAST
from tests.support.collecting import replay_file, wait_until, write_kernels
from tests.support.in_process import assert_refused, llmperf
from workers.device.nvidia.host_lock import LOCK_FOLDER_VARIABLE
from workers.discovery import ownership

OWNED = """
import sys
from workers.discovery import ownership
ownership.needs_owner = lambda device, ref: True
from llmperf.cli.main import run
run()
"""


@pytest.fixture(autouse=True)
def lock_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setenv(LOCK_FOLDER_VARIABLE, str(folder))
    monkeypatch.setattr("workers.device.nvidia.gpu_lock.PATIENCE_S", 0.2)
    monkeypatch.setattr(ownership, "needs_owner", lambda device, ref: True)
    return folder


def collect(corpus: Path, device: str, out: Path) -> tuple[str, ...]:
    options = ("collect", "--corpus", corpus, "--device", device, "--out", out, *FAST)
    return tuple(map(str, options))


@pytest.mark.slow
def test_a_second_collector_of_a_gpu_is_refused(tmp_path: Path, lock_dir: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", [f"k{n}" for n in range(6)])
    slow = replay_file(tmp_path / "slow.json", speed=200_000)
    first = subprocess.Popen(
        [sys.executable, "-c", OWNED, *collect(corpus, slow, tmp_path / "first")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: any(path.stat().st_size for path in lock_dir.iterdir()))
        out = tmp_path / "second"
        refused = llmperf(*collect(corpus, slow, out))
        assert_refused(
            refused, Exit.NO_DEVICE, "Replay device", f"pid {first.pid}", str(tmp_path / "first"), "--device"
        )  # fmt: skip
        assert not out.exists(), "who is refused leaves nothing"
        assert first.poll() is None, "the first collector was still at work"
        other = replay_file(tmp_path / "other.json", device={"device_uuid": "replay-1"})
        assert llmperf(*collect(corpus, other, out)).code == 0, "another GPU is free"
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    quick = replay_file(tmp_path / "quick.json")
    assert llmperf(*collect(corpus, quick, tmp_path / "third")).code == 0, "the dead hold nothing"


@pytest.mark.slow
def test_the_gpu_is_free_after_a_run(tmp_path: Path, lock_dir: Path) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["k"])
    device = replay_file(tmp_path / "r.json")
    for _ in range(2):
        done = llmperf(*collect(corpus, device, tmp_path / "data"))
        assert done.code == 0, done.err
    (path,) = lock_dir.iterdir()
    assert path.name == "llmperf-gpu-replay-0.lock"
    assert path.read_bytes() == b""
