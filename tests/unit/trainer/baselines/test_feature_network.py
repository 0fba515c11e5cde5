"""The small networks over the features: numpy says what torch does, and they repeat themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.factories.synthetic_dataset import make_dataset
from trainer.baselines.feature_network import FeatureNetwork, InputScaling, Weights
from trainer.config import load_train_config
from trainer.errors import BadInput
from trainer.fit.feature_network import (
    Network,
    relative_error_loss,
    torch_answers,
    weights_of,
)
from trainer.interface import FitData, Predictor
from trainer.life.fitting import fit_model
from trainer.registry import load_model

CONFIG = load_train_config(
    "gbdt",
    overrides=[
        "model=feature-network",
        "train.num_threads=1",
        "train.device=cpu",
        "feature_network.networks=2",
        "feature_network.width=32",
        "feature_network.steps=300",
        "feature_network.kernels_per_step=16",
        "feature_network.configs_per_kernel=8",
        "feature_network.learning_rate=0.01",
    ],
)


def silent(_line: str) -> None:
    return None


@pytest.fixture(scope="module")
def fit() -> FitData:
    data = make_dataset(num_kernels=16, num_configs=40, seed=3).data()
    _, family = np.unique(data.family_id, return_inverse=True)
    held_out = np.flatnonzero(family % 4 == 0)
    fitted = np.flatnonzero(family % 4 != 0)
    return FitData(
        rows=data.rows.take(fitted),
        log2_ns=data.log2_ns[fitted],
        family=family[fitted].astype(np.int64),
        weight=np.ones(len(fitted)),
        validation=data.rows.take(held_out),
        validation_log2_ns=data.log2_ns[held_out],
    )


@pytest.fixture(scope="module")
def model(fit: FitData) -> Predictor:
    return fit_model("feature-network", fit, CONFIG, silent)


def test_it_learns_and_says_how_far_off_it_is(model, fit):
    assert isinstance(model, Predictor)
    said = model.predict(fit.rows)
    error = said.log2_ns - fit.log2_ns
    assert np.sqrt(np.mean(error**2)) < 0.5 * np.std(fit.log2_ns)
    assert said.spread is not None
    assert np.all(said.spread > 0)
    unseen = model.predict(fit.validation)
    assert np.mean(unseen.spread) == pytest.approx(
        np.mean(np.abs(unseen.log2_ns - fit.validation_log2_ns)), rel=1e-3
    )


@pytest.mark.slow
def test_it_repeats_itself_and_reads_back_bit_by_bit(model, fit, tmp_path):
    again = fit_model("feature-network", fit, CONFIG, silent)
    model.save(tmp_path)
    loaded = load_model("feature-network", tmp_path)
    said = model.predict(fit.rows)
    for other in (again, loaded):
        np.testing.assert_array_equal(other.predict(fit.rows).log2_ns, said.log2_ns)
        np.testing.assert_array_equal(other.predict(fit.rows).spread, said.spread)
    assert {path.name for path in tmp_path.iterdir()} == {"model.json", "weights.npz"}


def test_one_row_predicts_as_it_does_among_others(model, fit):
    """Up to the last bits of float32, which depend on the row's place where there is no AVX-512."""
    together = model.predict(fit.rows).log2_ns
    for row in (0, 7, len(together) - 1):
        alone = model.predict(fit.rows.take(np.array([row]))).log2_ns
        np.testing.assert_allclose(alone, together[row : row + 1], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("blocks", "terms"), [(1, 1), (2, 4)])
def test_numpy_says_what_torch_does(blocks, terms):
    config = CONFIG.feature_network.model_copy(
        update={"width": 48, "blocks": blocks, "terms": terms}
    )
    torch.manual_seed(5)
    networks = [Network(30, config).eval() for _ in range(2)]
    with torch.no_grad():
        for network in networks:
            torch.nn.init.normal_(network.skip.weight, std=0.2)
    weights = weights_of(networks)
    inputs = np.random.default_rng(0).normal(size=(200, 30)).astype(np.float32)
    for number, network in enumerate(networks):
        for ours, theirs in zip(
            weights.answers(inputs, number), torch_answers(network, inputs), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_loss_is_the_relative_error_up_to_twice_and_then_a_line():
    error = torch.tensor([-20.0, -1.0, 0.0, 0.5, 1.0, 2.0])
    loss = relative_error_loss(error, 0.0)
    assert loss.tolist() == pytest.approx(
        [1.0, 0.5, 0.0, 2**0.5 - 1, 1.0, 1.0 + 1.386294], abs=1e-5
    )
    assert relative_error_loss(error, 0.1)[0].item() == pytest.approx(3.0, abs=1e-4)


def test_unknown_values_are_marked_and_constant_features_left_out():
    features = np.array([[1.0, 5.0, 2.0], [2.0, 5.0, np.nan], [3.0, 5.0, 4.0]])
    scaling = InputScaling.fit(features, ("a", "b", "c"))
    assert scaling.names == ("a", "c")
    assert scaling.marked.tolist() == [1]
    inputs = scaling.inputs(np.array([[2.0, np.nan], [1e9, 3.0]]))
    assert inputs.tolist() == [[0.0, 0.0, 1.0], [6.0, 0.0, 0.0]]
    with pytest.raises(ValueError, match="varies"):
        InputScaling.fit(features[:, 1:2], ("b",))


@pytest.mark.parametrize("name", ["model.json", "weights.npz"])
def test_damaged_files_are_bad_input(model, tmp_path, name):
    model.save(tmp_path)
    content = (tmp_path / name).read_bytes()
    for damaged in (b"", content[: len(content) // 2]):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(BadInput, match="feature-network"):
            load_model("feature-network", tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(BadInput, match="feature-network"):
        load_model("feature-network", tmp_path)


def test_weights_that_do_not_fit_together_are_refused(model, tmp_path):
    assert isinstance(model, FeatureNetwork)
    arrays = {name: getattr(model.weights, name) for name in Weights.__slots__}
    with pytest.raises(ValueError, match="out_bias"):
        Weights(**{**arrays, "out_bias": arrays["out_bias"][:, :-1]})
    with pytest.raises(ValueError, match="finite"):
        Weights(**{**arrays, "skip": np.full_like(arrays["skip"], np.nan)})


def test_a_saved_network_answers_without_torch_and_lightgbm(model, fit, tmp_path):
    """The base dependencies suffice: an import of any other library fails there.

    The child has our environment: ``OPENBLAS_CORETYPE`` there decides the last bits of float32.
    """
    folder = tmp_path / "model"
    folder.mkdir()
    model.save(folder)
    np.save(tmp_path / "features.npy", fit.rows.features)
    program = """
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "lightgbm", "sklearn", "scipy", "transformers", "deepspeed"}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocked())
from pathlib import Path
import numpy as np, pyarrow as pa
from trainer.interface import Rows
from trainer.registry import load_model
features = np.load("features.npy")
rows = Rows(features=features, samples=pa.table({}), kernels=pa.table({}), kernel_row=np.zeros(len(features), int))
print(json.dumps(load_model("feature-network", Path("model")).predict(rows).log2_ns.tolist()))
"""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    np.testing.assert_array_equal(json.loads(answer), model.predict(fit.rows).log2_ns)
