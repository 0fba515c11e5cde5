"""Numbers in a run's files that no training writes: one message, and never NaN in an answer."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmperf.prediction.analysing import Known
from llmperf.prediction.filling import planned_filler
from llmperf_common.features.features import feature_names
from llmperf_common.features.launch_columns import device_from_mapping
from llmperf_common.statistics.conformal import Conformal
from llmperf_common.statistics.splits import Split, SplitError
from tests.support.factories.synthetic_dataset import DEVICE, trained
from trainer.baselines.feature_network import FeatureNetwork
from trainer.baselines.simple import GlobalMedian, LaunchFloorLogLinear
from trainer.data.foreign_files import MEND
from trainer.data.training_range import TrainingRange
from trainer.errors import BadInput
from trainer.evaluation.scoring import predict_rows
from trainer.interface import Predicted
from trainer.prediction.arguments import read_arguments
from trainer.prediction.predict import PredictRequest, predict
from trainer.run.answers import check_intervals, check_spread, checked_prediction
from trainer.run.kernel_factors import FewShot
from trainer.run.loaded import load_run

ODD = ["nan", "abc", None, True, [1], {}, 1e308, -1e308]


def document(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((trained()[2].folder / name).read_text())
    return content


def with_value(content: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Return a copy with ``value`` at a path of keys and positions, such as ``a/0/b``."""
    changed = deepcopy(content)
    *inner, last = path.split("/")
    place: Any = changed
    for one in inner:
        place = place[int(one) if isinstance(place, list) else one]
    place[int(last) if isinstance(place, list) else last] = value
    return changed


CONFORMAL = {
    "level": [*ODD, "0.9", 0, 1, 5, -1],
    "pooled/half_width_log2": [*ODD, -1],
    "pooled/num_rows": [*ODD, 0, 1.5],
    "pooled/num_groups": [*ODD, -1],
    "pooled/guarantee": ["all", None],
    "pooled": [None, 5, {}, {"half_width_log2": 1}],
    "bins": [None, [], {"a": None}, {"a": {}}],
    "by_spread": ["yes", 1, None],
}
RANGE = {
    "ranges/log2_local_items": [
        "nan",
        "abc",
        True,
        {},
        1e308,
        [1],
        [1, 2, 3],
        ["nan", "nan"],
        [5, 4],
        [None, 1],
    ],
    "ranges": [None, [], 5],
    "static/far": [*ODD, -1],
    "static/scale/0": [*ODD, 0, -1, 1e-300],
    "static/centre/0": ODD,
    "static/kernels/0/0": ODD,
    "static/kernels": [None, "abc", [1], [[1]], [None]],
    "static/features/0": ["no feature", None, 5, {}],
    "static/features": [None, "abc", {}, []],
}
FEW_SHOT = {
    "level": [*ODD, 0, 1],
    "noise_log2": [*ODD, 0, -1],
    "scales_log2": [None, "abc", [], [1], ["nan"] * 8],
    "weights/0": [*ODD, -1, 2],
    "bands": [None, [], {}, {"x": {}}, {"0": {}}, {"-1": {}}, {"1": None}, {"1" * 99: {}}],
    "bands/1/half_width_log2": [*ODD, -1],
}
SPLIT = {
    "seed": ["0", "nan", None, 1.5, True],
    "held_out/share": [*ODD, -1, 2],
    "parts/train": [5, None],
}
KINDS: dict[str, tuple[Callable[[Any], object], str, dict[str, list[Any]]]] = {
    "conformal": (Conformal.from_json, "conformal.json", CONFORMAL),
    "range": (TrainingRange.from_json, "training_range.json", RANGE),
    "few shot": (FewShot.from_json, "few_shot.json", FEW_SHOT),
    "split": (Split.from_json, "split.json", SPLIT),
}


