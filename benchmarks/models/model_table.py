"""A table of models on one family split: baselines, language models, and models without a part.

* ``python -m benchmarks.models.model_table train --data DIR --out OUT [--kernels 2000]
  [--launches 24] [--seed 0] [--work DIR2] [--set KEY=VALUE]… [VARIANT …]``
* ``python -m benchmarks.models.model_table table OUT [--reference small] [--out FILE.csv]``

``train`` draws kernels with at most ``--launches`` launches each, the same for every variant, and
makes a run in ``OUT/VARIANT``. A finished variant is not trained again. Without VARIANT all
variants are trained, in the order of ``VARIANTS``. DIR2 has the work that
``benchmarks.data.count_work`` counted; with DIR2 only launches with counted work are drawn.

``table`` scores all runs of OUT, and the baselines of the first run, on the test part. It uses
launches of at least 10 µs, of families on which nothing was fitted or chosen. The columns: *macro*
(mean over kernels of each kernel's mean absolute percentage error) and *median kernel*, each with
the 95 % interval of a bootstrap over families; *within* 1.25, 1.5 and 2 (share of launches
predicted within that factor, up or down); *against* (macro minus the macro of the reference, on the
same resamples).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from benchmarks.models.work_columns import with_work
from llmperf_common.statistics.splits import Part
from trainer.config import load_train_config
from trainer.data.dataset import TrainingData, has_source, load_data
from trainer.fit.ranks import Ranks, join_ranks
from trainer.life.conductor import Conductor
from trainer.life.fitting import COMPARISONS
from trainer.life.train import train
from trainer.run.folder import PREDICTIONS_FILE

VARIANTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "gbdt": ("gbdt", ("gbdt.tune=false",)),
    "feature-network": ("feature-network", ()),
    "small": ("small", ()),
    "small, seed 1": ("small", ("train.seed=1",)),
    "small, seed 2": ("small", ("train.seed=2",)),
    "small, text": ("small", ("prompt.form=compact",)),
    "small, packed": ("small", ("regressor.reads=packed",)),
    "small, no features": ("small", ("regressor.features=false",)),
    "small, offset roofline": ("small", ("regressor.offset=roofline",)),
    "small, offset gbdt": ("small", ("regressor.offset=gbdt",)),
    "small, L1": ("small", ("optimiser.loss=l1",)),
    "small, L2": ("small", ("optimiser.loss=l2",)),
    "350M, random weights": ("codegen-350m", ()),
}
"""Maps each variant to its preset and overrides."""

LEAST_NS = 1e4
"""Shorter launches (in ns) are not scored: their times vary by 6 to 9 % between runs, and half of
their time is the launch floor."""
REPLICATES = 2000
_FACTORS = (1.25, 1.5, 2.0)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model of the table; errors and shares in per cent, intervals as (low, high)."""

    model: str
    launches: int
    kernels: int
    families: int
    macro: float
    macro_low: float
    macro_high: float
    median_kernel: float
    median_kernel_low: float
    median_kernel_high: float
    within_1_25: float
    within_1_5: float
    within_2: float
    against: float
    against_low: float
    against_high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of one model's predictions of the test part.

    Attributes:
        of_kernel: mean absolute percentage error of each kernel, shape (k,).
        within: shares of launches within 1.25, 1.5 and 2.
        launches: number of scored launches.
    """

    of_kernel: Floats
    within: tuple[float, float, float]
    launches: int


def subset(data: TrainingData, *, kernels: int, launches: int, seed: int) -> TrainingData:
    """Return random kernels of the dataset with at most ``launches`` random launches each."""
    random = np.random.default_rng(seed)
    order = random.permutation(np.flatnonzero(has_source(data.rows)))
    _, kernel = np.unique(data.rows.kernel_row[order], return_inverse=True)
    taken = random.permutation(int(kernel.max()) + 1)[:kernels]
    chosen = [order[kernel == number][:launches] for number in taken.tolist()]
    index = np.sort(np.concatenate(chosen))
    return data.take(index)


def run_all(data: TrainingData, out: Path, names: list[str], overrides: list[str]) -> None:
    """Train each variant into ``out``; finished variants are not trained again."""
    for name in names:
        preset, its_own = VARIANTS[name]
        config = load_train_config(preset, overrides=[*overrides, *its_own])
        train(
            data,
            config,
            out / name.replace(", ", "-").replace(" ", "-"),
            lambda line, name=name: print(f"{name}: {line}", file=sys.stderr),  # type: ignore[misc]
            conductor=Conductor(_join),
        )


def scored(out: Path) -> tuple[dict[str, Scores], npt.NDArray[np.int64]]:
    """Return each model's scores, and the family of each kernel (shape (k,)).

    Raises:
        ValueError: The runs were not scored on the same launches.
    """
    found: dict[str, Scores] = {}
    families = sample_ids = None
    for folder in sorted(path.parent for path in out.glob(f"*/{PREDICTIONS_FILE}")):
        table = pq.read_table(folder / PREDICTIONS_FILE).to_pandas()
        table = table[(table.split == Part.TEST) & (table.median_ns >= LEAST_NS)]
        for model, rows in table.groupby("model"):
            name = folder.name if model not in COMPARISONS else str(model)
            if name in found:
                continue
            ordered = rows.sort_values("sample_id")
            if sample_ids is None:
                sample_ids = ordered.sample_id.to_numpy()
            if not np.array_equal(sample_ids, ordered.sample_id.to_numpy()):
                raise ValueError(f"{folder}: scored on other launches than the runs before it")
            kernels, kernel = np.unique(ordered.kernel_id, return_inverse=True)
            if families is None:
                first = np.unique(kernel, return_index=True)[1]
                families = np.unique(ordered.family_id.to_numpy()[first], return_inverse=True)[1]
            found[name] = _scores(ordered.predicted_ns / ordered.median_ns, kernel, len(kernels))
    if families is None:
        raise ValueError(f"{out}: no finished run in it")
    return found, families


def table(out: Path, reference: str, *, seed: int = 0) -> Iterator[Row]:
    """Yield the rows of the table, best macro error first."""
    models, families = scored(out)
    random = np.random.default_rng(seed)
    num_families = int(families.max()) + 1
    # Families are drawn with replacement. Count of each kernel in each replicate, shape (r, k).
    draws = random.multinomial(num_families, np.full(num_families, 1 / num_families), REPLICATES)
    times = draws[:, families]
    base = models[reference].of_kernel
    for name, scores in sorted(models.items(), key=lambda item: float(item[1].of_kernel.mean())):
        errors = scores.of_kernel
        macro = times @ errors / times.sum(axis=1)
        medians = np.array([np.median(np.repeat(errors, one)) for one in times])
        against = times @ (errors - base) / times.sum(axis=1)
        yield Row(
            model=name,
            launches=scores.launches,
            kernels=len(errors),
            families=num_families,
            macro=float(errors.mean()),
            macro_low=_quantile(macro, 0.025),
            macro_high=_quantile(macro, 0.975),
            median_kernel=float(np.median(errors)),
            median_kernel_low=_quantile(medians, 0.025),
            median_kernel_high=_quantile(medians, 0.975),
            within_1_25=scores.within[0],
            within_1_5=scores.within[1],
            within_2=scores.within[2],
            against=float(np.mean(errors - base)),
            against_low=_quantile(against, 0.025),
            against_high=_quantile(against, 0.975),
        )


def _scores(ratio: Floats, kernel: npt.NDArray[np.int64], num_kernels: int) -> Scores:
    """Score predicted / measured of n launches; ``kernel`` has shape (n,)."""
    relative = 100 * np.abs(np.asarray(ratio) - 1)
    log2 = np.abs(np.log2(np.asarray(ratio)))
    within = [100 * float(np.mean(log2 <= np.log2(factor))) for factor in _FACTORS]
    return Scores(
        of_kernel=np.bincount(kernel, relative, num_kernels) / np.bincount(kernel),
        within=(within[0], within[1], within[2]),
        launches=len(relative),
    )


def _quantile(values: Floats, share: float) -> float:
    return float(np.quantile(values, share))


def _join() -> Ranks:
    return join_ranks("auto")


def main(words: list[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="benchmarks.models.model_table")
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("variants", nargs="*", metavar="VARIANT")
    training.add_argument("--data", type=Path, required=True)
    training.add_argument("--out", type=Path, required=True)
    training.add_argument("--kernels", type=int, default=2000)
    training.add_argument("--launches", type=int, default=24)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--work", type=Path)
    training.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    showing = commands.add_parser("table")
    showing.add_argument("runs", type=Path)
    showing.add_argument("--reference", default="small")
    showing.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    if given.command == "train":
        names = given.variants or list(VARIANTS)
        if unknown := sorted(set(names) - set(VARIANTS)):
            parser.error(f"no such variant: {', '.join(unknown)}; there are {', '.join(VARIANTS)}")
        data = load_data(given.data)
        if given.work is not None:
            data, is_asked = with_work(data, given.work)
            data = data.take(np.flatnonzero(is_asked))
        chosen = subset(data, kernels=given.kernels, launches=given.launches, seed=given.seed)
        run_all(chosen, given.out, names, given.set)
        return 0
    rows = [dataclasses.asdict(row) for row in table(given.runs, given.reference)]
    for row in rows:
        print(", ".join(f"{key} {_said(value)}" for key, value in row.items()))
    if given.out is not None:
        with given.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _said(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
