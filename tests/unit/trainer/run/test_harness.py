"""Rows of another harness version than the model's are used, with a note that says so."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from tests.support.factories.synthetic_dataset import make_dataset, trained
from trainer.config import load_train_config
from trainer.data.dataset import TrainingData
from trainer.evaluation.evaluate import evaluate
from trainer.life.train import train
from trainer.prediction.calibrate import calibrate_run
from trainer.run.harness import harness_notes, recorded_version
from trainer.run.loaded import LoadedRun, load_run

NOTE = "the model was trained on harness version 2, these rows were measured with version 1: a part"


def of_version(version: int) -> TrainingData:
    data = make_dataset(num_kernels=8, seed=9, first=500).data()
    return dataclasses.replace(data, identity={**data.identity, "harness_version": version})


@pytest.fixture
def run(tmp_path: Path) -> LoadedRun:
    """A copy of a run that records harness version 2."""
    shutil.copytree(trained()[2].folder, tmp_path / "run")
    return dataclasses.replace(load_run(tmp_path / "run"), harness_version=2)


@pytest.mark.parametrize(("version", "num_notes"), [(1, 1), (2, 0)])
def test_calibrate_and_evaluate_note_another_version(
    run: LoadedRun, tmp_path: Path, version: int, num_notes: int
) -> None:
    data = of_version(version)
    scored = evaluate(run, data, "all", tmp_path / "scored")
    calibrated = calibrate_run(run, data, launches=4)
    for notes in (scored.metrics["notes"], calibrated.notes):
        assert sum(NOTE in note for note in notes) == num_notes


def test_a_training_records_the_version(tmp_path: Path) -> None:
    config = load_train_config(
        "log-linear", overrides=("train.num_threads=1", "judge.bootstrap_replicates=50")
    )
    data = dataclasses.replace(trained()[1], identity={"harness_version": 1})
    folder = train(data, config, tmp_path / "run", lambda _line: None).folder
    assert load_run(folder).harness_version == 1


@pytest.mark.parametrize(
    "dataset", [None, [], {}, {"harness_version": "2"}, {"harness_version": True}]
)
def test_a_run_may_record_none(run: LoadedRun, dataset: object) -> None:
    """Runs of earlier releases record none, and a damaged one may hold anything."""
    path = run.folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    assert recorded_version({**content, "dataset": dataset}) is None
    assert not harness_notes(None, {"harness_version": 1})
    assert not harness_notes(2, {"plan_hashes": []})
