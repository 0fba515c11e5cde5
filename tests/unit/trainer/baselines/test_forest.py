"""Trees in numpy: the same sums as LightGBM's, with unknown values, and the ensemble made with them."""

from __future__ import annotations

import dataclasses

import lightgbm
import numpy as np
import pytest

from llmperf_common.features.features import WORK_FEATURE, feature_names
from llmperf_common.features.work_features import WORK_MEANINGS
from tests.support.factories.synthetic_dataset import make_dataset
from tests.unit.trainer.baselines.test_feature_network import CONFIG as NETWORK_CONFIG
from trainer.baselines.feature_ensemble import FeatureEnsemble, combined
from trainer.baselines.forest import Forest
from trainer.baselines.gbdt import grow_forest
from trainer.errors import BadInput
from trainer.interface import FitData, Predictor
from trainer.life.fitting import fit_model
from trainer.registry import load_model


def grown(features: np.ndarray, target: np.ndarray, **more: object) -> lightgbm.Booster:
    parameters = {
        "num_leaves": 31,
        "min_data_in_leaf": 5,
        "num_threads": 1,
        "verbosity": -1,
        "deterministic": True,
        "force_row_wise": True,
        **more,
    }
    return lightgbm.train(parameters, lightgbm.Dataset(features, target), num_boost_round=40)


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(2)
    features = generator.normal(size=(3000, 12))
    target = features[:, 0] * features[:, 1] + np.sin(3 * features[:, 2])
    features[generator.random(features.shape) < 0.1] = np.nan
    features[:, 3] = np.where(features[:, 3] > 0, 0.0, features[:, 3])
    features[:, 4] = np.nan_to_num(features[:, 4])  # never unknown in training
    return features, target


@pytest.mark.parametrize("objective", ["regression", "regression_l1"])
@pytest.mark.parametrize("use_missing", [True, False])
def test_the_sums_are_lightgbms(table, objective, use_missing):
    features, target = table
    booster = grown(features, target, objective=objective, use_missing=use_missing)
    forest = Forest.from_text(booster.model_to_string())
    generator = np.random.default_rng(3)
    asked = np.concatenate([features, generator.normal(size=(500, 12)) * 5])
    asked[generator.random(asked.shape) < 0.2] = np.nan
    asked[-1] = np.nan
    asked[-2] = 0.0
    np.testing.assert_allclose(forest.predict(asked), booster.predict(asked), rtol=0, atol=1e-9)


def test_a_row_alone_is_as_among_others_and_arrays_read_back(table):
    features, target = table
    forest = Forest.from_text(grown(features, target).model_to_string())
    together = forest.predict(features)
    np.testing.assert_array_equal(forest.predict(features[9:10]), together[9:10])
    again = Forest.from_arrays(forest.arrays())
    np.testing.assert_array_equal(again.predict(features), together)
    assert forest.predict(features[:0]).shape == (0,)


def test_trees_of_one_leaf_count(table):
    features, _ = table
    booster = grown(features, np.full(len(features), 3.0))
    forest = Forest.from_text(booster.model_to_string())
    np.testing.assert_allclose(forest.predict(features[:5]), booster.predict(features[:5]))


