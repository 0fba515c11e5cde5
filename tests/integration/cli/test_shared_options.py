"""Options that every command takes, completion of a shell, and ``--json`` of train and evaluate."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path

import pytest

import llmperf as package
from llmperf.cli.console import is_quiet
from llmperf.exits import Exit
from llmperf.reference.commands import commands
from tests.integration.conftest import Collected, Trained
from tests.support.collecting import llmperf_command, replay_file, write_kernels
from tests.support.in_process import assert_refused, llmperf

COMMANDS = [name.split()[1:] for name, _ in commands()]


@pytest.mark.parametrize("words", [[], ["dataset"], ["corpus"], *COMMANDS], ids=" ".join)
def test_every_command_tells_the_version_and_takes_the_shared_options(words: list[str]) -> None:
    done = llmperf(*words, "--version")
    assert (done.code, done.out, done.err) == (0, f"{package.__version__}\n", "")
    text = llmperf(*words, "--help").out
    assert all(text.count(name) == 1 for name in ("--version", "-v, --verbose", "-q, --quiet"))


@pytest.fixture
def one_kernel(tmp_path: Path) -> Collected:
    device = replay_file(tmp_path / "r.json")
    return Collected(write_kernels(tmp_path / "kernels", ["k0"]), device, tmp_path / "data")


def test_quiet_leaves_results_and_errors(one_kernel: Collected, tmp_path: Path) -> None:
    done = one_kernel.collect("-q")
    assert done.code == 0
    assert done.err == "planned 4 = ok 4 + failed 0 + pending 0   (tasks 1 of 1)\n"
    assert llmperf("--quiet", "status", one_kernel.out).out.startswith("1 of 1 tasks")
    done = llmperf("report", one_kernel.out, "--out", tmp_path / "r.html", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert_refused(llmperf("-q", "status", tmp_path), Exit.BAD_INPUT, "no run.json")
    assert is_quiet()
    assert llmperf("report", one_kernel.out, "--out", tmp_path / "r.html").err, "quiet no longer"


@pytest.mark.slow
def test_verbose_shows_the_steps(one_kernel: Collected) -> None:
    done = one_kernel.collect("--verbose")
    assert done.code == 0
    for step in (
        "workers.collect.events: claimed {",
        "workers.collect.events: committed {",
        "config: {",
        "opened Device(",
    ):
        assert step in done.err
    assert json.loads(llmperf("-v", "status", one_kernel.out, "--json").out)["ok"] == 4
    assert "DEBUG" not in one_kernel.collect().err
    assert logging.getLogger("workers").level == logging.NOTSET


@pytest.mark.slow
def test_a_warning_is_seen_with_verbose_and_without_but_not_with_quiet(
    one_kernel: Collected,
) -> None:
    one_kernel.collect()
    for option, times in (("--verbose", 1), ("--quiet", 0)):
        (one_kernel.out / "README.md").write_text("mine")
        assert one_kernel.collect(option).err.count("was not written by llmperf") == times


def test_verbose_and_quiet_exclude_each_other(tmp_path: Path) -> None:
    for words in (("-v", "-q", "status", tmp_path), ("-q", "status", tmp_path, "--verbose")):
        assert_refused(llmperf(*words), Exit.USAGE, "cannot be combined: leave one out")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("collect", "--corpus", "k", "--out", "d", "--device", "cuda:0", "--device", "moon"), "--device"),
        (("evaluate", "run", "--data", "a", "--data", "b", "--out", "e"), "--data"),
        (("predict", "k.cl", "--global-size", 64, "--global-size", 64, "--local-size", 8), "--global-size"),
        (("status", "d", "--ledger", "redis://a", "--ledger=sqlite"), "--ledger"),
    ],
)  # fmt: skip
def test_a_value_that_a_later_one_replaces_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    warning = f"warning: {option} takes one value and is given twice: the last one is used"
    assert llmperf(*words).err.splitlines()[0] == warning
    assert warning not in llmperf(*words, "-q").err


@pytest.mark.slow
def test_a_flag_may_be_repeated_and_so_may_what_takes_several_values(one_kernel: Collected) -> None:
    done = one_kernel.collect("-v", "-v", "--set", "plan.seed=1", "--set", "plan.seed=2")
    assert done.code == 0, done.err
    assert "given twice" not in done.err


def test_a_shell_completes_commands_and_options() -> None:
    for words, wanted in (("llmperf da", "dataset"), ("llmperf collect --max-f", "--max-failures")):
        asked = {
            "_LLMPERF_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        command = llmperf_command()
        command[2] = f"import sys; sys.argv[0] = 'llmperf'; {command[2]}"
        done = subprocess.run(
            command,
            env={**os.environ, **asked},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout.split(), done.stderr) == ([wanted], "")


def test_train_and_evaluate_print_one_json_document(trained: Trained, tmp_path: Path) -> None:
    quick = ("--preset", "log-linear", "--set", "judge.bootstrap_replicates=0")
    done = llmperf("train", "--data", trained.data, "--out", tmp_path / "run", *quick, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert list(told) == ["run", "model", "metrics", "notes", "seconds"]
    assert (told["run"], told["model"]) == (str(tmp_path / "run"), "log-linear")
    assert told["metrics"] == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert told["seconds"] > 0
    assert all(f"note: {note}" in done.err for note in told["notes"])
    again = llmperf("train", "--data", trained.data, "--out", tmp_path / "run", *quick, "--json")
    assert json.loads(again.out) == told
    assert "is finished: nothing to do" in again.err
    assert "written" not in again.err
    scored = ("evaluate", trained.run, "--data", trained.data, "--out", tmp_path / "scored")
    done = llmperf(*scored, "--json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert list(told) == ["out", "rows", "metrics"]
    assert told["metrics"] == json.loads((tmp_path / "scored" / "metrics.json").read_text())
    assert told["rows"] > 0
