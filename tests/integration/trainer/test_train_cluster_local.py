"""``llmperf train --cluster`` without a cluster: the command starts a Ray of its own for two processes."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from llmperf.api import train
from tests.support.collecting import REPOSITORY, llmperf_command
from tests.support.factories.training import TINY, arguments, environment, moments, write_synthetic
from tests.support.listening import listening

STEPS = ("optimiser.max_steps=4", "optimiser.zero_stage=2")


def started(words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        llmperf_command(*words, "--cluster", "--workers", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env=environment(), cwd=REPOSITORY,
    )  # fmt: skip


def command(words: list[str]) -> subprocess.CompletedProcess[str]:
    process = started(words)
    try:
        out, err = process.communicate(timeout=110)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow  # without Ray: test_train_processes.py
def test_bad_input_in_the_first_process_has_its_exit_code(tmp_path: Path) -> None:
    data, run = write_synthetic(tmp_path / "data"), tmp_path / "run"
    done = command(arguments(data, run, "prompt.max_tokens=32", "packing.lengths=[32,64]"))
    assert done.returncode == 3, done.stderr
    assert "no launch of the train part fits into prompt.max_tokens = 32" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (run / "prepared").exists()


@pytest.mark.slow
def test_world_size_2_on_a_ray_of_its_own_gives_the_losses_of_one_process(tmp_path: Path) -> None:
    data, run, alone = write_synthetic(tmp_path / "data"), tmp_path / "run", tmp_path / "alone"
    process = started(arguments(data, run, *STEPS))
    addresses: set[str] = set()
    while process.poll() is None:
        addresses |= set(listening(process.pid))
        time.sleep(0.3)
    _, told = process.communicate()
    assert process.returncode == 0, told
    assert "step 4/4: loss" in told
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, "Ray's servers and torch's store"
    train(data, alone, preset="tiny", overrides=[*TINY, *STEPS], progress=lambda _line: None)
    ours, theirs = moments(run), moments(alone)
    assert [one["step"] for one in ours] == [1, 2, 3, 4]
    assert [one["loss"] for one in ours] == pytest.approx([one["loss"] for one in theirs], abs=1e-5)
