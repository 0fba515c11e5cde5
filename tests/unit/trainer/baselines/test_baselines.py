"""Each model: learns what it should, repeats itself, reads back equal."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from llmperf_common.config import ConfigError
from llmperf_common.extras import MissingExtra, require
from llmperf_common.features.features import feature_names
from tests.support.factories.synthetic_dataset import FLOOR_NS, QUICK, make_dataset
from trainer.baselines.gbdt import Gbdt, family_folds, fit_gbdt
from trainer.baselines.nearest_kernel import NearestKernel
from trainer.baselines.roofline import AnalyticRoofline
from trainer.baselines.simple import GlobalMedian, LaunchFloorLogLinear, weighted_median
from trainer.config import load_train_config
from trainer.data.dataset import row_weights
from trainer.errors import BadInput
from trainer.interface import FitData, Predictor, Rows
from trainer.life.fitting import COMPARISONS, fit_model, out_of_fold_errors
from trainer.registry import load_model

CONFIG = load_train_config("gbdt", overrides=QUICK)


def silent(_line: str) -> None:
    return None


@pytest.fixture(scope="module")
def fit() -> FitData:
    data = make_dataset(num_kernels=16, num_configs=40, seed=3).data()
    _, family = np.unique(data.family_id, return_inverse=True)
    return FitData(
        rows=data.rows,
        log2_ns=data.log2_ns,
        family=family.astype(np.int64),
        weight=np.ones(len(data)),
    )


def rows_of(features: np.ndarray) -> Rows:
    return Rows(
        features=features,
        samples=pa.table({"none": pa.nulls(len(features))}),
        kernels=pa.table({"none": pa.nulls(1)}),
        kernel_row=np.zeros(len(features), dtype=np.int64),
    )


@pytest.mark.parametrize("name", ["gbdt", *COMPARISONS])
def test_fits_alike_saves_and_loads_bit_by_bit(name, fit, tmp_path):
    model = fit_model(name, fit, CONFIG, silent)
    assert isinstance(model, Predictor)
    assert model.name == name
    model.save(tmp_path)
    loaded = load_model(name, tmp_path)
    predicted = model.predict(fit.rows).log2_ns
    assert predicted.shape == (len(fit.rows),)
    assert np.all(np.isfinite(predicted))
    np.testing.assert_array_equal(loaded.predict(fit.rows).log2_ns, predicted)
    again = fit_model(name, fit, CONFIG, silent)
    np.testing.assert_array_equal(again.predict(fit.rows).log2_ns, predicted)
    # One row alone predicts as it does among others: a sweep must not change a time.
    one = fit.rows.take(np.array([7]))
    np.testing.assert_array_equal(model.predict(one).log2_ns, predicted[7:8])
    assert all(path.suffix in {".json", ".txt", ".parquet"} for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["gbdt", *COMPARISONS])
@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1, "name": "other"}'])
def test_damaged_models_are_bad_input(name, text, tmp_path):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(BadInput, match=r"model\.json"):
        load_model(name, tmp_path)


def test_a_tree_file_cut_short_is_bad_input(fit, tmp_path):
    fit_model("gbdt", fit, CONFIG, silent).save(tmp_path)
    trees = (tmp_path / "trees.txt").read_text()
    (tmp_path / "trees.txt").write_text(trees[: len(trees) // 2])
    with pytest.raises(BadInput, match="cut short"):
        load_model("gbdt", tmp_path)


@pytest.mark.parametrize("value", ["none", "nan"])
def test_a_tree_file_that_lightgbm_cannot_read_is_bad_input(fit, tmp_path, value):
    fit_model("gbdt", fit, CONFIG, silent).save(tmp_path)
    trees = (tmp_path / "trees.txt").read_text()
    changed = re.sub(r"\[learning_rate: .*\]", f"[learning_rate: {value}]", trees)
    assert changed != trees
    (tmp_path / "trees.txt").write_text(changed)
    with pytest.raises(BadInput, match=r"trees\.txt: .*copy the run anew"):
        load_model("gbdt", tmp_path)


def test_unknown_models_are_named(fit, tmp_path):
    with pytest.raises(BadInput, match="global-median"):
        load_model("oracle", tmp_path)
    with pytest.raises(ValueError, match="oracle"):
        fit_model("oracle", fit, CONFIG, silent)


def test_log_linear_recovers_floor_plus_power_law():
    generator = np.random.default_rng(0)
    names = feature_names()
    features = np.zeros((600, len(names)))
    items = generator.uniform(8, 24, 600)
    features[:, names.index("log2_work_items")] = items
    features[:, names.index("log2_launch_floor_ns")] = np.log2(FLOOR_NS)
    truth = np.log2(FLOOR_NS + 2 ** (0.9 * items - 4))
    fit = FitData(
        rows=rows_of(features),
        log2_ns=truth + generator.normal(0, 0.01, 600),
        family=np.arange(600),
        weight=np.ones(600),
    )
    model = LaunchFloorLogLinear.fit(fit, ridge=0.1)
    error = model.predict(fit.rows).log2_ns - truth
    assert np.sqrt(np.mean(error**2)) < 0.05


def test_log_linear_takes_a_penalty_that_rounding_loses(fit):
    model = LaunchFloorLogLinear.fit(fit, ridge=5e-324)
    assert np.all(np.isfinite(model.predict(fit.rows).log2_ns))


def test_log_linear_stays_finite_far_outside_and_with_unknowns(fit):
    model = LaunchFloorLogLinear.fit(fit, ridge=10.0)
    far = np.full((2, len(feature_names())), 1e6)
    far[0, feature_names().index("log2_launch_floor_ns")] = 12.0
    far[1] = np.nan
    predicted = model.predict(rows_of(far)).log2_ns
    assert np.all(np.isfinite(predicted))


def test_global_median_is_the_weighted_median(fit):
    assert GlobalMedian.fit(fit).log2_ns == pytest.approx(np.median(fit.log2_ns), abs=0.05)
    values = np.array([1.0, 2.0, 3.0])
    assert weighted_median(values, np.array([1.0, 1.0, 5.0])) == 3.0


def test_trees_beat_the_line_and_the_line_the_median(fit):
    def rmse(name: str) -> float:
        model = fit_model(name, fit, CONFIG, silent)
        return float(np.sqrt(np.mean((model.predict(fit.rows).log2_ns - fit.log2_ns) ** 2)))

    gbdt, line, median = (rmse(name) for name in ("gbdt", "log-linear", "global-median"))
    assert gbdt < line < median


def test_early_stopping_takes_fewer_trees(fit):
    held_out = next(iter(family_folds(fit.family, 3, 0)))
    inner, outer = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    data = FitData(
        rows=fit.rows.take(inner),
        log2_ns=fit.log2_ns[inner],
        family=fit.family[inner],
        weight=fit.weight[inner],
        validation=fit.rows.take(outer),
        validation_log2_ns=fit.log2_ns[outer],
    )
    config = CONFIG.gbdt.model_copy(update={"num_rounds": 2000, "early_stopping_rounds": 20})
    model = fit_gbdt(data, fit=CONFIG.train, config=config, progress=silent)
    assert 1 <= model.chosen["num_trees"] < 2000
    assert model.booster.num_trees() == model.chosen["num_trees"]


def test_tuning_tries_the_grid_and_takes_the_best(fit):
    lines: list[str] = []
    config = CONFIG.gbdt.model_copy(update={"tune": True, "num_rounds": 60, "tune_rows": 400})
    model = fit_gbdt(fit, fit=CONFIG.train, config=config, progress=lines.append)
    tried = model.chosen["tried"]
    assert len(tried) == 4
    assert model.chosen["rmse_log2"] == min(point["rmse_log2"] for point in tried)
    assert len(lines) == 5


def test_folds_keep_families_together_and_hold_each_out_once(fit):
    folds = list(family_folds(fit.family, 3, 0))
    assert np.array_equal(np.sum(folds, axis=0), np.ones(len(fit.family)))
    for held_out in folds:
        assert not set(fit.family[held_out]) & set(fit.family[~held_out])


def test_out_of_fold_errors_are_larger_than_fitted_ones(fit):
    model = fit_model("gbdt", fit, CONFIG, silent)
    found = out_of_fold_errors("gbdt", fit, CONFIG, model, silent)
    assert found is not None
    errors, rows = found
    assert sorted(rows.tolist()) == list(range(len(fit.rows)))
    fitted = fit.log2_ns - model.predict(fit.rows).log2_ns
    assert np.std(errors) > 1.5 * np.std(fitted)
    single = FitData(
        rows=fit.rows, log2_ns=fit.log2_ns, family=np.zeros(len(fit.rows), int), weight=fit.weight
    )
    assert out_of_fold_errors("gbdt", single, CONFIG, model, silent) is None


def test_weights_balance_kernels_and_decades():
    log2_ns = np.log2(np.array([1e3, 2e3, 3e3, 5e6]))
    kernel = np.array([0, 0, 0, 1])
    assert row_weights(log2_ns, kernel, "none").tolist() == [1, 1, 1, 1]
    by_kernel = row_weights(log2_ns, kernel, "kernel")
    assert by_kernel[:3].sum() == pytest.approx(by_kernel[3])
    by_decade = row_weights(log2_ns, kernel, "decade")
    assert by_decade[3] / by_decade[0] == pytest.approx(3**0.5)
    assert by_decade.mean() == pytest.approx(1)
    with pytest.raises(ValueError, match="moon"):
        row_weights(log2_ns, kernel, "moon")


def test_presets_resolve_and_unknown_ones_are_listed():
    assert load_train_config("gbdt").model == "gbdt"
    assert load_train_config("log-linear").model == "log-linear"
    with pytest.raises(ConfigError, match="gbdt, log-linear"):
        load_train_config("codegen-2000b")
    with pytest.raises(ConfigError, match=r"gbdt\.num_leaves"):
        load_train_config("gbdt", overrides=["gbdt.num_leafs=3"])
    with pytest.raises(ConfigError, match="at least 2"):
        load_train_config("gbdt", overrides=["gbdt.num_leaves=1"])


def test_importing_the_trainer_loads_no_heavy_library():
    code = (
        "import sys, trainer, trainer.life.train, trainer.evaluation.evaluate, trainer.prediction.predict\n"
        "heavy = {'lightgbm', 'sklearn', 'scipy', 'torch', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[4])


def test_importing_the_trainer_itself_loads_nothing():
    code = "import sys, trainer; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[4])


def test_a_missing_extra_names_what_to_install():
    with pytest.raises(MissingExtra, match=r'pip install "llmperf\[train\]"') as caught:
        require("no_such_library_of_ours", "train")
    assert isinstance(caught.value, ImportError)
    assert require("json", "train") is json


def test_a_gbdt_keeps_the_names_of_its_features(fit, tmp_path):
    model = fit_model("gbdt", fit, CONFIG, silent)
    assert isinstance(model, Gbdt)
    model.save(tmp_path)
    loaded = Gbdt.load(tmp_path)
    assert loaded.names == feature_names()
    assert loaded.booster.feature_name() == list(feature_names())


def test_the_roofline_is_the_feature_and_the_median_where_nothing_is_known(fit):
    model = AnalyticRoofline.fit(fit)
    column = feature_names().index("log2_roofline_ns")
    features = fit.rows.features.copy()
    features[3, column] = np.nan
    predicted = model.predict(dataclasses.replace(fit.rows, features=features)).log2_ns
    expected = np.where(np.arange(len(features)) == 3, np.median(fit.log2_ns), features[:, column])
    assert predicted == pytest.approx(expected, abs=0.05)


def with_sources(rows: Rows, sources: list[str | None]) -> Rows:
    place = rows.kernels.column_names.index("source")
    kernels = rows.kernels.set_column(place, "source", pa.array(sources, pa.string()))
    return dataclasses.replace(rows, kernels=kernels)


def test_the_nearest_kernel_is_found_by_its_source_and_answers_with_its_times(fit):
    model = NearestKernel.fit(fit)
    sources = fit.rows.kernels.column("source").to_pylist()
    renamed = [text.replace("float a", "float q").replace("  a +=", "  q +=") for text in sources]
    own = model.predict(fit.rows).log2_ns
    copies = model.predict(with_sources(fit.rows, renamed)).log2_ns
    assert np.mean(np.abs(own - fit.log2_ns)) < 0.5
    np.testing.assert_allclose(copies, own)
    # With another kernel's source it says what that one takes at these sizes.
    swapped = model.predict(with_sources(fit.rows, sources[1:] + sources[:1])).log2_ns
    assert np.mean(np.abs(swapped - fit.log2_ns)) > 2 * np.mean(np.abs(own - fit.log2_ns))


def test_a_kernel_without_a_source_has_the_median_residual(fit):
    model = NearestKernel.fit(fit)
    nothing = with_sources(fit.rows, [None] * len(fit.rows.kernels))
    column = feature_names().index("log2_roofline_ns")
    residual = model.predict(nothing).log2_ns - fit.rows.features[:, column]
    assert residual == pytest.approx(model.fallback_residual)
    bare = NearestKernel.fit(dataclasses.replace(fit, rows=nothing))
    assert len(bare.sources) == 0
    assert np.all(np.isfinite(bare.predict(fit.rows).log2_ns))
