"""Metrics of predictions: errors, rankings, choices and intervals, each bootstrapped over families.

Owns the definitions below, pooled over rows and averaged over kernels.
``trainer/evaluation/evaluate.py`` chooses the scored rows. All arrays have shape (n,), one entry
per row.

==========================  ========================================================================
key                         meaning
==========================  ========================================================================
mape_percent                mean of |predicted - measured| / measured
median_ape_percent          median of |predicted - measured| / measured
median_log2_ratio           median of log2(predicted / measured); negative: predicted too short
rmse_log2                   root mean square of log2(predicted / measured)
share_within_1_25, _1_5,    share of launches with max(predicted / measured, measured / predicted)
_2                          of at most 1.25, 1.5 or 2. MAPE favours low predictions: a tenth of the
                            time is 90 % error, ten times the time 900 %; this factor is 10 for both
median_factor, p90_factor   median and 90th percentile of that factor
macro_KEY                   mean over kernels of each kernel's KEY: mape_percent,
                            median_ape_percent, the shares and the factors
median_kernel_KEY           median over kernels of each kernel's KEY
spearman_mean, _median      over kernels with >= min_configs rows: rank correlation within the
                            kernel; 0 for a kernel whose predictions are all equal
regret_mean_percent,        over groups of rows that differ in local size only: measured time at the
regret_median_percent       predicted best local size ÷ best measured time, minus 1; ties: mean
regret_random_percent       the same for a local size chosen at random, as a baseline
coverage                    share of rows whose measured time lies within [low_ns, high_ns]
family_coverage             mean over families of each family's coverage: the quantity that the
                            intervals guarantee for a new family, whatever its number of rows
families_covered            share of families whose coverage is at least interval_level
interval_width_ratio        median of high_ns / low_ns
==========================  ========================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from llmperf_common.statistics.bootstrap import (
    Statistic,
    bootstrap_interval,
    family_draws,
    quantile,
)
from llmperf_common.statistics.ranking import choice_regret, spearman_by_group

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LONG_LAUNCH_NS = 10_000.0
"""Time in ns. Metrics are also given for launches of at least this time, because launch overhead
and timer noise dominate shorter ones on a GPU."""

WITHIN = {"1_25": 1.25, "1_5": 1.5, "2": 2.0}
"""The factor that each suffix of a metric's name stands for."""

_ROUNDING = 1e-12
"""Tolerance for rounding: 9 of 10 rows must count as 90 %, and 3 / 2 as within a factor of 1.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Measured and predicted times of n rows, and the groups of the rows.

    Attributes:
        measured_ns: positive.
        predicted_ns: positive.
        low_ns: lower ends of the intervals; None where the model gives no intervals.
        high_ns: upper ends; None where the model gives no intervals.
        interval_level: coverage that the intervals guarantee; None where unknown.
        kernel: code of (kernel, device class); rows are ranked within one code.
        family: code of the kernel's family; the bootstrap resamples families.
        choice: code shared by rows that differ in local size only; -1 for a row without such a
            group.
        slices: further groupings by name ("suite", "regime", ...), each with one label per row.
    """

    measured_ns: Floats
    predicted_ns: Floats
    low_ns: Floats | None
    high_ns: Floats | None
    kernel: Codes
    family: Codes
    choice: Codes
    interval_level: float | None = None
    slices: Mapping[str, npt.NDArray[np.str_]] = field(default_factory=dict)

    def where(self, mask: Mask) -> Scored:
        """Return the rows for which ``mask`` (shape (n,)) is true, without slices."""
        picked: dict[str, Any] = {
            item.name: None if getattr(self, item.name) is None else getattr(self, item.name)[mask]
            for item in fields(self)
            if item.name not in {"slices", "interval_level"}
        }
        return Scored(**picked, interval_level=self.interval_level)


def encode(*columns: npt.ArrayLike) -> Codes:
    """Return one code per row; two rows share a code if all ``columns`` (shape (n,)) are equal."""
    codes = np.zeros(len(np.asarray(columns[0])), dtype=np.int64)
    for column in columns:
        _, inner = np.unique(np.asarray(column), return_inverse=True)
        _, codes = np.unique(codes * (inner.max(initial=0) + 1) + inner, return_inverse=True)
        codes = codes.astype(np.int64)
    return codes


def absolute_percentage_error(measured_ns: Floats, predicted_ns: Floats) -> Floats:
    """Return |predicted - measured| / measured in percent, shape (n,)."""
    return 100.0 * np.abs(predicted_ns - measured_ns) / measured_ns


