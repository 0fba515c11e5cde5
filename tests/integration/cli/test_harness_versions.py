"""Each command that joins a model with measured rows says so if their harness versions differ."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from llmperf_common.ids import HARNESS_VERSION
from tests.integration.conftest import MODEL_KERNELS, Trained
from tests.support.collecting import KERNELS
from tests.support.in_process import llmperf
from trainer.run.loaded import load_run


@pytest.fixture
def old(trained: Trained, tmp_path: Path) -> Trained:
    """The dataset as an earlier version would have measured it, and a copy of the run."""
    data, run = tmp_path / "data", tmp_path / "run"
    shutil.copytree(trained.data, data)
    shutil.copytree(trained.run, run)
    path = data / "run.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({**content, "harness_version": HARNESS_VERSION - 1}), encoding="utf-8"
    )
    return Trained(data=data, run=run)


def test_a_note_names_both_versions(trained: Trained, old: Trained, tmp_path: Path) -> None:
    assert load_run(trained.run).harness_version == HARNESS_VERSION
    source = KERNELS / f"{MODEL_KERNELS[0]}.cl"
    launch = ("--global-size", "4096", "--local-size", "64", "--work", "off")
    commands = (
        ("evaluate", old.run, "--split", "all", "--allow-seen", "--out", tmp_path / "scored"),
        ("predict", source, "--model", old.run, *launch),
        ("calibrate", old.run),
    )
    for name, *words in commands:
        option = "--measured" if name == "predict" else "--data"
        for data, is_other in ((old.data, True), (trained.data, False)):
            done = llmperf(name, *words, option, data)
            assert done.code == 0, done.err
            said = " ".join((done.out + done.err).split())
            assert ("trained on harness version" in said) == is_other, (name, said)
