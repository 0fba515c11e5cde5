"""An evaluation's metrics as rows of a table, for any nesting of the metrics.

A *block* is a mapping that holds numbers; the keys above it name its model, split and slice. The
reader is made for ``llmperf_common.statistics.metrics.metrics_table``; it accepts new and
missing keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmperf.html_report.charts.markup import join, tag
from llmperf.html_report.charts.quantities import (
    LARGEST,
    NO_VALUE,
    TIMES,
    count,
    percent,
    significant,
)

_INTERVAL_KEYS = ("ci", "intervals", "confidence")
_VALUE_KEYS = ("value", "estimate", "mean", "point")
_LOW_KEYS = ("low", "ci_low", "lower")
_HIGH_KEYS = ("high", "ci_high", "upper")
_LABEL_KEYS = ("model", "split", "slice", "group", "label", "population")
_MAX_DEPTH = 8
_CONTAINERS = ("models", "splits", "metrics", "results", "rows", "tables", "table", "by")
"""Keys that only group other keys, and so name no model, split or slice."""

HEADINGS = {
    "num_rows": "Rows",
    "num_kernels": "Kernels",
    "num_families": "Families",
    "num_choices": "Choices",
    "num_ranked": "Kernels ranked",
    "mape_percent": "MAPE",
    "median_ape_percent": "Median APE",
    "median_log2_ratio": "Median log2 ratio",
    "rmse_log2": "RMSE of log2",
    "share_within_1_25": f"Within 1.25{TIMES}",
    "share_within_1_5": f"Within 1.5{TIMES}",
    "share_within_2": f"Within 2{TIMES}",
    "median_factor": "Median factor",
    "p90_factor": "Factor, 90th percentile",
    "macro_mape_percent": "MAPE by kernel",
    "median_kernel_mape_percent": "MAPE of the median kernel",
    "macro_median_ape_percent": "Median APE by kernel",
    "median_kernel_median_ape_percent": "Median APE of the median kernel",
    "macro_share_within_1_25": f"Within 1.25{TIMES} by kernel",
    "macro_share_within_1_5": f"Within 1.5{TIMES} by kernel",
    "macro_share_within_2": f"Within 2{TIMES} by kernel",
    "median_kernel_share_within_1_25": f"Within 1.25{TIMES}, median kernel",
    "median_kernel_share_within_1_5": f"Within 1.5{TIMES}, median kernel",
    "median_kernel_share_within_2": f"Within 2{TIMES}, median kernel",
    "macro_median_factor": "Median factor by kernel",
    "median_kernel_median_factor": "Median factor of the median kernel",
    "macro_p90_factor": "90th percentile of the factor by kernel",
    "median_kernel_p90_factor": "90th percentile of the factor, median kernel",
    "spearman_mean": "Spearman, mean",
    "spearman_median": "Spearman, median",
    "regret_mean_percent": "Regret, mean",
    "regret_median_percent": "Regret, median",
    "regret_random_percent": "Regret of a random choice",
    "coverage": "Coverage",
    "family_coverage": "Coverage by family",
    "families_covered": "Families covered",
    "interval_width_ratio": "Interval width",
}
_SHARE_NAMES = ("coverage", "family_coverage", "families_covered", "mape", "median_ape")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its interval; the ends are NaN without an interval."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The metrics of one model on one split (and slice, e.g. ``("by", "regime", "idle_sm")``)."""

    model: str
    split: str
    slice: tuple[str, ...]
    values: Mapping[str, Estimate]


def find_blocks(
    metrics: Mapping[str, object], models: Iterable[str], splits: Iterable[str]
) -> list[Block]:
    """Return every block in ``metrics``; known models and splits are recognised in the keys."""
    known_models, known_splits = set(models), set(splits)
    blocks = []
    for path, values in _walk(metrics, (), 0):
        model = next((key for key in path if key in known_models), "")
        split = next((key for key in path if key in known_splits), "")
        rest = tuple(key for key in path if key not in (model, split, *_CONTAINERS))
        blocks.append(Block(model=model, split=split, slice=rest, values=values))
    return blocks