@pytest.mark.parametrize(
    ("kind", "path"), [(kind, path) for kind, (*_, paths) in KINDS.items() for path in paths]
)
def test_numbers_that_no_training_writes(kind: str, path: str) -> None:
    read, name, paths = KINDS[kind]
    content = document(name)
    assert read(content)
    for value in paths[path]:
        with pytest.raises((ValueError, SplitError), match=name):
            read(with_value(content, path, value))


DEVICE_FACTS = {
    "compute_units": [*ODD, 0, -1, "5"],
    "peak_dram_gbps": ["nan", -1, 1e300, "5", [], True],
    "last_level_cache_bytes": [*ODD, -1, -(2**70), 2**70],
    "launch_floor_ns": ["inf", -1.0, "1"],
    "local_memory_bytes": [*ODD, -5],
    "max_work_item_sizes": [5, ["nan"], [0], [-1], [None]],
    "max_clock_mhz": [-1, "nan"],
}


@pytest.mark.parametrize("name", DEVICE_FACTS)
def test_facts_of_a_device_that_none_has(name: str) -> None:
    content = document("device.json")["devices"][0]
    assert device_from_mapping(content)
    for value in DEVICE_FACTS[name]:
        with pytest.raises(ValueError, match="device record"):
            device_from_mapping({**content, name: value})


def test_unknown_facts_of_a_device_are_null_or_zero() -> None:
    content = document("device.json")["devices"][0]
    for name in ("peak_dram_gbps", "launch_floor_ns", "max_clock_mhz", "peak_fp64_gflops"):
        for value in (None, 0):
            assert not getattr(device_from_mapping({**content, name: value}), name)


@pytest.mark.parametrize(
    ("num", "says"), [(60_000, "more than 4096 features"), (4096, "a static feature twice")]
)
def test_many_features_take_little_time(num: int, says: str) -> None:
    content = document("training_range.json")
    names = [f"f{number}" for number in range(num)]
    content["ranges"] = dict.fromkeys(names)
    content["static"] = {"far": 1, "features": [names[-1]] * len(names), "kernels": []}
    content["static"] |= {"centre": [0] * len(names), "scale": [1] * len(names)}
    begin = time.monotonic()
    with pytest.raises(ValueError, match=says):
        TrainingRange.from_json(content)
    assert time.monotonic() - begin < 2


def rewritten(folder: Path, name: str, content: dict[str, Any]) -> Path:
    """Write a file of a run, and list it in the run's marker."""
    (folder / name).write_text(json.dumps(content))
    marker = json.loads((folder / "published.json").read_text())
    marker["files"][name]["bytes"] = (folder / name).stat().st_size
    (folder / "published.json").write_text(json.dumps(marker))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(trained()[2].folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "path", "value", "says"),
    [
        ("conformal.json", "pooled/half_width_log2", "abc", "half_width_log2 is 'abc'"),
        ("conformal.json", "level", "nan", "level is 'nan'"),
        ("training_range.json", "static/far", "nan", "far is 'nan'"),
        ("training_range.json", "ranges", {"dims": [1, 2]}, "has no range"),
        ("training_range.json", "static/kernels/0/0", "nan", r"kernels\[0\] is 'nan'"),
        ("few_shot.json", "noise_log2", -1, "noise_log2 is -1"),
        ("device.json", "devices/0/peak_dram_gbps", -1, "device record: peak_dram_gbps is -1"),
        ("device.json", "devices", [], "it lists no device"),
        ("device.json", "devices", [5], "no list of devices"),
        ("split.json", "held_out/share", "nan", "share is 'nan'"),
    ],
)
def test_a_run_with_such_a_number(
    folder: Path, name: str, path: str, value: object, says: str
) -> None:
    rewritten(folder, name, with_value(document(name), path, value))
    with pytest.raises(BadInput, match=rf"{folder}/{name}: .*{says}.*; {MEND}"):
        load_run(folder)


def test_a_training_range_without_the_local_size(folder: Path) -> None:
    content = document("training_range.json")
    del content["ranges"]["log2_local_items"]
    rewritten(folder, "training_range.json", content)
    with pytest.raises(BadInput, match="no range of the feature log2_local_items"):
        load_run(folder)


