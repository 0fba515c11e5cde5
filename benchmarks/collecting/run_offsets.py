"""How far the medians of several runs over the same launch configs differ.

``python -m benchmarks.collecting.run_offsets MEDIANS [--other COLUMN] [--by-kind]
[--from-us 10] [--to-us 1000000]``

MEDIANS (CSV or Parquet) has the columns ``kernel_id`` and ``sample_id`` and then one column of
medians, in ns, for each run. The program prints how far each run is from the others. With
``--other`` it also prints whether that column (of another collector) is further from the runs than
the runs are from one another. Only configs that every column has are compared. The median over the
runs decides the class of a config.

With ``--by-kind`` the columns are named ``NUMBER_KIND`` (``00_ours``, ``01_plain``), with several
runs of each kind; ``runs_in_turns.py`` writes such a table. The times of two processes differ by an
offset that all configs of a process share. Therefore a permutation test over whole runs judges
whether two kinds differ: it assigns the kinds' names to the runs in every possible way.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.data.raw_rows import read_rows

Floats = npt.NDArray[np.float64]
_Pairs = dict[tuple[int, int], float]
"""Maps a pair of runs to the MAPE of the second run with the first as reference, in per cent."""
_MOST_NS = 2000.0
"""Limit of a config's offset in ns, because single configs may differ by far more."""
_MOST_LOG = 0.1
"""Limit of a config's log ratio, so that one disturbed config does not cause a correlation."""
_DRAWS = 2000
_SLACK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Medians:
    """``values``: medians in ns, configs by columns; ``kernels``: kernel of each config."""

    columns: tuple[str, ...]
    kernels: tuple[str, ...]
    values: Floats


def read_medians(path: Path) -> Medians:
    """Read the configs that every column has."""
    rows = read_rows(path)
    columns = tuple(rows[0])[2:] if rows else ()
    whole = [tuple(row.values()) for row in rows if all(row.values())]
    values = np.array([row[2:] for row in whole], dtype=np.float64)
    return Medians(columns=columns, kernels=tuple(row[0] for row in whole), values=values)


def write_medians(
    path: Path, runs: Mapping[str, Mapping[str, float]], kernels: Mapping[str, str]
) -> None:
    """Write a row for each sample, a column for each run.

    Args:
        path: path of the table.
        runs: medians in ns by run and sample.
        kernels: maps each sample to its kernel.
    """
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["kernel_id", "sample_id", *runs])
        for sample_id in kernels:
            medians = [run.get(sample_id, "") for run in runs.values()]
            writer.writerow([kernels[sample_id][:10], sample_id[:10], *medians])


def errors_percent(reference: Floats, other: Floats) -> Floats:
    """Return how far ``other`` is from ``reference`` by config, in per cent of ``reference``."""
    return 100.0 * np.abs(other - reference) / reference


def excess_percent(
    kernels: Sequence[str], runs: Floats, other: Floats, seed: int = 0
) -> tuple[float, float, float]:
    """Return the MAPE between ``other`` and the runs, less the MAPE among the runs.

    The three values are the 2.5 % quantile, the median and the 97.5 % quantile of a bootstrap. It
    draws kernels, because the errors of one kernel's configs are alike.
    """
    pairs = itertools.permutations(range(runs.shape[1]), 2)
    own = np.mean([errors_percent(runs[:, a], runs[:, b]) for a, b in pairs], axis=0)
    theirs = np.mean([errors_percent(run, other) for run in runs.T], axis=0)
    names = np.array(kernels)
    by_kernel = [np.flatnonzero(names == name) for name in sorted(set(kernels))]
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(_DRAWS):
        drawn = chance.integers(0, len(by_kernel), len(by_kernel))
        chosen = np.concatenate([by_kernel[index] for index in drawn])
        found.append(float(theirs[chosen].mean() - own[chosen].mean()))
    low, middle, high = np.percentile(found, [2.5, 50.0, 97.5])
    return float(low), float(middle), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindsApart:
    """How two kinds of runs differ.

    Each ``p`` is the share of all assignments of the kinds' names to the runs that give a
    difference at least as large.

    Attributes:
        excess_percent: MAPE between the kinds minus the mean MAPE within each kind, in points.
        excess_p: one-sided p of ``excess_percent``.
        shape_percent: the same excess after each run's own offset was subtracted.
        shape_p: one-sided p of ``shape_percent``.
        offset_ns: times of the second kind minus times of the first, mean over configs.
        offset_p: two-sided p of ``offset_ns``.
        least_p: the smallest p that is possible with these numbers of runs.
        repeats: correlation over configs of the kinds' difference in one half of the runs with the
            difference in the other half. It is 0 if only the runs differ, and None if a kind has
            fewer than two runs.
    """

    excess_percent: float
    excess_p: float
    shape_percent: float
    shape_p: float
    offset_ns: float
    offset_p: float
    least_p: float
    repeats: float | None


