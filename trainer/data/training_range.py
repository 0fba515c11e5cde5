"""Out-of-distribution check: ranges of features and distance to the nearest train kernel.

Owns ``training_range.json``. A launch outside of the training range still gets a prediction, with
``ood: true`` and a warning that names the feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from llmperf_common.features.features import feature_meanings
from llmperf_common.files.json_numbers import number, number_rows, numbers
from trainer.interface import Codes, Floats

MAX_FILE_BYTES = 64 * 2**20
"""Maximum size of ``training_range.json`` in bytes, enough for 50,000 train kernels of 1.2 KB."""

_CHECKED_PREFIXES = ("static_", "log2_")
_SLACK_LOG2 = 0.5
"""A launch is not out of distribution if a feature exceeds its range by at most this much; for a
log2 feature that is a factor of 1.4."""
_SLACK_SHARE = 0.05
"""A feature may also exceed its range by this share of the range, if that is more than
``_SLACK_LOG2``."""
_DISTANCE_SLACK = 1.5
_DISTANCE_QUANTILE = 0.95
_MOST = 1e30
"""Limit of the numbers in the file. The features are logarithms, shares and counts, and squares of
their distances stay finite."""
_MOST_FEATURES = 4096
"""Maximum number of features in the file; this release computes fewer than 200."""
_LEAST_SCALE = 1e-9
"""Smallest standard deviation of a static feature; ``training_range`` replaces smaller ones by
1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRange:
    """Ranges of the features of the fit rows, and the static features of the train kernels.

    Attributes:
        names: names of the f features.
        low: smallest value of each feature, shape (f,); NaN where no fit row has a value.
        high: largest value of each feature, shape (f,); NaN where no fit row has a value.
        static_columns: positions of the s static features.
        kernels: standardised static features of the k train kernels, shape (k, s).
        centre: means of the static features over the kernels, shape (s,).
        scale: standard deviations of the static features over the kernels, shape (s,).
        far: a kernel is out of distribution if it is further than this from every train kernel.
    """

    names: tuple[str, ...]
    low: Floats
    high: Floats
    static_columns: tuple[int, ...]
    kernels: Floats
    centre: Floats
    scale: Floats
    far: float

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``training_range.json``."""
        ranges = {
            name: None if not np.isfinite(low) else [float(low), float(high)]
            for name, low, high in zip(self.names, self.low, self.high, strict=True)
        }
        return {
            "schema": 1,
            "ranges": ranges,
            "static": {
                "features": [self.names[column] for column in self.static_columns],
                "centre": self.centre.tolist(),
                "scale": self.scale.tolist(),
                "far": self.far,
                "kernels": self.kernels.tolist(),
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TrainingRange:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: The content has another schema, lacks a key or has a bad value.
        """
        if content.get("schema") != 1:
            raise ValueError(
                f"training_range.json has schema {content.get('schema')!r}, but this LLMPerf reads "
                "schema 1: train the run again"
            )
        try:
            ranges, static = content["ranges"], content["static"]
            names = tuple(ranges)
            if len(names) > _MOST_FEATURES:
                raise ValueError(f"it has more than {_MOST_FEATURES} features")
            pairs = np.array([_range(name, ranges[name]) for name in names]).reshape(-1, 2)
            columns = _columns(static["features"], names)
            centre = numbers(static["centre"], "centre", least=-_MOST, most=_MOST)
            scale = numbers(static["scale"], "scale", least=_LEAST_SCALE, most=_MOST)
            if not len(centre) == len(scale) == len(columns):
                raise ValueError(
                    f"centre or scale does not have {len(columns)} values (one per static feature)"
                )
            return cls(
                names=names,
                low=pairs[:, 0],
                high=pairs[:, 1],
                static_columns=columns,
                kernels=number_rows(
                    static["kernels"], len(columns), "kernels", least=-_MOST, most=_MOST
                ),
                centre=centre,
                scale=scale,
                far=number(static["far"], "far", least=0, most=_MOST),
            )
        except KeyError as error:
            raise ValueError(f"training_range.json: {error} is missing") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"training_range.json: {error}") from None


def _range(name: str, ends: object) -> tuple[float, float]:
    """Return a feature's range from the file; NaN for a feature without a known value."""
    if ends is None:
        return np.nan, np.nan
    what = f"the range of {name:.60}"
    low, high = number_rows([ends], 2, what, least=-_MOST, most=_MOST)[0]
    if low > high:
        raise ValueError(f"{what} begins above its end")
    return low, high


def _columns(features: object, names: Sequence[str]) -> tuple[int, ...]:
    """Return the positions in ``names`` of the static features that the file lists."""
    if not isinstance(features, list) or not all(isinstance(one, str) for one in features):
        raise ValueError("features is not a list of names")
    position = {name: place for place, name in enumerate(names)}
    lost = [name for name in features if name not in position]
    if lost:
        raise ValueError(f"the static feature {lost[0]!r:.40} has no range")
    if len(set(features)) < len(features):
        raise ValueError("features lists a static feature twice")
    return tuple(position[name] for name in features)


