"""What is said where the library of a model is not installed: which extra brings it, in one line and with exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from llmperf.exits import Exit
from tests.support.factories.training import TINY, write_synthetic
from tests.support.wheel import REPOSITORY

HIDING = """
import sys
HIDDEN = {hidden!r}
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
COMMAND = "from llmperf.cli.main import run\nrun()\n"
LOADING = """
import pathlib, sys
from trainer.registry import load_model
from llmperf.exits import run_guarded
run_guarded(lambda: load_model(sys.argv[1], pathlib.Path(sys.argv[2])))
"""
OF_TRAIN = ("torch", "deepspeed", "transformers", "tokenizers", "safetensors", "tensorboard")
OF_GBDT = ("lightgbm",)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_synthetic(tmp_path_factory.mktemp("data") / "data")


def without(
    hidden: Sequence[str], program: str, *arguments: object, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``program`` where the libraries ``hidden`` cannot be found."""
    return subprocess.run(
        [sys.executable, "-c", HIDING.format(hidden=set(hidden)) + program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def settings(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


@pytest.mark.parametrize(
    ("preset", "hidden", "extra"),
    [
        ("gbdt", OF_GBDT, "gbdt"),
        ("feature-network", ("torch",), "train"),
        ("feature-ensemble", ("torch",), "train"),
        ("feature-ensemble", OF_GBDT, "train"),
        ("tiny", OF_TRAIN, "train"),
        ("tiny", ("deepspeed",), "train"),
        ("tiny", ("tokenizers",), "train"),
        ("tiny", ("safetensors",), "train"),
    ],
)
def test_training_names_the_extra_before_it_begins(
    data: Path, tmp_path: Path, preset: str, hidden: tuple[str, ...], extra: str
) -> None:
    chosen = settings(*TINY) if preset == "tiny" else ()
    arguments = ("train", "--data", data, "--out", tmp_path / "run", "--preset", preset, *chosen)
    done = without(hidden, COMMAND, *arguments)
    assert done.returncode == Exit.USAGE, done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        f'is not installed: pip install "llmperf[{extra}]"'
    )
    assert "Traceback" not in done.stderr
    assert "trees" not in done.stderr, "it grew trees before it looked for torch"


@pytest.mark.slow
def test_each_of_several_processes_ends_with_a_message(data: Path, tmp_path: Path) -> None:
    arguments = ("train", "--data", data, "--out", tmp_path / "run", "--preset", "tiny")
    done = without(OF_TRAIN, COMMAND, *arguments, RANK="1", WORLD_SIZE="2")
    assert done.returncode == Exit.USAGE, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("model", "hidden", "extra"),
    [("regressor", OF_TRAIN, "train"), ("regressor", ("tokenizers",), "train")],
)
def test_a_run_that_cannot_be_loaded_names_the_extra(
    tmp_path: Path, model: str, hidden: tuple[str, ...], extra: str
) -> None:
    done = without(hidden, LOADING, model, tmp_path)
    assert done.returncode == Exit.USAGE, done.stderr
    assert f'is not installed: pip install "llmperf[{extra}]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_trees_need_nothing_of_the_language_model(data: Path, tmp_path: Path) -> None:
    """What ``llmperf[gbdt]`` brings is enough to train, to evaluate and to predict."""
    run = tmp_path / "run"
    quick = settings("gbdt.tune=false", "judge.bootstrap_replicates=0")
    trained = without(
        (*OF_TRAIN, "sklearn", "ray"), COMMAND, "train", "--data", data, "--out", run, "--preset", "gbdt", *quick
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    scored = without(
        (*OF_TRAIN, "sklearn", "ray"),
        COMMAND,
        "evaluate",
        run,
        "--data",
        data,
        "--out",
        tmp_path / "scored",
    )
    assert scored.returncode == 0, scored.stderr