def kinds_apart(values: Floats, first: Sequence[int], second: Sequence[int]) -> KindsApart:
    """Compare two kinds of runs; at least one kind has two or more runs.

    Args:
        values: medians in ns, configs by runs.
        first: columns of one kind.
        second: columns of the other kind.
    """
    runs = [*first, *second]
    centre = np.median(values[:, runs], axis=1)
    offsets = {
        run: float(np.clip(values[:, run] - centre, -_MOST_NS, _MOST_NS).mean()) for run in runs
    }
    raw, shape = _mapes(values, runs), _mapes(values - _own_ns(values, runs), runs)

    def offset_of(of_first: Sequence[int]) -> float:
        others = [run for run in runs if run not in of_first]
        second_ns = np.mean([offsets[run] for run in others])
        return float(second_ns - np.mean([offsets[run] for run in of_first]))

    dealt = list(itertools.combinations(runs, len(first)))

    def judged(found_by: Callable[[Sequence[int]], float]) -> tuple[float, float]:
        seen = found_by(first)
        return seen, float(np.mean([found_by(chosen) >= seen - _SLACK for chosen in dealt]))

    excess, excess_p = judged(lambda chosen: _excess(raw, runs, chosen))
    shape_excess, shape_p = judged(lambda chosen: _excess(shape, runs, chosen))
    _, offset_p = judged(lambda chosen: abs(offset_of(chosen)))
    return KindsApart(
        excess_percent=excess,
        excess_p=excess_p,
        shape_percent=shape_excess,
        shape_p=shape_p,
        offset_ns=offset_of(first),
        offset_p=offset_p,
        # With equally many runs of each kind, exchanging the names gives the same difference.
        least_p=(2 if len(first) == len(second) else 1) / len(dealt),
        repeats=_repeats(values, first, second),
    )


def _mapes(values: Floats, runs: Sequence[int]) -> _Pairs:
    return {
        (one, other): float(errors_percent(values[:, one], values[:, other]).mean())
        for one, other in itertools.permutations(runs, 2)
    }


def _excess(mape: _Pairs, runs: Sequence[int], of_first: Sequence[int]) -> float:
    """Return the mean MAPE between the two kinds minus the mean MAPE within each kind."""
    others = [run for run in runs if run not in of_first]
    across = [mape[one, other] + mape[other, one] for one in of_first for other in others]
    among = [
        np.mean([mape[pair] for pair in itertools.permutations(kind, 2)])
        for kind in (of_first, others)
        if len(kind) > 1
    ]
    return float(np.mean(across) / 2 - np.mean(among))


def _own_ns(values: Floats, runs: Sequence[int]) -> Floats:
    """Return each run's offset in ns: its median difference from the median over all runs."""
    centre = np.median(values[:, list(runs)], axis=1)
    found: Floats = np.median(values - centre[:, None], axis=0)
    return found


def _repeats(values: Floats, first: Sequence[int], second: Sequence[int]) -> float | None:
    if min(len(first), len(second)) < 2:
        return None
    logs = np.log(values - _own_ns(values, [*first, *second]))
    halves = [
        logs[:, second[start::2]].mean(axis=1) - logs[:, first[start::2]].mean(axis=1)
        for start in (0, 1)
    ]
    clipped = [np.clip(half, -_MOST_LOG, _MOST_LOG) for half in halves]
    return float(np.corrcoef(*clipped)[0, 1])