def test_what_is_no_forest_is_refused(table):
    features, target = table
    text = grown(features, target).model_to_string()
    with pytest.raises(ValueError, match="truncated"):
        Forest.from_text(text[: len(text) // 3])
    arrays = Forest.from_text(text).arrays()
    with pytest.raises(ValueError, match="back"):
        Forest.from_arrays({**arrays, "left": np.zeros_like(arrays["left"])})
    with pytest.raises(ValueError, match="out of the arrays"):
        Forest.from_arrays({**arrays, "root": arrays["root"] + len(arrays["right"])})
    with pytest.raises(ValueError, match="shape"):
        Forest.from_arrays({**arrays, "threshold": arrays["threshold"][:-1]})
    with pytest.raises(ValueError, match="missing"):
        Forest.from_arrays({name: array for name, array in arrays.items() if name != "leaf"})
    whole = grown(np.round(np.nan_to_num(features)), target, zero_as_missing=True)
    with pytest.raises(ValueError, match="not numerical"):
        Forest.from_text(whole.model_to_string())


CONFIG = NETWORK_CONFIG.model_copy(
    update={
        "model": "feature-ensemble",
        "feature_network": NETWORK_CONFIG.feature_network.model_copy(
            update={"networks": 1, "steps": 100}
        ),
        "feature_ensemble": NETWORK_CONFIG.feature_ensemble.model_copy(
            update={"trees": 40, "caution": 1.0}
        ),
    }
)


@pytest.fixture(scope="module")
def fit() -> FitData:
    data = make_dataset(num_kernels=16, num_configs=40, seed=3).data()
    _, family = np.unique(data.family_id, return_inverse=True)
    index = np.arange(len(data))
    return FitData(
        rows=data.rows,
        log2_ns=data.log2_ns,
        family=family.astype(np.int64),
        weight=np.ones(len(data)),
        validation=data.rows.take(index[::3]),
        validation_log2_ns=data.log2_ns[::3],
    )


@pytest.fixture(scope="module")
def model(fit: FitData) -> Predictor:
    return fit_model("feature-ensemble", fit, CONFIG, lambda _line: None)


def test_an_ensemble_takes_the_shorter_answer_and_reads_back_bit_by_bit(model, fit, tmp_path):
    assert isinstance(model, FeatureEnsemble)
    said = model.predict(fit.rows)
    trees = model.forest.predict(fit.rows.features)
    networks = model.network.predict(fit.rows).log2_ns
    np.testing.assert_allclose(said.log2_ns, np.minimum(trees, networks), atol=1e-9)
    model.save(tmp_path)
    loaded = load_model("feature-ensemble", tmp_path).predict(fit.rows)
    np.testing.assert_array_equal(loaded.log2_ns, said.log2_ns)
    np.testing.assert_array_equal(loaded.spread, said.spread)


def test_spread_is_larger_where_the_two_disagree(model, fit):
    assert isinstance(model, FeatureEnsemble)
    said = model.predict(fit.rows)
    apart = np.abs(
        model.forest.predict(fit.rows.features) - model.network.predict(fit.rows).log2_ns
    )
    assert said.spread is not None
    assert np.corrcoef(said.spread, apart)[0, 1] > 0.5


def test_a_damaged_forest_is_bad_input(model, tmp_path):
    model.save(tmp_path)
    path = tmp_path / "forest.npz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="forest"):
        load_model("feature-ensemble", tmp_path)


def test_trees_see_no_more_launches_of_a_kernel_than_wanted(fit):
    config = CONFIG.feature_ensemble.model_copy(
        update={"configs_per_kernel": 3, "trees": 2, "min_rows_in_leaf": 2}
    )
    forest, names = grow_forest(fit, fit=CONFIG.train, config=config)
    assert len(forest.root) == 2
    assert len(names) == fit.rows.features.shape[1]


def test_caution_moves_towards_shorter_trees_only():
    networks, trees = np.array([14.0, 10.0, 12.0]), np.array([10.0, 14.0, 12.0])
    assert combined(networks, trees, 0.0).tolist() == networks.tolist()
    assert combined(networks, trees, 0.25).tolist() == [13.0, 10.0, 12.0]
    assert combined(networks, trees, 1.0).tolist() == [10.0, 10.0, 12.0]


@pytest.fixture(scope="module")
def partly_counted(fit: FitData) -> FitData:
    """The same rows, of which every second has work; its time follows from nothing else."""
    features = fit.rows.features.copy()
    names = feature_names()
    counted = [names.index(name) for name in WORK_MEANINGS]
    generator = np.random.default_rng(5)
    features[::2, counted] = generator.normal(size=(len(features[::2]), len(counted)))
    features[::2, names.index(WORK_FEATURE)] = fit.log2_ns[::2]
    return dataclasses.replace(fit, rows=dataclasses.replace(fit.rows, features=features))


def test_launches_without_work_are_predicted_as_if_none_had_any(model, partly_counted, tmp_path):
    config = CONFIG.model_copy(
        update={
            "feature_ensemble": CONFIG.feature_ensemble.model_copy(
                update={"min_counted_kernels": 16}
            )
        }
    )
    found = fit_model("feature-ensemble", partly_counted, config, lambda _line: None)
    assert isinstance(found, FeatureEnsemble)
    assert found.counted is not None
    said = found.predict(partly_counted.rows)
    before = model.predict(partly_counted.rows)
    np.testing.assert_array_equal(said.log2_ns[1::2], before.log2_ns[1::2])
    np.testing.assert_array_equal(said.spread[1::2], before.spread[1::2])
    error = np.abs(said.log2_ns - partly_counted.log2_ns)
    assert np.median(error[::2]) < np.median(error[1::2])
    found.save(tmp_path)
    again = load_model("feature-ensemble", tmp_path).predict(partly_counted.rows)
    np.testing.assert_array_equal(again.log2_ns, said.log2_ns)
    np.testing.assert_array_equal(again.spread, said.spread)


def test_too_few_counted_kernels_get_no_ensemble_of_their_own(partly_counted):
    config = CONFIG.model_copy(
        update={
            "feature_ensemble": CONFIG.feature_ensemble.model_copy(
                update={"min_counted_kernels": 17, "trees": 2}
            ),
            "feature_network": CONFIG.feature_network.model_copy(update={"steps": 2}),
        }
    )
    found = fit_model("feature-ensemble", partly_counted, config, lambda _line: None)
    assert isinstance(found, FeatureEnsemble)
    assert found.counted is None


def test_the_part_without_work_is_taken_over_from_another_run(model, partly_counted, tmp_path):
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    config = CONFIG.model_copy(
        update={
            "feature_ensemble": CONFIG.feature_ensemble.model_copy(
                update={"base": str(tmp_path), "min_counted_kernels": 16, "trees": 2}
            ),
            "feature_network": CONFIG.feature_network.model_copy(update={"steps": 2}),
        }
    )
    found = fit_model("feature-ensemble", partly_counted, config, lambda _line: None)
    rows = partly_counted.rows.take(np.arange(1, len(partly_counted.rows), 2))
    np.testing.assert_array_equal(found.predict(rows).log2_ns, model.predict(rows).log2_ns)
