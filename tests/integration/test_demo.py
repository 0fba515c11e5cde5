"""`make demo` as a stranger runs it, and the bars its dataset and model must reach. Slow: minutes of real timing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from llmperf_common.store.reader import open_dataset
from llmperf_common.store.verify import verify
from tests.integration.collecting import REPOSITORY
from trainer.evaluation.scoring import meets_slice_bar

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        ["make", "demo", f"DEMO={folder}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "held-out kernels" in done.stdout
    return folder


def test_the_demo_leaves_a_thousand_clean_samples(demo: Path) -> None:
    assert verify(demo / "data").clean
    assert open_dataset(demo / "data").status_counts()["ok"] >= 1000


def test_the_demo_leaves_one_self_contained_page(demo: Path) -> None:
    page = (demo / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert "<script" not in page


def test_boosting_knows_held_out_configs_of_seen_kernels(demo: Path) -> None:
    metrics = json.loads((demo / "model" / "metrics.json").read_text(encoding="utf-8"))
    assert meets_slice_bar(metrics, "gbdt"), metrics["parts"]["seen_configs"]
    assert not meets_slice_bar(metrics, "global-median"), "a constant must fail the bar"


def test_the_tiny_language_model_knows_held_out_configs_of_seen_kernels(demo: Path) -> None:
    metrics = json.loads((demo / "language-model" / "metrics.json").read_text(encoding="utf-8"))
    models = metrics["parts"]["seen_configs"]
    own = models["regressor"]["all"]
    assert own["num_kernels"] >= 40
    assert own["spearman_mean"] >= 0.8
    assert own["median_ape_percent"] < models["global-median"]["all"]["median_ape_percent"]
    assert own["median_ape_percent"] <= 1.2 * models["log-linear"]["all"]["median_ape_percent"]


def test_predictions_come_with_intervals_that_hold_them(demo: Path) -> None:
    document = json.loads((demo / "evaluation" / "metrics.json").read_text(encoding="utf-8"))
    assert document["split"] == "test"
    assert np.isfinite(document["interval_level"])