def kinds_of(columns: Sequence[str]) -> dict[str, list[int]]:
    """Return the columns of each kind.

    >>> kinds_of(["00_ours", "01_plain", "02_ours"])
    {'ours': [0, 2], 'plain': [1]}
    """
    found: dict[str, list[int]] = {}
    for index, name in enumerate(columns):
        found.setdefault(name.partition("_")[2] or name, []).append(index)
    return found


def _tell_kinds(columns: Sequence[str], values: Floats) -> None:
    kinds = kinds_of(columns)
    print("kinds                    pairs of runs   MAPE, mean (least, most)   p90, %")
    for one, other in itertools.combinations_with_replacement(sorted(kinds), 2):
        pairs = [(a, b) for a in kinds[one] for b in kinds[other] if a != b]
        if not pairs:
            continue
        errors = [errors_percent(values[:, a], values[:, b]) for a, b in pairs]
        means = [error.mean() for error in errors]
        p90 = np.mean([np.percentile(error, 90) for error in errors])
        spread = f"({min(means):.2f}, {max(means):.2f})"
        print(
            f"{one + ' and ' + other:25}{len(pairs):13d}{np.mean(means):12.2f} {spread:16}{p90:7.1f}"
        )
    for one, other in itertools.combinations(sorted(kinds), 2):
        if max(len(kinds[one]), len(kinds[other])) < 2:
            continue
        found = kinds_apart(values, kinds[one], kinds[other])
        repeats = (
            ""
            if found.repeats is None
            else f"; configs' differences repeat with r = {found.repeats:.2f}"
        )
        print(
            f"{one} and {other}, less each among themselves: {found.excess_percent:+.2f} points (p {found.excess_p:.3f}), "
            f"without the runs' own offsets {found.shape_percent:+.2f} (p {found.shape_p:.3f}); "
            f"{other} less {one}: {found.offset_ns:+.0f} ns (p {found.offset_p:.3f}); no p below {found.least_p:.3f}{repeats}"
        )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collecting.run_offsets", description=__doc__
    )
    parser.add_argument("medians", type=Path)
    parser.add_argument("--other", default="", help="the column of another collector")
    parser.add_argument(
        "--by-kind", action="store_true", help="columns are named NUMBER_KIND; compare the kinds"
    )
    parser.add_argument("--from-us", type=float, default=10.0)
    parser.add_argument("--to-us", type=float, default=1e6)
    given = parser.parse_args()
    found = read_medians(given.medians)
    if given.other and given.other not in found.columns:
        parser.error(f"--other {given.other}: {given.medians} has {', '.join(found.columns)}")
    is_run = np.array([name != given.other for name in found.columns])
    centre = np.median(found.values[:, is_run], axis=1)
    mask = (centre >= 1e3 * given.from_us) & (centre < 1e3 * given.to_us)
    values, centre = found.values[mask], centre[mask]
    kernels = [name for name, chosen in zip(found.kernels, mask, strict=True) if chosen]
    runs = values[:, is_run]
    print(f"{len(values)} configs of {len(set(kernels))} kernels")
    print("column      offset, mean and median, ns   to each other run: MAPE, p90, signed, %")
    for name, column in zip(found.columns, values.T, strict=True):
        offset = column - centre
        errors = [errors_percent(run, column) for run in runs.T if not np.array_equal(run, column)]
        ratios = [column / run for run in runs.T if not np.array_equal(run, column)]
        print(
            f"{name:12}{np.clip(offset, -_MOST_NS, _MOST_NS).mean():+8.0f}{np.median(offset):+8.0f}"
            f"{np.mean([one.mean() for one in errors]):15.2f}{np.mean([np.percentile(one, 90) for one in errors]):8.2f}"
            f"{np.mean([100 * (np.median(one) - 1) for one in ratios]):+8.2f}"
        )
    if given.by_kind:
        _tell_kinds(found.columns, values)
    if given.other:
        other = values[:, found.columns.index(given.other)]
        low, middle, high = excess_percent(kernels, runs, other)
        print(
            f"{given.other}: MAPE to the runs less theirs to one another: {middle:+.2f} points, {low:+.2f} to {high:+.2f} (95 %)"
        )


if __name__ == "__main__":
    main()