def training_range(features: Floats, names: Sequence[str], kernel_row: Codes) -> TrainingRange:
    """Return the ranges of the fit rows.

    Args:
        features: shape (n, f), n at least 1.
        names: names of the f features.
        kernel_row: code of each row's kernel, shape (n,).
    """
    known = np.isfinite(features)
    any_known = known.any(axis=0)
    low = np.where(any_known, np.where(known, features, np.inf).min(axis=0), np.nan)
    high = np.where(any_known, np.where(known, features, -np.inf).max(axis=0), np.nan)
    columns = tuple(i for i, name in enumerate(names) if name.startswith("static_"))
    _, first = np.unique(kernel_row, return_index=True)
    kernels = np.nan_to_num(features[first][:, list(columns)])
    centre = kernels.mean(axis=0)
    scale = kernels.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    standard = np.unique(np.round((kernels - centre) / scale, 6), axis=0)
    return TrainingRange(
        names=tuple(names),
        low=low,
        high=high,
        static_columns=columns,
        kernels=standard,
        centre=centre,
        scale=scale,
        far=_far(standard),
    )


def _far(kernels: Floats) -> float:
    """Return 1.5 times the 95 % quantile of the train kernels' distances to their nearest one."""
    if len(kernels) < 3:
        return float("1e9")
    nearest = []
    for row in range(len(kernels)):
        distance = np.sqrt(((kernels - kernels[row]) ** 2).sum(axis=1))
        distance[row] = np.inf
        nearest.append(distance.min())
    return float(_DISTANCE_SLACK * np.quantile(nearest, _DISTANCE_QUANTILE))


def unlike_training(rows: Floats, known: TrainingRange) -> npt.NDArray[np.bool_]:
    """Return for each launch of one kernel whether it is out of distribution, shape (n,).

    Args:
        rows: features of n launches of one kernel, shape (n, f), in the order of ``known.names``.
        known: the ranges of the fit rows.
    """
    if len(known.kernels) and _distances(rows[0], known).min() > known.far:
        return np.ones(len(rows), dtype=bool)
    return np.asarray(_outside(rows, known).any(axis=1))


def out_of_distribution(row: Floats, known: TrainingRange) -> list[str]:
    """Return how one launch differs from the training rows; empty if it is in distribution.

    Args:
        row: the features of one launch, shape (f,), in the order of ``known.names``.
        known: the ranges of the fit rows.

    Returns:
        At most three warnings about single features and at most one about the kernel. Features
        come in the order of ``known.names``: sizes that the user chose precede derived sizes.
    """
    return out_of_distribution_each(row[None], known)[0]


def out_of_distribution_each(rows: Floats, known: TrainingRange) -> list[list[str]]:
    """Return ``out_of_distribution`` for each of n launches of one kernel (``rows`` is (n, f))."""
    if len(rows) == 0:
        return []
    of_kernel = _kernel_warning(rows[0], known)
    outside = _outside(rows, known)
    return [
        [
            *(_range_warning(row, int(column), known) for column in np.flatnonzero(is_outside)[:3]),
            *of_kernel,
        ]
        for row, is_outside in zip(rows, outside, strict=True)
    ]


def _kernel_warning(row: Floats, known: TrainingRange) -> list[str]:
    if not len(known.kernels):
        return []
    distance = _distances(row, known)
    nearest = int(np.argmin(distance))
    if distance[nearest] <= known.far:
        return []
    worst = known.names[known.static_columns[int(np.argmax(_offsets(row, known)[nearest]))]]
    return [
        f"out of distribution: the kernel is unlike every training kernel (distance "
        f"{distance[nearest]:.1f}, usually at most {known.far:.1f}); {worst} differs most"
    ]


def _offsets(row: Floats, known: TrainingRange) -> Floats:
    """Return the kernel's distance to each train kernel in each static feature, shape (k, s)."""
    static = np.nan_to_num(row[list(known.static_columns)])
    return np.asarray(np.abs((static - known.centre) / known.scale - known.kernels))


def _distances(row: Floats, known: TrainingRange) -> Floats:
    return np.asarray(np.sqrt((_offsets(row, known) ** 2).sum(axis=1)))


def _outside(rows: Floats, known: TrainingRange) -> npt.NDArray[np.bool_]:
    """Return which features of n rows are outside of their training range, shape (n, f).

    A value is never outside if it is not finite or if the range of its feature is unknown.
    """
    checked = np.array([name.startswith(_CHECKED_PREFIXES) for name in known.names])
    slack = np.maximum(_SLACK_SHARE * (known.high - known.low), _SLACK_LOG2)
    excess = np.maximum(known.low - rows, rows - known.high)
    return np.asarray((excess > slack) & np.isfinite(rows) & checked)


def _range_warning(row: Floats, column: int, known: TrainingRange) -> str:
    name = known.names[column]
    return (
        f"out of distribution: {name} ({_meanings().get(name, name)}) is {row[column]:.4g}, "
        f"but training had {known.low[column]:.4g} to {known.high[column]:.4g}"
    )


@cache
def _meanings() -> dict[str, str]:
    return feature_meanings()
