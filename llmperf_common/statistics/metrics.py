"""How good predictions are: errors, rankings, choices, intervals, each with a bootstrap over families.

Owns the definitions below, pooled over rows and macro-averaged over kernels. Does not own which rows are
scored (``trainer/evaluation/evaluate.py``) nor how they are shown. All arrays have shape (n,), one entry a row.

==========================  ===========================================================================
key                         meaning
==========================  ===========================================================================
mape_percent                mean of |predicted - measured| / measured
median_ape_percent          median of the same
median_log2_ratio           median of log2(predicted / measured); negative: predicts too short
rmse_log2                   root mean square of log2(predicted / measured)
share_within_1_25, _1_5,    share of launches whose factor max(predicted / measured, measured / predicted)
_2                          is at most 1.25, 1.5 or 2. MAPE counts a guess of a tenth as 90 % and one of ten
                            times as 900 %, so it flatters low guesses; the factor is the same for both
median_factor, p90_factor   median and 90th percentile of that factor
macro_KEY                   mean over kernels of each kernel's KEY: mape_percent, median_ape_percent,
                            the shares and the factors
median_kernel_KEY           median over kernels of the same
spearman_mean, _median      over kernels of >= min_configs rows: rank correlation within the kernel; a
                            prediction that is constant within a kernel ranks nothing and counts as 0
regret_mean_percent,        over groups that differ in the local size only: measured time at the predicted
regret_median_percent       best local size over the best measured one, minus 1; ties count their mean
regret_random_percent       the same for a choice by lot: what no knowledge costs
coverage                    share of rows whose measured time lies within [low_ns, high_ns]
family_coverage             mean over families of the share of each family's rows within: what the
                            intervals promise of a new family, whatever its number of rows
families_covered            share of families of which at least interval_level of the rows lie within
interval_width_ratio        median of high_ns / low_ns
==========================  ===========================================================================
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
"""Nanoseconds from which metrics are also given: below, a GPU's launch floor and timer noise
dominate."""

WITHIN = {"1_25": 1.25, "1_5": 1.5, "2": 2.0}
"""Ends of metric names to the factors they stand for."""

_ROUNDING = 1e-12
"""Tolerance of comparisons: nine rows of ten are 90 %, and 3 / 2 is within a factor of 1.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Measured and predicted times of n rows, with what they are grouped by.

    Attributes:
        measured_ns: positive.
        predicted_ns: positive.
        low_ns: lower ends of the intervals, or None where the model gives none.
        high_ns: upper ends, or None.
        interval_level: coverage that the intervals promise, or None where that is not known.
        kernel: code of (kernel, device class); rankings are within one code.
        family: code of the kernel's family; the bootstrap draws these.
        choice: code of the rows that differ in their local size only; -1 for rows without a choice.
        slices: names of further groupings ("suite", "regime", ...) to one label a row.
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
        """Return the rows for which ``mask`` (shape (n,)) is true; slices are not carried along."""
        picked: dict[str, Any] = {
            item.name: None if getattr(self, item.name) is None else getattr(self, item.name)[mask]
            for item in fields(self)
            if item.name not in {"slices", "interval_level"}
        }
        return Scored(**picked, interval_level=self.interval_level)


def encode(*columns: npt.ArrayLike) -> Codes:
    """Return one code a row, equal exactly where all ``columns`` (each shape (n,)) are equal."""
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
    """Return log2(predicted / measured), shape (n,): +1 predicts twice the time."""
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
    """Return the figures of each kernel, shape (k,) each, from its rows' errors."""
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
    """Compute every metric of the module's table over ``scored``.

    Args:
        scored: the rows.
        min_configs: fewest rows of a kernel that are ranked.
        replicates: bootstrap draws of families; 0 leaves the intervals out.
        seed: of the draws.
        level: of the bootstrap intervals (percentile method).

    Returns:
        Counts (num_rows, num_kernels, num_families, num_choices, num_ranked: the kernels of spearman_*) and one number a metric, None where
        it is not defined; with ``replicates`` also ``ci``: metric to [low, high], null below two families.
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
    """Return ``all``, ``from_10_us`` (both with bootstrap intervals) and ``by``: slice to label to block."""
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
    """Return the share of launches cut off by the time budget, over all and by label.

    A censored row has no time and so no error: a table without this share flatters the long launches.

    Args:
        num_ok: label (regime) to timed rows.
        num_censored: label to ``over_time_budget`` rows.
    """
    labels = sorted({*num_ok, *num_censored})
    by = {label: _share(num_censored.get(label, 0), num_ok.get(label, 0)) for label in labels}
    return {"all": _share(sum(num_censored.values()), sum(num_ok.values())), "by": by}


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def noise_floor_median_ape_percent(median_ns: Floats, iqr_ns: Floats) -> float | None:
    """Return the median APE that a perfect prediction of the median has against one further reading.

    For a symmetric distribution the median of |reading - median| is half the interquartile range. This is
    noise *within* a run; between two runs it is larger (docs/explanation/measurement.md).
    """
    known = np.isfinite(iqr_ns) & (median_ns > 0)
    if not np.any(known):
        return None
    return float(np.median(50.0 * iqr_ns[known] / median_ns[known]))
