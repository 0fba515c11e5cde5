"""Gradient-boosted trees on log2(ns). The only module that imports LightGBM.

The fit is deterministic for a given seed and thread count. Hyper-parameters are chosen from a small
grid by cross-validation. All kernels of a family are in one fold, because users predict kernels of
unseen families. Early stopping on the validation part (or on the folds, if that part is small)
gives the number of trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from llmperf_common.extras import require
from llmperf_common.features.features import feature_names, named_features
from trainer.baselines.forest import Forest
from trainer.baselines.simple import read_model_json, write_model_json
from trainer.baselines.trees_text import MAX_BYTES, check_trees
from trainer.config import FeatureEnsembleConfig, FitConfig, GbdtConfig
from trainer.data.dataset import row_weights
from trainer.data.foreign_files import read_ascii
from trainer.errors import BadInput
from trainer.interface import Codes, FitData, Floats, Predicted, Progress, Rows

TREES_FILE = "trees.txt"

GRID: tuple[dict[str, int], ...] = (
    {"num_leaves": 7, "min_rows_in_leaf": 20},
    {"num_leaves": 15, "min_rows_in_leaf": 10},
    {"num_leaves": 31, "min_rows_in_leaf": 10},
    {"num_leaves": 63, "min_rows_in_leaf": 40},
)
"""Hyper-parameters that tuning tries, from few to many leaves; few families need few leaves."""

_STOPPING_MIN_FAMILIES = 5
"""Minimum number of kernels of the validation part for early stopping on this part. With fewer
kernels, each kernel would have too much influence, so the folds of the tuning (if any) give the
number of trees."""

_ROUNDS_WITHOUT_STOPPING = 300
"""Maximum number of trees if neither a validation part nor folds give it."""
_LEAF_BYTES = 96
"""Bytes of a leaf, with its split, in LightGBM's text."""


