"""The model that comes with the package: small, without third-party text, and asked from anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from llmperf.prediction.model import Model
from llmperf_common.features.features import feature_names
from tests.support.factories.synthetic_dataset import QUICK, make_dataset
from tests.support.wheel import REPOSITORY
from trainer.config import load_train_config
from trainer.errors import BadInput
from trainer.life.shipping import SHIPPED_KERNEL_COLUMNS, ship
from trainer.life.train import train
from trainer.run.folder import resolve_run
from trainer.run.loaded import load_run
from trainer.run.shipped import DEFAULT_MODEL, SHIPPED_FOLDER, shipped_models, shipped_run

MOST_BYTES = 30e6
KERNEL = REPOSITORY / "kernels" / "saxpy.cl"
HEAVY = (
    "torch",
    "lightgbm",
    "sklearn",
    "scipy",
    "transformers",
    "tokenizers",
    "deepspeed",
    "pyopencl",
    "ray",
)
BLOCKED = f"""
import sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {HEAVY!r} else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
"""
"""Makes the heavy libraries absent, for an import as for a look whether they are there."""


def asked(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``llmperf predict`` in ``folder`` where only the base dependencies can be imported."""
    program = BLOCKED + "from llmperf.cli.main import run\nrun()\n"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", program, "predict", str(KERNEL), *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


SIZES = ("--global-size", "1048576", "--local-size", "256")


def test_it_answers_in_an_empty_folder_with_the_base_dependencies(tmp_path):
    done = asked(tmp_path, "--device", "h200", *SIZES, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["device"] == "h200"
    # 12 MB through a memory of 4 TB/s, and the launch: no less than 3, no more than 100 microseconds.
    assert 3e3 < document["time_ns"] < 100e3
    assert any("comes with llmperf" in text for text in document["warnings"])
    assert not list(tmp_path.glob("runs"))


def test_it_can_be_named_and_then_nothing_is_said(tmp_path):
    done = asked(tmp_path, "--model", "h200", *SIZES)
    assert done.returncode == 0, done.stderr
    assert "saxpy on h200" in done.stdout
    assert "comes with llmperf" not in done.stderr


def test_another_device_is_refused_with_what_there_is(tmp_path):
    done = asked(tmp_path, "--device", "a100", *SIZES)
    assert done.returncode == 3
    assert "h200" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_of_the_user_comes_first(tmp_path, monkeypatch):
    assert shipped_models() == [DEFAULT_MODEL]
    assert shipped_run() == SHIPPED_FOLDER / DEFAULT_MODEL
    assert shipped_run("moon") is None
    monkeypatch.chdir(tmp_path)
    assert resolve_run("h200") == SHIPPED_FOLDER / DEFAULT_MODEL
    with pytest.raises(BadInput, match="llmperf brings h200"):
        resolve_run("moon")
    data = make_dataset(num_kernels=20, num_configs=16, seed=5).data()
    config = load_train_config("log-linear", overrides=QUICK)
    train(data, config, tmp_path / "runs" / "h200", lambda _line: None)
    assert resolve_run("h200") == Path("runs/h200")
    assert Model.load().device_classes == ("synth",)


def test_it_is_small_and_holds_no_text_of_third_parties():
    folder = SHIPPED_FOLDER / DEFAULT_MODEL
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    assert not any(path.suffix in {".pkl", ".pt", ".bin", ".cl"} for path in files)
    kernels = pq.read_table(folder / "kernels.parquet")
    assert tuple(kernels.column_names) == SHIPPED_KERNEL_COLUMNS
    assert len(kernels) > 4000
    # Every text file of ours is short of anything that reads like a kernel.
    for path in files:
        if path.suffix in {".json", ".md"}:
            assert "__kernel" not in path.read_text(encoding="utf-8")


def test_it_reads_only_features_that_this_release_computes():
    run = load_run(SHIPPED_FOLDER / DEFAULT_MODEL)
    assert set(run.known.names) <= set(feature_names())
    assert set(run.devices) == {"h200"}
    assert run.conformal.pooled.guarantee == "groups"
    assert "Errors" in (run.folder / "model_card.md").read_text(encoding="utf-8")


def test_shipping_keeps_what_predictions_need(tmp_path):
    data = make_dataset(num_kernels=20, num_configs=16, seed=5).data()
    config = load_train_config("log-linear", overrides=QUICK)
    train(data, config, tmp_path / "run", lambda _line: None)
    size = ship(tmp_path / "run", tmp_path / "small", "# A card\n")
    whole, small = load_run(tmp_path / "run"), load_run(tmp_path / "small")
    np.testing.assert_array_equal(
        whole.model.predict(data.rows).log2_ns, small.model.predict(data.rows).log2_ns
    )
    assert small.conformal == whole.conformal
    assert small.known.far == whole.known.far
    assert (small.known.names, small.split) == (whole.known.names, whole.split)
    np.testing.assert_array_equal(small.known.low, whole.known.low)
    assert len(small.known.kernels) == len(whole.known.kernels)
    assert not (tmp_path / "small" / "training_range.json").exists()
    metrics = [json.loads((tmp_path / at / "metrics.json").read_text()) for at in ("run", "small")]
    assert metrics[0] == metrics[1]
    assert (small.config.split, small.config.judge) == (whole.config.split, whole.config.judge)
    record = json.loads((tmp_path / "small" / "config.json").read_text())
    assert set(record["config"]) == {"model", "split", "judge"}  # keys of fitting may change
    assert record["made_with"]["log_linear"] == {"ridge": 10.0}
    assert size < sum(one.stat().st_size for one in (tmp_path / "run").rglob("*") if one.is_file())
    assert not (tmp_path / "small" / "predictions.parquet").exists()
    assert ship(tmp_path / "run", tmp_path / "small", "# Another\n") == size + 2  # replaced


@pytest.mark.slow
def test_a_wheel_holds_it(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.getinfo(name).file_size for name in archive.namelist()}
    folder = SHIPPED_FOLDER / DEFAULT_MODEL
    for path in folder.rglob("*"):
        if path.is_file():
            assert held[str(path.relative_to(REPOSITORY))] == path.stat().st_size
    assert wheel.stat().st_size < MOST_BYTES