def log2_ratio(measured_ns: Floats, predicted_ns: Floats) -> Floats:
    """Return log2(predicted / measured), shape (n,); +1: the prediction is twice the time."""
    return np.log2(predicted_ns) - np.log2(measured_ns)


def symmetric_factor(measured_ns: Floats, predicted_ns: Floats) -> Floats:
    """Return max(predicted / measured, measured / predicted), shape (n,), at least 1.

    >>> symmetric_factor(np.array([10.0, 10.0]), np.array([5.0, 20.0]))
    array([2., 2.])
    """
    return np.maximum(predicted_ns / measured_ns, measured_ns / predicted_ns)


def _statistics(scored: Scored, min_configs: int) -> Iterator[Statistic]:
    ape = absolute_percentage_error(scored.measured_ns, scored.predicted_ns)
    ratio = log2_ratio(scored.measured_ns, scored.predicted_ns)
    factor = symmetric_factor(scored.measured_ns, scored.predicted_ns)
    family = scored.family
    yield Statistic(name="mape_percent", kind="mean", values=ape, family=family)
    yield Statistic(name="median_ape_percent", kind="median", values=ape, family=family)
    yield Statistic(name="median_log2_ratio", kind="median", values=ratio, family=family)
    yield Statistic(name="rmse_log2", kind="root_mean", values=ratio * ratio, family=family)
    for name, limit in WITHIN.items():
        within = (factor <= limit * (1 + _ROUNDING)).astype(np.float64)
        yield Statistic(name=f"share_within_{name}", kind="mean", values=within, family=family)
    yield Statistic(name="median_factor", kind="median", values=factor, family=family)
    yield Statistic(name="p90_factor", kind="p90", values=factor, family=family)
    kernels, first, index = np.unique(scored.kernel, return_index=True, return_inverse=True)
    for name, values in _by_kernel(_parts(ape, index), _parts(factor, index)).items():
        owner = family[first]
        yield Statistic(name=f"macro_{name}", kind="mean", values=values, family=owner)
        yield Statistic(name=f"median_kernel_{name}", kind="median", values=values, family=owner)
    codes, rho = spearman_by_group(
        scored.measured_ns, scored.predicted_ns, scored.kernel, min_configs
    )
    owner = family[first[np.searchsorted(kernels, codes)]]
    yield Statistic(name="spearman_mean", kind="mean", values=rho, family=owner)
    yield Statistic(name="spearman_median", kind="median", values=rho, family=owner)
    yield from _choice_statistics(scored)
    if scored.low_ns is not None and scored.high_ns is not None:
        yield from _interval_statistics(scored, scored.low_ns, scored.high_ns)


def _by_kernel(apes: list[Floats], factors: list[Floats]) -> dict[str, Floats]:
    """Return each kernel's figures, made from the errors of its rows, shape (k,) each."""
    return {
        "mape_percent": np.array([np.mean(part) for part in apes], dtype=np.float64),
        "median_ape_percent": np.array([np.median(part) for part in apes], dtype=np.float64),
        **{
            f"share_within_{name}": np.array(
                [np.mean(part <= limit * (1 + _ROUNDING)) for part in factors], dtype=np.float64
            )
            for name, limit in WITHIN.items()
        },
        "median_factor": np.array([np.median(part) for part in factors], dtype=np.float64),
        "p90_factor": np.array([quantile(part, 0.9) for part in factors], dtype=np.float64),
    }


def _interval_statistics(scored: Scored, low_ns: Floats, high_ns: Floats) -> Iterator[Statistic]:
    inside = ((low_ns <= scored.measured_ns) & (scored.measured_ns <= high_ns)).astype(np.float64)
    family = scored.family
    yield Statistic(name="coverage", kind="mean", values=inside, family=family)
    families, index = np.unique(family, return_inverse=True)
    share = np.bincount(index, inside) / np.bincount(index) if len(inside) else inside
    yield Statistic(name="family_coverage", kind="mean", values=share, family=families)
    if scored.interval_level is not None:
        covered = (share >= scored.interval_level - _ROUNDING).astype(np.float64)
        yield Statistic(name="families_covered", kind="mean", values=covered, family=families)
    width = high_ns / low_ns
    yield Statistic(name="interval_width_ratio", kind="median", values=width, family=family)


