"""``predict --work``: what a launch executes is counted where that is possible, and the answer says whether it was."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llmperf as api
from llmperf.exits import Exit
from llmperf_common.config import ConfigError
from llmperf_common.features.features import feature_names
from llmperf_common.features.work_features import WORK_MEANINGS
from tests.support.factories.synthetic_dataset import QUICK, make_dataset
from tests.support.in_process import assert_refused, llmperf
from trainer.config import load_train_config
from trainer.life.train import train
from workers.discovery.find import NoDevice, choose

pytestmark = pytest.mark.opencl

LOOP = "__kernel void loop(__global float *a, int n) { float s = 0; for (int i = 0; i < n; ++i) s += a[i]; a[get_global_id(0)] = s; }\n"
ENDLESS = "__kernel void k(__global int *a, int n) { while (n > 0) a[0] = n; }\n"
BARRIER = """__kernel void k(__global int *a, int n) { __local int t[64]; int l = get_local_id(0); t[l] = n;
 while (t[0] > 0) { barrier(CLK_LOCAL_MEM_FENCE); t[l] = n; } a[get_global_id(0)] = t[l]; }
"""
SIZES = {"global_size": 4096, "local_size": 64}


@pytest.fixture(scope="module", autouse=True)
def cpu() -> None:
    found = choose("cpu")
    if isinstance(found, NoDevice):
        pytest.skip(found.message())


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No analysis of an earlier test is there."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble that was fitted with the work of every second launch: times follow its analytic time."""
    data = make_dataset(num_kernels=20, num_configs=16, seed=5).data()
    features, names = data.rows.features.copy(), feature_names()
    counted = [names.index(name) for name in WORK_MEANINGS]
    features[::2, counted] = np.random.default_rng(0).normal(
        size=(len(features[::2]), len(counted))
    )
    features[::2, names.index("counted_time_ns")] = data.log2_ns[::2]
    data = replace(data, rows=replace(data.rows, features=features))
    values = {
        "feature_network.networks": 1,
        "feature_network.steps": 5,
        "feature_network.width": 16,
        "feature_ensemble.trees": 5,
        "feature_ensemble.min_counted_kernels": 5,
        "feature_ensemble.min_rows_in_leaf": 5,
    }
    chosen = [*QUICK, *(f"{key}={value}" for key, value in values.items())]
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(data, load_train_config("feature-ensemble", overrides=chosen), folder, lambda _line: None)
    return folder


def test_work_is_counted_unless_it_is_off(run: Path) -> None:
    model = api.load_model(run)
    few = model.predict(LOOP, **SIZES, args={"n": 1})
    assert few["work"] == "counted"
    off = api.load_model(run, work="off").predict(LOOP, **SIZES, args={"n": 1})
    assert off["work"] == "none"
    assert not any("counted" in text for text in off.warnings)
    assert few.time_ns != off.time_ns
    assert model.predict(LOOP, **SIZES, args={"n": 1}) == few


@pytest.mark.parametrize("at_once", [pytest.param(one, marks=pytest.mark.slow) for one in (512, 2)])
def test_many_launches_are_counted_together_and_say_the_same(
    run: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr("llmperf.prediction.counting._LAUNCHES_AT_ONCE", at_once)
    launches = [{"global_size": 64 * n, "local_size": 64, "args": {"n": n}} for n in (1, 9, 40)]
    model = api.load_model(run)
    together = model.predict_many(LOOP, launches)
    assert [one["work"] for one in together] == ["counted"] * 3
    for launch, one in zip(launches, together, strict=True):
        assert model.predict_many(LOOP, [launch])[0].time_ns == one.time_ns


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(ENDLESS, id="endless", marks=pytest.mark.slow),
        pytest.param(BARRIER, id="hangs in a barrier", marks=pytest.mark.nightly),
    ],
)
def test_what_cannot_be_counted_is_predicted_without_and_that_is_said(
    run: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmperf.prediction.counting.WORK_TIMEOUT_S", 4.0)
    found = api.load_model(run).predict(source, **SIZES, args={"a": 4096, "n": 1})
    assert found["work"] == "none"
    assert any("could not be counted" in text for text in found.warnings), found.warnings
    off = api.load_model(run, work="off").predict(source, **SIZES, args={"a": 4096, "n": 1})
    assert found.time_ns == off.time_ns


def test_without_a_device_the_answer_is_that_of_off(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    off = api.load_model(run, work="off").predict(LOOP, **SIZES, args={"a": 4096, "n": 1})
    monkeypatch.setattr(
        "workers.discovery.find.choose", lambda _name: NoDevice(selector="cpu", reasons=(), mend=())
    )
    found = api.load_model(run).predict(LOOP, **SIZES, args={"a": 4096, "n": 1})
    assert (found["work"], found.time_ns) == ("none", off.time_ns)
    assert any("no usable CPU OpenCL device" in text for text in found.warnings)


@pytest.mark.slow
def test_the_command_line_says_whether_it_was_counted(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "loop.cl"
    path.write_text(LOOP, encoding="utf-8")
    options = (
        "predict",
        path,
        "--model",
        run,
        "--global-size",
        4096,
        "--local-size",
        64,
        "--arg",
        "n=4",
    )
    done = llmperf(*options, "--json")
    assert json.loads(done.out)["work"] == "counted"
    off = llmperf(*options, "--work", "off")
    assert "work: none" in off.out
    assert_refused(llmperf(*options, "--work", "maybe"), Exit.USAGE, "auto", "off")
    with pytest.raises(ConfigError, match="auto"):
        api.load_model(run, work="maybe")