def _walk(
    node: object, path: tuple[str, ...], depth: int
) -> Iterator[tuple[tuple[str, ...], dict[str, Estimate]]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, Mapping):
        labels = tuple(str(node[key]) for key in _LABEL_KEYS if isinstance(node.get(key), str))
        values = _estimates(node)
        if values:
            yield path + labels, values
        for key, child in node.items():
            if str(key) not in _INTERVAL_KEYS and str(key) not in values:
                yield from _walk(child, (*path, *labels, str(key)), depth + 1)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for child in node:
            yield from _walk(child, path, depth + 1)


def _estimates(node: Mapping[object, object]) -> dict[str, Estimate]:
    """Return the mapping's own numbers (not nested ones), with intervals from its interval keys."""
    intervals = next(
        (node[key] for key in _INTERVAL_KEYS if isinstance(node.get(key), Mapping)), {}
    )
    found: dict[str, Estimate] = {}
    for key, value in node.items():
        name = str(key)
        estimate = _estimate(value)
        if estimate is None or name == "ci_level":
            continue
        beside = intervals.get(name) if isinstance(intervals, Mapping) else None
        ends = _numbers(beside)
        if len(ends) == 2:
            estimate = Estimate(value=estimate.value, low=ends[0], high=ends[1])
        found[name] = estimate
    return found


def _estimate(value: object) -> Estimate | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return Estimate(value=_bounded(value))
    if isinstance(value, Mapping):
        parts = [_first_number(value, keys) for keys in (_VALUE_KEYS, _LOW_KEYS, _HIGH_KEYS)]
        if math.isfinite(parts[0]) and set(map(str, value)) <= _ESTIMATE_KEYS:
            return Estimate(value=parts[0], low=parts[1], high=parts[2])
    numbers = _numbers(value)
    if len(numbers) == 3:
        return Estimate(value=numbers[0], low=numbers[1], high=numbers[2])
    return None


_ESTIMATE_KEYS = {*_VALUE_KEYS, *_LOW_KEYS, *_HIGH_KEYS, "n", "level", "ci_level", "ci"}


def _first_number(node: Mapping[object, object], keys: Sequence[str]) -> float:
    for key in keys:
        value = node.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _bounded(value)
    return math.nan


def _bounded(value: float) -> float:
    """Return a number as a float; NaN if it is too large for a metric."""
    return float(value) if abs(value) <= LARGEST else math.nan


def _numbers(value: object) -> list[float]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [_bounded(v) for v in value if isinstance(v, int | float) and not isinstance(v, bool)]


def metric_names(blocks: Iterable[Block]) -> list[str]:
    """Return the metrics in ``blocks``: known metrics as in ``HEADINGS``, then others by name."""
    met = {name for block in blocks for name in block.values}
    return [name for name in HEADINGS if name in met] + sorted(met - set(HEADINGS))


def heading(name: str) -> str:
    """Return a metric's heading."""
    return HEADINGS.get(name, name.removesuffix("_percent").replace("_", " "))


def cell(name: str, estimate: Estimate | None) -> str:
    """Return a metric with its unit and, below it, its interval: 12.3 %, 10.1 to 15.2."""
    if estimate is None or not math.isfinite(estimate.value):
        return NO_VALUE
    if name.startswith("num_"):
        return count(estimate.value)
    if name.endswith("_percent") or name in _SHARE_NAMES or "share_within" in name:
        factor = 0.01 if name.endswith("_percent") else 1.0
        words = percent(estimate.value * factor)
        ends = [significant(end * factor * 100) for end in (estimate.low, estimate.high)]
    else:
        words = significant(estimate.value) + (
            TIMES if name.endswith(("_ratio", "_factor")) and "log" not in name else ""
        )
        ends = [significant(end) for end in (estimate.low, estimate.high)]
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        return join([words, tag("small", f"{ends[0]} to {ends[1]}", class_="interval")])
    return words
