"""DESIGN section 8 to the letter: commands, options, JSON documents, exit codes, and how fast help comes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmperf.exits import CommandError, Exit, exit_code_of
from llmperf_common.store.tables.reader import open_dataset
from tests.integration.conftest import Collected, Trained
from tests.support.collecting import KERNELS, llmperf_command, replay_file, write_kernels
from tests.support.in_process import assert_refused, llmperf
from tests.support.sampling import slow_but_each

OPTIONS = {
    "doctor": "--json",
    "corpus build": "--out --suite --analyse --device",
    "corpus stats": "--json",
    "collect": "--corpus --out --device --samples-per-kernel --strategy --seed --max-time --max-failures "
    "--preset --config --set --cluster --ledger",
    "status": "--ledger --watch --json",
    "dataset verify": "--json",
    "dataset stats": "--json",
    "dataset card": "",
    "dataset merge": "--out",
    "dataset export": "--out --format",
    "train": "--data --preset --out --init --cluster --workers --config --set",
    "evaluate": "--data --split --out --allow-seen",
    "calibrate": "--data --launches --json",
    "predict": "--kernel --model --device --global-size --local-size --arg --sweep --measured --json",
    "report": "--out --evaluation --kernel --kernels",
}
"""Every command with its options (``test_public_surface.py`` sees to it that there are no others)."""

NOT_YET = ("split", "rejoin")
PREDICT_KEYS = [
    "kernel", "device", "time_ns", "interval", "local_size_best", "bound", "ood", "work", "warnings",
]  # fmt: skip


def document(*arguments: object) -> Any:
    """Run a command that must print one JSON document on stdout and nothing else."""
    done = llmperf(*arguments)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_command_and_option_has_help(name: str) -> None:
    done = llmperf(*name.split(), "--help")
    assert done.code == 0
    text = done.out
    assert all(option in text for option in OPTIONS[name].split())


@pytest.mark.parametrize("name", NOT_YET)
def test_what_is_not_built_yet_does_not_half_exist(three_kernels: Collected, name: str) -> None:
    done = llmperf("dataset", name, three_kernels.out)
    assert_refused(done, Exit.USAGE, f"No such command '{name}'")


# ------------------------------------------------------------------ --json


def test_predict_json_has_exactly_the_keys_of_the_contract(trained: Trained) -> None:
    asked = (
        "predict", KERNELS / "saxpy.cl", "--model", trained.run,
        "--global-size", "4096", "--local-size", "64", "--arg", "x=4096", "--json",
    )  # fmt: skip
    plain = document(*asked)
    assert list(plain) == PREDICT_KEYS
    assert list(plain["interval"]) == ["level", "low_ns", "high_ns"]
    assert plain["interval"]["low_ns"] <= plain["time_ns"] <= plain["interval"]["high_ns"]
    assert plain["bound"] in ("latency", "bandwidth", "compute")
    assert (plain["kernel"], plain["device"]) == ("saxpy", "replay")
    assert isinstance(plain["ood"], bool)
    assert any("'y' not given" in warning for warning in plain["warnings"])
    assert not any("'x' not given" in warning for warning in plain["warnings"])
    swept = document(*asked, "--sweep", "local-size")
    assert list(swept) == [*PREDICT_KEYS, "sweep"]
    assert {tuple(row) for row in swept["sweep"]} == {
        ("local_size", "time_ns", "low_ns", "high_ns")
    }
    assert {key: swept[key] for key in PREDICT_KEYS} == plain


def test_status_json(three_kernels: Collected) -> None:
    state = document("status", three_kernels.out, "--json")
    assert (state["tasks"], state["tasks_done"], state["ok"]) == (3, 3, 12)
    assert (state["failed"], state["collecting"]) == ({}, False)


def test_verify_stats_and_corpus_json(three_kernels: Collected) -> None:
    assert document("dataset", "verify", three_kernels.out, "--json")["is_ok"] is True
    assert document("dataset", "stats", three_kernels.out, "--json")["num_samples"] == 12
    assert document("corpus", "stats", three_kernels.corpus, "--json")["num_kernels"] == 3


def test_doctor_json() -> None:
    done = llmperf("doctor", "--json")
    report = json.loads(done.out)
    usable = [device for device in report["devices"] if device["usable"]]
    assert done.code == (Exit.DONE if usable else Exit.NO_DEVICE)
    assert all(absent["reason"] and absent["mend"] for absent in report["absent"])


def test_json_keeps_stdout_empty_when_there_is_no_answer(trained: Trained, tmp_path: Path) -> None:
    for command in (
        ("predict", tmp_path / "no.cl", "--global-size", "1", "--local-size", "1"),
        ("status", tmp_path),
        ("dataset", "stats", tmp_path),
        ("corpus", "stats", tmp_path / "nope.parquet"),
    ):
        done = llmperf(*command, "--json")
        assert (done.code, done.out) == (Exit.BAD_INPUT, ""), command


# ------------------------------------------------------------------ from corpus to report


def test_the_commands_work_on_one_another_s_results(
    three_kernels: Collected, trained: Trained, tmp_path: Path
) -> None:
    corpus = tmp_path / "c.parquet"
    assert llmperf("corpus", "build", three_kernels.corpus, "--out", corpus).code == 0
    built = Collected(corpus, three_kernels.device, tmp_path / "data")
    assert built.collect().code == 0
    ids = set(open_dataset(built.out).samples()["sample_id"].to_pylist())
    assert ids == set(open_dataset(three_kernels.out).samples()["sample_id"].to_pylist())

    merged = tmp_path / "merged"
    done = llmperf("dataset", "merge", built.out, trained.data, "--out", merged)
    assert done.code == 0, done.err
    assert llmperf("dataset", "verify", merged).code == 0
    assert document("dataset", "stats", merged, "--json")["num_samples"] == sum(
        open_dataset(source).num_samples for source in (built.out, trained.data)
    )

    for fmt in ("arrow", "csv"):
        out = tmp_path / fmt
        done = llmperf("dataset", "export", merged, "--out", out, "--format", fmt)
        assert done.code == 0, done.err
        names = {f"{table}.{fmt}" for table in ("samples", "kernels", "devices")}
        assert {path.name for path in out.iterdir()} == names

    (merged / "README.md").unlink()
    assert llmperf("dataset", "card", merged).code == 0
    assert (merged / "README.md").exists()

    evaluation = tmp_path / "evaluation"
    options = ("--data", trained.data, "--split", "test", "--out", evaluation)
    assert llmperf("evaluate", trained.run, *options).code == 0
    for source in (merged, evaluation):
        page = tmp_path / f"{source.name}.html"
        assert llmperf("report", source, "--out", page).code == 0
        assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_running_collect_again_resumes(copied: Collected) -> None:
    before = open_dataset(copied.out).samples().to_pylist()
    done = copied.collect()
    assert done.code == 0
    assert "3 kernels, complete before this start: nothing to do; plan" in done.err
    assert "resume" not in done.err
    assert "planned 12 = ok 12 + failed 0 + pending 0" in done.err
    assert open_dataset(copied.out).samples().to_pylist() == before


def test_limits_may_change_between_two_starts(copied: Collected) -> None:
    """Only what decides what a time means belongs to the plan."""
    done = copied.collect("--max-time", "1h", "--set", "limits.config_timeout_s=7")
    assert done.code == 0, done.err


# ------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(
    ("limit", "code"), slow_but_each(4, [("3", 5), ("0", 5), ("4", 0), (None, 0)])
)
def test_max_failures(tmp_path: Path, limit: str | None, code: int) -> None:
    """More than F failed rows end with 5; failed rows alone end with 0."""
    refuse = [{"kernel": "*", "action": "launch_error"}]
    device = replay_file(tmp_path / "r.json", behaviours=refuse)
    made = Collected(write_kernels(tmp_path / "k", ["k0"]), device, tmp_path / "data")
    done = made.collect(*(("--max-failures", limit) if limit else ()))
    assert done.code == code, done.err
    assert "failed: launch_error 4" in done.err
    assert ("--max-failures" in done.err) == (code == 5)


def test_time_is_up_is_no_failure(tmp_path: Path) -> None:
    slow = [{"kernel": "*", "action": "slow", "seconds": 0.05}]
    device = replay_file(tmp_path / "r.json", behaviours=slow)
    names = [f"k{index}" for index in range(6)]
    made = Collected(write_kernels(tmp_path / "k", names), device, tmp_path / "data")
    done = made.collect("--max-time", "1s")
    assert done.code == 0, done.err
    assert "pending 0 " not in done.err
    assert "same command" in done.err, "a user must learn that it is not complete"


def test_the_codes_are_those_of_the_contract() -> None:
    assert {code.name: code.value for code in Exit} == {
        "DONE": 0, "USAGE": 2, "BAD_INPUT": 3, "NO_DEVICE": 4, "TOO_MANY_FAILURES": 5,
        "INTERRUPTED": 130,
    }  # fmt: skip


def test_a_bug_keeps_its_traceback() -> None:
    assert exit_code_of(ZeroDivisionError()) is None
    assert exit_code_of(CommandError(Exit.USAGE, "")) is Exit.USAGE
    assert exit_code_of(KeyboardInterrupt()) is Exit.INTERRUPTED


@pytest.mark.parametrize("arguments", [(), ("dataset",), ("corpus",)])
def test_without_a_command_the_help_is_shown(arguments: tuple[str, ...]) -> None:
    done = llmperf(*arguments)
    assert done.code == Exit.USAGE
    assert "Usage: llmperf" in done.out + done.err


# ------------------------------------------------------------------ how fast it comes


def cpu_seconds(command: list[str]) -> float:
    """Best of three; CPU time, for the wall clock of a shared machine says nothing."""
    best = float("inf")
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def test_import_and_help_are_fast() -> None:
    assert cpu_seconds([sys.executable, "-c", "import llmperf"]) < 0.3
    assert cpu_seconds(llmperf_command("--help")) < 0.6


@pytest.mark.parametrize("what", ["import llmperf", "from llmperf.cli.main import app"])
def test_nothing_heavy_is_loaded(what: str) -> None:
    heavy = (
        "pyarrow",
        "numpy",
        "pyopencl",
        "ray",
        "torch",
        "redis",
        "clang",
        "lightgbm",
        "pydantic",
    )
    code = f"import sys; {what}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