@dataclass(slots=True)
class Gbdt:
    """A fitted ensemble; ``chosen`` has the hyper-parameters and the results of their tuning."""

    booster: Any
    names: tuple[str, ...]
    chosen: dict[str, Any]
    name: str = "gbdt"
    refits: bool = True

    def predict(self, rows: Rows) -> Predicted:
        """Return the sum of the trees for each row."""
        if len(rows) == 0:
            return Predicted(log2_ns=np.zeros(0))
        # One thread is fast enough, and the sum must not depend on the number of cores.
        features = named_features(rows.features, self.names)
        predicted = self.booster.predict(features, num_threads=1)
        return Predicted(log2_ns=np.asarray(predicted, dtype=np.float64))

    def save(self, folder: Path) -> None:
        """Write ``trees.txt`` (LightGBM's text format) and ``model.json``."""
        (folder / TREES_FILE).write_text(self.booster.model_to_string(), encoding="utf-8")
        write_model_json(
            folder, {"name": self.name, "features": list(self.names), "chosen": self.chosen}
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ValueError: A file is missing or damaged.
            MissingExtra: LightGBM is not installed.
        """
        content = read_model_json(folder, "gbdt")
        path = folder / TREES_FILE
        names = tuple(map(str, content["features"]))
        try:
            text = read_ascii(path, max_bytes=MAX_BYTES)
            check_trees(text, num_features=len(names))
            booster = _booster(text)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path}: {error}; train again or copy the run anew") from None
        return cls(booster=booster, names=names, chosen=dict(content["chosen"]))


def fit_gbdt(
    data: FitData,
    *,
    fit: FitConfig,
    config: GbdtConfig,
    progress: Progress,
    like: Gbdt | None = None,
) -> Gbdt:
    """Fit the ensemble.

    Args:
        data: rows, targets, families, weights; the validation part is for early stopping.
        fit: seed and threads.
        config: ranges and defaults of the hyper-parameters.
        progress: receives one line for each tuning step, and a warning before the first one if the
            trees may take more space than ``load`` reads.
        like: a model whose hyper-parameters and number of trees are used without tuning, or None.

    Raises:
        BadInput: The trees take more space than ``load`` reads.
        MissingExtra: LightGBM is not installed.
    """
    if like is not None:
        return _finish(
            _train(data, like.chosen, fit, config, like.chosen["num_trees"]), like.chosen
        )
    chosen: dict[str, Any] = {
        "num_leaves": config.num_leaves,
        "min_rows_in_leaf": config.min_rows_in_leaf,
        "tuned": False,
    }
    num_families = len(np.unique(data.family))
    tunes = config.tune and num_families >= max(config.tune_min_families, config.tune_folds)
    stops = tunes or data.validation is not None
    most_trees = config.num_rounds if stops else _without_stopping(config)
    _warn_of_size(GRID if tunes else (chosen,), most_trees, len(data.log2_ns), progress)
    if tunes:
        chosen = _tuned(data, fit, config, progress)
    rounds = chosen.get("cv_trees")
    if data.validation is not None and (
        rounds is None or _num_kernels(data.validation) >= _STOPPING_MIN_FAMILIES
    ):
        held_out = (data.validation, data.validation_log2_ns)
        booster = _train(data, chosen, fit, config, config.num_rounds, held_out)
    else:
        booster = _train(data, chosen, fit, config, rounds or _without_stopping(config))
    chosen["num_trees"] = booster.current_iteration()
    progress(f"gbdt: {chosen['num_trees']} trees of {chosen['num_leaves']} leaves")
    return _finish(booster, chosen)


def _without_stopping(config: GbdtConfig) -> int:
    return min(config.num_rounds, _ROUNDS_WITHOUT_STOPPING)


def _warn_of_size(
    points: Sequence[Mapping[str, int]], most_trees: int, num_rows: int, progress: Progress
) -> None:
    """Warn if the trees may be too large to be read again.

    It is no error, because early stopping usually gives far fewer trees; ``_finish`` checks them.
    """
    leaves = max(
        min(one["num_leaves"], max(1, num_rows // one["min_rows_in_leaf"])) for one in points
    )
    num_bytes = most_trees * leaves * _LEAF_BYTES
    if num_bytes > MAX_BYTES:
        progress(
            f"gbdt: warning: {most_trees:,} trees of {leaves:,} leaves would take up to "
            f"{num_bytes >> 20:,} MiB, and LLMPerf reads {MAX_BYTES >> 20} MiB: the fit ends with "
            "an error unless early stopping gives fewer trees; lower gbdt.num_rounds to be sure"
        )


def _finish(booster: Any, chosen: dict[str, Any]) -> Gbdt:
    # Convert to text and back, so that a fitted and a loaded model are bit-identical.
    text = booster.model_to_string()
    if len(text) > MAX_BYTES:
        raise BadInput(
            f"gbdt: the {chosen['num_trees']:,} trees take {len(text) / 2**20:.0f} MiB, more than "
            f"the {MAX_BYTES >> 20} MiB that LLMPerf reads: lower gbdt.num_leaves or "
            "gbdt.num_rounds, or raise gbdt.learning_rate"
        )
    return Gbdt(booster=_booster(text), names=feature_names(), chosen=dict(chosen))


def _booster(text: str) -> Any:
    """Return the model of a text. Raises ValueError if LightGBM cannot read it."""
    library = require("lightgbm", "gbdt")
    try:
        return library.Booster(model_str=text)
    except library.basic.LightGBMError as error:
        raise ValueError(f"LightGBM cannot read it: {error}") from None


def _num_kernels(rows: Rows) -> int:
    return len(np.unique(rows.kernel_row))


def _parameters(chosen: dict[str, Any], fit: FitConfig, config: GbdtConfig) -> dict[str, Any]:
    return {
        "objective": "regression",
        "metric": "l2",
        "learning_rate": config.learning_rate,
        "num_leaves": chosen["num_leaves"],
        "min_data_in_leaf": chosen["min_rows_in_leaf"],
        "feature_fraction": config.feature_share,
        "bagging_fraction": config.row_share,
        "bagging_freq": 1,
        "lambda_l2": config.l2,
        "seed": fit.seed,
        "num_threads": fit.num_threads,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def _train(
    data: FitData,
    chosen: dict[str, Any],
    fit: FitConfig,
    config: GbdtConfig,
    num_rounds: int,
    held_out: tuple[Rows, Floats | None] | None = None,
) -> Any:
    """Fit the trees; with ``held_out`` stop early and keep the best number of trees."""
    lightgbm = require("lightgbm", "gbdt")
    parameters = _parameters(chosen, fit, config)
    names = list(feature_names())

    def dataset(features: Floats, target: Floats | None, weight: Floats | None) -> Any:
        return lightgbm.Dataset(
            features, target, weight=weight, feature_name=names, params=parameters
        )

    train = dataset(data.rows.features, data.log2_ns, data.weight)
    if held_out is None:
        return lightgbm.train(parameters, train, num_boost_round=num_rounds)
    stop = lightgbm.early_stopping(config.early_stopping_rounds, verbose=False)
    valid = lightgbm.Dataset(held_out[0].features, held_out[1], reference=train, params=parameters)
    booster = lightgbm.train(
        parameters, train, num_boost_round=num_rounds, valid_sets=[valid], callbacks=[stop]
    )
    return lightgbm.Booster(
        model_str=booster.model_to_string(num_iteration=max(1, booster.best_iteration))
    )


def grow_forest(
    data: FitData,
    *,
    fit: FitConfig,
    config: FeatureEnsembleConfig,
    names: tuple[str, ...] | None = None,
) -> tuple[Forest, tuple[str, ...]]:
    """Fit trees with the absolute error of log2(ns) as loss; all kernels have equal weight.

    Args:
        data: rows and targets; ``rows.kernel_row`` says which kernel a row belongs to.
        fit: seed and threads.
        config: number and size of the trees.
        names: the features to use; None: all.

    Returns:
        The trees, and the names of their features.

    Raises:
        MissingExtra: LightGBM is not installed.
    """
    lightgbm = require("lightgbm", "gbdt")
    names = feature_names() if names is None else names
    chosen = _some_of_each(data.rows.kernel_row, config.configs_per_kernel, fit.seed)
    kernel = data.rows.kernel_row[chosen]
    parameters = {
        "objective": "regression_l1",
        "learning_rate": config.learning_rate,
        "num_leaves": config.num_leaves,
        "min_data_in_leaf": config.min_rows_in_leaf,
        "feature_fraction": config.feature_share,
        "bagging_fraction": config.row_share,
        "bagging_freq": 1,
        "lambda_l2": config.l2,
        "max_bin": _FOREST_BINS,
        "seed": fit.seed,
        "num_threads": fit.num_threads,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    rows = lightgbm.Dataset(
        named_features(data.rows.features[chosen], names),
        data.log2_ns[chosen],
        weight=row_weights(data.log2_ns[chosen], kernel, "kernel"),
        feature_name=list(names),
        params=parameters,
    )
    booster = lightgbm.train(parameters, rows, num_boost_round=config.trees)
    return Forest.from_text(booster.model_to_string()), names


_FOREST_BINS = 63
"""Bins of a feature, a quarter of LightGBM's default: equal errors in a third of the fit's time."""


def _some_of_each(kernel: Codes, most: int, seed: int) -> Codes:
    """Return at most ``most`` random rows of each kernel, ascending."""
    order = np.lexsort((np.random.default_rng(seed).random(len(kernel)), kernel))
    _, first, count = np.unique(kernel[order], return_index=True, return_counts=True)
    rank = np.arange(len(kernel)) - np.repeat(first, count)
    return np.sort(order[rank < most])


def family_folds(family: Codes, num_folds: int, seed: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield for each fold a mask of its held-out rows (shape (n,)); each family is in one fold."""
    codes, index = np.unique(family, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(codes)) % num_folds
    for number in range(min(num_folds, len(codes))):
        yield fold[index] == number


def subset(data: FitData, index: npt.NDArray[np.intp]) -> FitData:
    """Return the fit rows at ``index`` (shape (m,)), without a validation part."""
    return FitData(
        rows=data.rows.take(index),
        log2_ns=data.log2_ns[index],
        family=data.family[index],
        weight=data.weight[index],
    )


def _tuning_rows(data: FitData, most_rows: int, seed: int) -> FitData:
    """Return random whole families with about ``most_rows`` rows in all."""
    if len(data.log2_ns) <= most_rows:
        return data
    codes, index, counts = np.unique(data.family, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(codes))
    num_kept = max(1, int(np.searchsorted(np.cumsum(counts[order]), most_rows)))
    kept = np.zeros(len(codes), dtype=bool)
    kept[order[:num_kept]] = True
    return subset(data, np.flatnonzero(kept[index]))


def _tuned(data: FitData, fit: FitConfig, config: GbdtConfig, progress: Progress) -> dict[str, Any]:
    """Return the grid point with the smallest mean squared log2 error over the folds."""
    data = _tuning_rows(data, config.tune_rows, fit.seed)
    tried = []
    for point in GRID:
        errors, trees = [], []
        for held_out in family_folds(data.family, config.tune_folds, fit.seed):
            inner = subset(data, np.flatnonzero(~held_out))
            outer = subset(data, np.flatnonzero(held_out))
            booster = _train(
                inner, point, fit, config, config.num_rounds, (outer.rows, outer.log2_ns)
            )
            error = booster.predict(outer.rows.features, num_threads=1) - outer.log2_ns
            errors.append(float(np.mean(error * error)))
            trees.append(booster.current_iteration())
        rmse = float(np.mean(errors)) ** 0.5
        progress(f"gbdt: {point['num_leaves']} leaves: {rmse:.3f} RMSE of log2 over the folds")
        tried.append({**point, "rmse_log2": rmse, "cv_trees": int(np.median(trees))})
    best = min(tried, key=lambda item: item["rmse_log2"])
    return {**best, "tuned": True, "tried": tried}