def test_a_training_range_with_another_feature(folder: Path) -> None:
    content = document("training_range.json")
    content["ranges"]["moon"] = [0, 1]
    rewritten(folder, "training_range.json", content)
    with pytest.raises(BadInput, match="does not compute the feature 'moon'"):
        load_run(folder)


MODELS: dict[str, tuple[Any, dict[str, Any], dict[str, list[Any]]]] = {
    "global-median": (GlobalMedian, {"log2_ns": 12.0}, {"log2_ns": [*ODD, "12", 501]}),
    "log-linear": (
        LaunchFloorLogLinear,
        {
            "terms": [
                {"feature": name, "mean": 0.0, "scale": 1.0, "coefficient": 0.5}
                for name in ("log2_launch_floor_ns", "log2_work_items")
            ],
            "intercept": 3.0,
            "fallback_floor_ns": 1000.0,
        },
        {
            "terms": [None, [], "ab", [5], [{}]],
            "terms/0/feature": ["moon", 5, None, "log2_work_items", "dims"],
            "terms/0/mean": ODD,
            "terms/0/scale": [*ODD, 0, -1],
            "terms/0/coefficient": ODD,
            "intercept": ODD,
            "fallback_floor_ns": [*ODD, -1],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, (*_, paths) in MODELS.items() for path in paths]
)
def test_numbers_of_a_baseline(tmp_path: Path, name: str, path: str) -> None:
    kind, content, paths = MODELS[name]
    whole = {"schema": 1, "name": name, **content}
    file = tmp_path / "model.json"
    file.write_text(json.dumps(whole))
    assert kind.load(tmp_path)
    for value in paths[path]:
        file.write_text(json.dumps(with_value(whole, path, value)))
        with pytest.raises(ValueError, match=r"model\.json"):
            kind.load(tmp_path)


def network(folder: Path, changes: dict[str, Any] | None = None, **arrays: Any) -> FeatureNetwork:
    """Write a network of two features, one with an indicator, and load it."""
    shapes = {
        "into": (1, 3, 2), "into_bias": (1, 2), "norm": (1, 1, 2, 2), "up": (1, 1, 2, 4),
        "up_bias": (1, 1, 4), "down": (1, 1, 4, 2), "down_bias": (1, 1, 2), "last_norm": (1, 2, 2),
        "out": (1, 2, 2), "out_bias": (1, 2), "skip": (1, 3, 1),
    }  # fmt: skip
    halves: dict[str, Any] = {
        name: arrays.get(name, np.zeros(shape, np.float16)) for name, shape in shapes.items()
    }
    np.savez(folder / "weights.npz", **halves)
    terms = [{"feature": name, "mean": 0.0, "scale": 1.0} for name in feature_names()[:2]]
    content = {"schema": 1, "name": "feature-network", "centre_log2_ns": 12.0, "spread_scale": 1.0}
    content |= {"features": terms, "marked": [0], "chosen": {}}
    for path, value in (changes or {}).items():
        content = with_value(content, path, value)
    (folder / "model.json").write_text(json.dumps(content))
    return FeatureNetwork.load(folder)


NETWORK = {
    "centre_log2_ns": [*ODD, 501],
    "spread_scale": [*ODD, -1],
    "marked": [None, "ab", {}, [1_000_000], [-1], ["0"], [True], [0, 1, 0], []],
    "features": [None, [], {}, [5]],
    "features/0/feature": ["moon", None, 5, feature_names()[1]],
    "features/0/mean": ODD,
    "features/0/scale": [*ODD, 0, -1],
}


@pytest.mark.parametrize("path", NETWORK)
def test_numbers_of_a_network(tmp_path: Path, path: str) -> None:
    assert network(tmp_path)
    for value in NETWORK[path]:
        with pytest.raises(ValueError, match=r"model\.json"):
            network(tmp_path, {path: value})


class Saying:
    """A model that predicts what it was given."""

    name, refits = "saying", False

    def __init__(self, log2_ns: list[float], spread: list[float] | None = None) -> None:
        given = None if spread is None else np.array(spread)
        self.said = Predicted(log2_ns=np.array(log2_ns), spread=given)

    def predict(self, rows: Any) -> Predicted:
        return self.said


@pytest.mark.parametrize(
    "said",
    [
        Saying([1.0, np.nan]), Saying([1.0, np.inf]), Saying([1.0, -np.inf]), Saying([1.0, 501.0]),
        Saying([1.0]), Saying([1.0, 2.0, 3.0]), Saying([1.0, 2.0], [1.0, np.nan]),
        Saying([1.0, 2.0], [1.0, np.inf]), Saying([1.0, 2.0], [1.0, -1.0]), Saying([1.0, 2.0], []),
    ],
)  # fmt: skip
def test_a_prediction_that_is_no_time(said: Saying) -> None:
    rows: Any = [0, 1]
    fit: Any = Saying([1.0, 2.0], [0.0, 1.0])
    assert checked_prediction(fit, rows, "R") is fit.said
    one: Any = said
    with pytest.raises(BadInput, match=r"R predicts .*; copy the run again"):
        checked_prediction(one, rows, "R")


def test_intervals_that_are_none() -> None:
    one = np.ones(1)
    check_intervals(one, one, "R")
    for low, high in ((1, np.inf), (np.nan, 1), (1, np.nan), (2, 1), (-1, 1), (np.inf, np.inf)):
        with pytest.raises(BadInput, match="R gives an interval"):
            check_intervals(one * low, one * high, "R")
    with pytest.raises(BadInput, match="predicts no spread"):
        check_spread(Predicted(log2_ns=one), by_spread=True, where="R")


def test_a_run_checks_what_its_model_predicts() -> None:
    run = load_run(trained()[2].folder)
    said: Any = Saying([np.nan])
    rows: Any = [0]
    with pytest.raises(BadInput, match=f"{run.folder}: model gbdt predicts a time"):
        replace(run, model=said).predict(rows)


def test_an_evaluation_checks_all_models() -> None:
    _, data, summary = trained()
    run, index = load_run(summary.folder), np.arange(2)
    good: Any = Saying([10.0, 11.0], [1.0, 1.0])
    assert len(predict_rows(data, index, {"a": good, "b": good}, run.conformal)) == 2
    for bad in (Saying([1.0, np.nan]), Saying([1.0, 2.0], [1.0, np.nan])):
        for models in ({"a": good, "b": bad}, {"b": bad, "a": good}):
            odd: Any = models
            with pytest.raises(BadInput, match="folder: model b predicts"):
                predict_rows(data, index, odd, run.conformal, where="folder")
    wide = replace(
        run.conformal, bins={}, pooled=replace(run.conformal.pooled, half_width_log2=1e9)
    )
    with pytest.raises(BadInput, match="folder: model a gives an interval"):
        predict_rows(data, index, {"a": good}, wide, where="folder")


def test_a_prediction_checks_its_interval() -> None:
    dataset, _, summary = trained()
    run, kernel = load_run(summary.folder), dataset.kernels[5].kernel
    request = PredictRequest(
        kernel=kernel.name,
        signature=kernel.signature,
        global_size=(2**18,),
        local_size=(64,),
        filler=planned_filler(
            kernel, DEVICE, read_arguments(kernel.signature, {}), Known(analysis=None, said="")
        ),
    )
    assert np.isfinite(predict(run, request)["interval"]["high_ns"])
    pooled = replace(run.conformal.pooled, half_width_log2=1e9)
    wide = replace(run, conformal=replace(run.conformal, bins={}, pooled=pooled))
    with pytest.raises(BadInput, match=f"{run.folder}: model gbdt gives an interval"):
        predict(wide, request)
