"""An upgrade of LLMPerf's files during a run ends the run, and loses and mixes nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llmperf.exits import Exit
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import (
    REPOSITORY,
    SAMPLES_A_KERNEL,
    Collect,
    descendants,
    events,
    replay_file,
    wait_until,
    write_kernels,
)
from tests.support.in_process import llmperf

_PACKAGES = ("llmperf", "llmperf_common", "workers", "trainer", "cluster", "configs", "kernels")
_NUM_KERNELS = 12
_SETTINGS = ("--samples-per-kernel", str(SAMPLES_A_KERNEL), "--set", "timing.spin_up_ms=0")


def start(command: Collect, installed: Path) -> subprocess.Popen[str]:
    """Start the command with the copy of LLMPerf in ``installed``."""
    return subprocess.Popen(
        [sys.executable, *command.arguments()[1:]],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(data: Path) -> list[dict[str, object]]:
    """Return the events of finished tasks."""
    return [one for one in events(data) if one["event"] == "finished"]


@pytest.mark.parametrize("where", [(), ("--cluster",)], ids=["alone", "cluster"])
def test_a_change_of_files_ends_the_run_and_the_same_command_goes_on(
    tmp_path: Path, where: tuple[str, ...]
) -> None:
    installed = tmp_path / "installed"
    for name in _PACKAGES:
        shutil.copytree(
            REPOSITORY / name, installed / name, ignore=shutil.ignore_patterns("*.safetensors")
        )
    corpus = write_kernels(tmp_path / "corpus", [f"k{index}" for index in range(_NUM_KERNELS)])
    slow = {"kernel": "*", "action": "slow", "seconds": 0.01}
    device = replay_file(tmp_path / "replay.json", behaviours=[slow])
    command = Collect(corpus, tmp_path / "data", device, (*_SETTINGS, *where))

    running = start(command, installed)
    wait_until(lambda: len(finished(command.out)) >= 2, timeout_s=120)
    changed = installed / "workers" / "measure" / "timing.py"
    changed.write_text(changed.read_text(encoding="utf-8") + "# new\n", encoding="utf-8")
    for child in descendants(running.pid):
        if b"workers." in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
    _, err = running.communicate(timeout=120)
    assert running.returncode == Exit.BAD_INPUT, err
    assert f"LLMPerf's own files changed while it ran ({changed})" in err
    assert "Traceback" not in err
    assert llmperf("dataset", "verify", command.out).code == 0
    num_kept = len(finished(command.out))
    assert 0 < num_kept < _NUM_KERNELS
    assert open_dataset(command.out).num_samples == num_kept * SAMPLES_A_KERNEL

    _, err = (again := start(command, installed)).communicate(timeout=120)
    assert again.returncode == 0, err
    assert open_dataset(command.out).num_samples == _NUM_KERNELS * SAMPLES_A_KERNEL
