"""How much a few measured launches of a kernel improve the predictions of a finished run.

``python -m benchmarks.models.few_launches RUN --out FILE.csv [--draws 10] [--all-kernels]``

RUN is a folder with ``predictions.parquet`` and ``few_shot.json``, such as the one that
``benchmarks.models.shipped_model`` leaves below its ``--out``. Of each kernel of the test part,
some random launches count as measured, and the others are scored if they take at least 10 µs. All
numbers of measured launches are compared on the same launches: those that are left after the
largest number. ``--all-kernels`` also scores kernels with fewer launches; then the scored launches
depend on the number. If no correction factor explains a kernel's measured launches, the kernel is
scored without a factor and left out of the figures of intervals.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llmperf_common.statistics.splits import Part
from trainer.interface import Codes, Floats
from trainer.prediction.few_shot import NUM_LAUNCHES, Launches, launches_of, posterior, rank_within
from trainer.run.folder import PREDICTIONS_FILE
from trainer.run.kernel_factors import FewShot, expected_error, floor_ns, rescaled
from trainer.run.loaded import load_run

_LEAST_LOG2_NS = float(np.log2(1e4))


def scored(
    few_shot: FewShot, launches: Launches, number: int, seed: int, *, all_kernels: bool
) -> dict[str, float]:
    """Return the figures of one draw of ``number`` measured launches of each kernel."""
    rank = rank_within(launches.kernel, np.random.default_rng(seed))
    most = number if all_kernels else max(NUM_LAUNCHES)
    rows = np.flatnonzero((rank >= most) & (launches.log2_measured >= _LEAST_LOG2_NS))
    kernel = launches.kernel[rows]
    found = posterior(
        few_shot, launches.take(np.flatnonzero(rank < number)), int(launches.kernel.max()) + 1
    )
    factor = np.where(found.is_beyond | (number == 0), 0.0, found.median)
    change, slope = rescaled(launches.share[rows], factor[kernel])
    error = launches.log2_measured[rows] - launches.log2_predicted[rows] - change
    each = mean_by(kernel, np.abs(np.exp2(-error) - 1))
    figures = {
        "num_launches": number,
        "seed": seed,
        "rows": len(rows),
        "kernels": len(each),
        "macro_mape_percent": 100 * float(each.mean()),
        "median_kernel_mape_percent": 100 * float(np.median(each)),
        "mean_abs_log2": float(mean_by(kernel, np.abs(error)).mean()),
        "within_2x_percent": 100 * float(np.mean(np.abs(error) <= 1)),
        "kernels_without_factor": int(found.is_beyond.sum()),
    }
    if number:
        known = ~found.is_beyond[kernel]
        noise = np.maximum(few_shot.noise_log2, found.scatter[kernel])
        half = few_shot.band(number).half_width_log2 * expected_error(
            noise, slope, found.sd[kernel]
        )
        inside = mean_by(launches.family[rows][known], (np.abs(error) <= half)[known])
        figures["family_coverage_percent"] = 100 * float(inside.mean())
        figures["median_half_width_factor"] = float(2 ** np.median(half[known]))
    return figures


def mean_by(codes: Codes, values: Floats) -> Floats:
    """Return the mean of ``values`` for each code that occurs.

    >>> mean_by(np.array([0, 2, 2]), np.array([1.0, 2.0, 4.0])).tolist()
    [1.0, 3.0]
    """
    counts = np.bincount(codes)
    return np.asarray((np.bincount(codes, values) / np.maximum(1, counts))[counts > 0])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--all-kernels", action="store_true")
    given = parser.parse_args()
    run = load_run(given.run)
    assert run.few_shot is not None, f"{given.run} has no few_shot.json"
    table = pq.read_table(given.run / PREDICTIONS_FILE)
    is_test = pc.and_(pc.equal(table["model"], run.name), pc.equal(table["split"], Part.TEST.value))
    floors = {name: floor_ns(device) for name, device in run.devices.items()}
    launches = launches_of(table.filter(is_test), floors)
    rows = []
    for number in (0, *NUM_LAUNCHES):
        some = [
            scored(run.few_shot, launches, number, seed, all_kernels=given.all_kernels)
            for seed in range(given.draws)
        ]
        rows += some
        means = {name: np.mean([one[name] for one in some]) for name in some[0]}
        print("  ".join(f"{name} {value:.2f}" for name, value in means.items() if name != "seed"))
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[-1]), restval="")
        writer.writeheader()
        writer.writerows({name: round(value, 4) for name, value in one.items()} for one in rows)


if __name__ == "__main__":
    main()