def _parts(values: Floats, index: Codes) -> list[Floats]:
    if len(values) == 0:
        return []
    order = np.argsort(index, kind="stable")
    return np.split(values[order], np.cumsum(np.bincount(index))[:-1])


def _choice_statistics(scored: Scored) -> Iterator[Statistic]:
    regret = choice_regret(scored.measured_ns, scored.predicted_ns, scored.choice)
    choices, first = np.unique(scored.choice, return_index=True)
    owner = scored.family[first[np.searchsorted(choices, regret.group)]]
    chosen = 100.0 * regret.chosen
    yield Statistic(name="regret_mean_percent", kind="mean", values=chosen, family=owner)
    yield Statistic(name="regret_median_percent", kind="median", values=chosen, family=owner)
    yield Statistic(
        name="regret_random_percent", kind="mean", values=100.0 * regret.random, family=owner
    )


Block = dict[str, object]


def summarise(
    scored: Scored, *, min_configs: int = 5, replicates: int = 0, seed: int = 0, level: float = 0.95
) -> Block:
    """Return every metric of the module's table over ``scored``.

    Args:
        scored: the rows.
        min_configs: minimum number of rows of a kernel for a rank correlation.
        replicates: number of bootstrap draws; 0: no intervals.
        seed: seed of the draws.
        level: confidence level of the bootstrap intervals (percentile method).

    Returns:
        Counts (num_rows, num_kernels, num_families, num_choices, and num_ranked: the kernels in
        spearman_*) and one number per metric, None where undefined. If ``replicates`` is not 0,
        also ``ci``: [low, high] of each metric, None for fewer than two families.
    """
    families = np.unique(scored.family)
    statistics = list(_statistics(scored, min_configs))
    block: Block = {
        "num_rows": len(scored.measured_ns),
        "num_kernels": len(np.unique(scored.kernel)),
        "num_families": len(families),
        "num_choices": _num_choices(scored.choice),
        "num_ranked": next(len(one.values) for one in statistics if one.name == "spearman_mean"),
    }
    block.update({item.name: item.point() for item in statistics})
    if replicates > 0 and len(scored.measured_ns):
        draws = family_draws(len(families), replicates, seed)
        block["ci_level"] = level
        block["ci"] = {
            item.name: bootstrap_interval(item, families, draws, level)
            if len(families) > 1
            else None
            for item in statistics
        }
    return block


def _num_choices(choice: Codes) -> int:
    _, rows = np.unique(choice[choice >= 0], return_counts=True)
    return int(np.sum(rows >= 2))


def metrics_table(
    scored: Scored, *, min_configs: int = 5, replicates: int = 1000, seed: int = 0
) -> dict[str, object]:
    """Return the metrics of ``all`` rows, of those ``from_10_us``, and ``by`` slice and label."""
    long = scored.where(scored.measured_ns >= LONG_LAUNCH_NS)
    table: dict[str, object] = {
        "all": summarise(scored, min_configs=min_configs, replicates=replicates, seed=seed),
        "from_10_us": summarise(long, min_configs=min_configs, replicates=replicates, seed=seed),
    }
    by: dict[str, dict[str, Block]] = {}
    for name, labels in scored.slices.items():
        by[name] = {
            str(label): summarise(scored.where(labels == label), min_configs=min_configs)
            for label in np.unique(labels)
        }
    table["by"] = by
    return table


def censored_share(num_ok: Mapping[str, int], num_censored: Mapping[str, int]) -> Block:
    """Return the share of launches without a time because of the time budget, overall and by label.

    Censored rows have no error, so without this share a table would hide the missing long launches.

    Args:
        num_ok: number of timed rows by label (regime).
        num_censored: number of ``over_time_budget`` rows by label.
    """
    labels = sorted({*num_ok, *num_censored})
    by = {label: _share(num_censored.get(label, 0), num_ok.get(label, 0)) for label in labels}
    return {"all": _share(sum(num_censored.values()), sum(num_ok.values())), "by": by}


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def noise_floor_median_ape_percent(median_ns: Floats, iqr_ns: Floats) -> float | None:
    """Return the median APE, against single readings, of a model that predicts medians exactly.

    For a symmetric distribution the median of |reading - median| is half the interquartile range.
    This is the noise *within* a run; the noise between runs is larger
    (docs/explanation/measurement.md).
    """
    known = np.isfinite(iqr_ns) & (median_ns > 0)
    if not np.any(known):
        return None
    return float(np.median(50.0 * iqr_ns[known] / median_ns[known]))
