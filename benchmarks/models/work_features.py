"""How much counted work improves a model: the same trees on the same rows, with and without work.

``python -m benchmarks.models.work_features --data DIR --work DIR2 [--trees 200] [--out FILE.csv]``

DIR2 has the output of ``benchmarks.data.count_work``. Launches of at least 10 µs with counted work
are used. Launches from GitHub are predicted in five folds of families; SHOC and Rodinia are
predicted by a model of all others. The trees, their settings and the rows drawn of each kernel are
those of the preset ``feature-ensemble``. The intervals are 90 % intervals from 1,000 draws of
families.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.models.work_columns import with_work
from llmperf_common.features.features import (
    WORK_FEATURE,
    feature_names,
    is_counted,
    named_features,
    uncounted_feature_names,
)
from llmperf_common.statistics.metrics import encode
from trainer.baselines.gbdt import family_folds, grow_forest
from trainer.config import TrainConfig, load_train_config
from trainer.data.dataset import TrainingData, load_data
from trainer.interface import Codes, FitData, Floats

_LONG_NS, _FOLDS, _DRAWS, _FAR = 1e4, 5, 1000, 3.0
_SUITES = ("shoc", "rodinia")
Mask = npt.NDArray[np.bool_]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    data, _ = with_work(load_data(given.data), given.work)
    is_chosen = is_counted(data.rows.features) & data.single_launch
    data = data.take(np.flatnonzero(is_chosen & (data.log2_ns >= np.log2(_LONG_NS))))
    config = load_train_config(
        "feature-ensemble",
        overrides=[f"feature_ensemble.trees={given.trees}", "train.num_threads=1"],
    )
    said = {
        "with work": _out_of_fold(data, config, feature_names()),
        "without": _out_of_fold(data, config, uncounted_feature_names()),
        "analytic time, nothing fitted": data.rows.features[:, feature_names().index(WORK_FEATURE)],
    }
    public = np.isin(data.suite, _SUITES)
    rows = [
        row
        for part, mask in (("unseen families", ~public), ("both suites", public))
        for row in _scores(part, data, said, mask)
    ]
    for row in rows:
        sys.stdout.write(" | ".join(map(str, row.values())) + "\n")
    if given.out is not None:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _out_of_fold(data: TrainingData, config: TrainConfig, names: tuple[str, ...]) -> Floats:
    """Return log2(ns) of each row by trees fitted without the row's family, shape (n,)."""
    family, public = encode(data.family_id), np.isin(data.suite, _SUITES)
    found = np.full(len(data), np.nan)
    others = np.flatnonzero(~public)
    held_out = [public]
    for fold in family_folds(family[others], _FOLDS, config.train.seed):
        mask = np.zeros(len(data), dtype=bool)
        mask[others[fold]] = True
        held_out.append(mask)
    for mask in held_out:
        fit = _fit_data(data, np.flatnonzero(~mask & ~public), family)
        forest, _ = grow_forest(fit, fit=config.train, config=config.feature_ensemble, names=names)
        found[mask] = forest.predict(named_features(data.rows.features[mask], names))
    return found


def _fit_data(data: TrainingData, index: Codes, family: Codes) -> FitData:
    return FitData(
        rows=data.rows.take(index),
        log2_ns=data.log2_ns[index],
        family=family[index],
        weight=np.ones(len(index)),
    )


def _scores(
    part: str, data: TrainingData, said: dict[str, Floats], mask: Mask
) -> list[dict[str, Any]]:
    """Return a row of the table for each model; errors are in per cent."""
    _, kernel = np.unique(data.rows.kernel_row[mask], return_inverse=True)
    count = np.bincount(kernel)
    family = np.zeros(len(count), dtype=np.int64)
    family[kernel] = encode(data.family_id)[mask]
    of_family = [np.flatnonzero(family == one) for one in np.unique(family)]
    table = []
    for model, log2_ns in said.items():
        error = log2_ns[mask] - data.log2_ns[mask]
        of_kernel = np.bincount(kernel, np.abs(np.exp2(error) - 1)) / count
        is_far = np.abs(np.bincount(kernel, error) / count) >= np.log2(_FAR)
        draws = np.random.default_rng(0)
        drawn = [
            np.concatenate(
                [of_family[n] for n in draws.integers(0, len(of_family), len(of_family))]
            )
            for _ in range(_DRAWS)
        ]
        low, high = np.percentile([of_kernel[one].mean() for one in drawn], [5, 95])
        table.append(
            {
                "part": part,
                "model": model,
                "rows": int(mask.sum()),
                "kernels": len(count),
                "families": len(of_family),
                "macro": round(100 * float(of_kernel.mean()), 1),
                "macro_low": round(100 * float(low), 1),
                "macro_high": round(100 * float(high), 1),
                "macro_but_worst_3": round(100 * float(np.sort(of_kernel)[:-3].mean()), 1),
                "median_kernel": round(100 * float(np.median(of_kernel)), 1),
                "kernels_3x_off": round(100 * float(is_far.mean()), 1),
                "within_2": round(100 * float(np.mean(np.abs(error) <= 1)), 1),
            }
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
