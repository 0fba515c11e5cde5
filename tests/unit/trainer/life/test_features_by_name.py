"""A run that was trained with fewer features than this release computes still predicts the same."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmperf_common.features.features import feature_names, named_features, unknown_features
from tests.support.factories.synthetic_dataset import QUICK, make_dataset
from trainer.config import load_train_config
from trainer.data.training_range import training_range
from trainer.errors import BadInput
from trainer.life.publishing import mark_published
from trainer.life.train import train
from trainer.run.folder import RANGE_FILE, write_json
from trainer.run.loaded import load_run


def test_columns_are_taken_by_name():
    names = feature_names()
    features = np.arange(3.0 * len(names)).reshape(3, -1)
    assert named_features(features, names) is features
    chosen = (names[5], names[0])
    np.testing.assert_array_equal(named_features(features, chosen), features[:, [5, 0]])
    assert unknown_features([*chosen, "moon"]) == ["moon"]
    with pytest.raises(ValueError, match="moon"):
        named_features(features, ("moon",))


@pytest.fixture(scope="module")
def small():
    return make_dataset(num_kernels=20, num_configs=16, seed=5).data()


def test_a_run_of_an_older_release_predicts_the_same(small, tmp_path, monkeypatch):
    """An older release computed fewer features: here all but some in the middle and the last."""
    older = tuple(name for name in feature_names() if name not in _ADDED_SINCE)
    column = [feature_names().index(name) for name in older]
    config = load_train_config("log-linear", overrides=QUICK)
    out = tmp_path / "run"
    train(small, config, out, lambda _line: None)
    # What that release wrote: its names in its order, and ranges of its columns.
    model = out / "model" / "model.json"
    content = json.loads(model.read_text())
    content["terms"] = [one for one in content["terms"] if one["feature"] in older]
    model.write_text(json.dumps(content))
    record = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**record, "features": list(older)}))
    ranges = training_range(small.rows.features[:, column], older, small.rows.kernel_row)
    write_json(out / RANGE_FILE, ranges.to_json())
    mark_published(out, {}, keep_fit=False)  # sizes and hashes of what was written since
    run = load_run(out)
    assert run.known.names == older
    predicted = run.model.predict(small.rows).log2_ns
    with monkeypatch.context() as patch:
        patch.setattr("trainer.baselines.simple.named_features", lambda features, _names: features)
        alone = run.model.predict(
            small.rows.__class__(
                features=small.rows.features[:, column],
                samples=small.rows.samples,
                kernels=small.rows.kernels,
                kernel_row=small.rows.kernel_row,
            )
        ).log2_ns
    np.testing.assert_array_equal(predicted, alone)


def test_a_run_of_a_newer_release_says_which_feature_is_not_known(small, tmp_path):
    out = tmp_path / "run"
    train(small, load_train_config("log-linear", overrides=QUICK), out, lambda _line: None)
    record = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(
        json.dumps({**record, "features": [*record["features"], "moon"]})
    )
    mark_published(out, {}, keep_fit=False)
    with pytest.raises(BadInput, match="moon"):
        load_run(out)


_ADDED_SINCE = {"lane_waste", "log2_scalar_max", feature_names()[-1]}
