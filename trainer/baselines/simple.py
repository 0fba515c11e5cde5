"""Simple baselines that every model must beat. They need numpy only and are saved as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from llmperf_common.features.features import feature_names, named_features, unknown_features
from llmperf_common.files.json_numbers import number, numbers
from trainer.data.foreign_files import read_json_value
from trainer.interface import MOST_LOG2_NS, FitData, Floats, Predicted, Rows

MODEL_FILE = "model.json"
MOST_NUMBER = 1e30
"""Limit of the other numbers in a model's file."""
LEAST_SCALE = 1e-9
"""Smallest standard deviation in a model's file: the fits replace smaller ones, or leave the
feature out."""
_FLOOR_FEATURE = "log2_launch_floor_ns"

_LARGEST_Z = 4.0
"""Limit of standardised features, in standard deviations. Without it the model would predict
extreme times outside of the range of the fit rows."""
_SMALLEST_SHARE_ABOVE_FLOOR = 0.05
"""Smallest share of a time that counts as above the launch floor: less is timer noise, not work."""


def write_model_json(folder: Path, content: dict[str, Any]) -> None:
    """Write ``model.json`` into ``folder``; floats keep all their bits."""
    text = json.dumps({"schema": 1, **content}, indent=1, allow_nan=False)
    (folder / MODEL_FILE).write_text(text + "\n", encoding="utf-8")


def read_model_json(folder: Path, name: str) -> dict[str, Any]:
    """Read ``model.json`` of the model ``name``.

    Raises:
        ValueError: The file is missing, not JSON, of another schema, or of another model.
    """
    path = folder / MODEL_FILE
    try:
        content = read_json_value(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(content, dict) or content.get("schema") != 1 or content.get("name") != name:
        raise ValueError(f"{path}: does not hold a model named {name!r} with schema version 1")
    return content


def log2_time(content: Mapping[str, Any], name: str) -> float:
    """Return a logarithm of times or of their ratio from ``model.json``. Raises ValueError."""
    return number(
        content.get(name), f"{MODEL_FILE}: {name}", least=-MOST_LOG2_NS, most=MOST_LOG2_NS
    )


def model_features(
    content: Mapping[str, Any], key: str, inner: str | None = None
) -> tuple[str, ...]:
    """Return the names of a model's features from ``model.json``.

    Args:
        content: the content of the file.
        key: the list of features.
        inner: the key of the name, if the list has objects.

    Raises:
        ValueError: There is no feature, one is there twice, or this release does not compute one.
    """
    found = content.get(key)
    terms = found if isinstance(found, list) else []
    if inner is not None:
        terms = [one.get(inner) if isinstance(one, dict) else None for one in terms]
    names = [one for one in terms if isinstance(one, str)]
    if not names or len(names) < len(terms):
        raise ValueError(f"{MODEL_FILE}: {key} does not list features")
    lost = unknown_features(names)
    if lost:
        raise ValueError(
            f"{MODEL_FILE}: this release does not compute the feature {lost[0]!r:.60}: "
            "train the model again"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"{MODEL_FILE}: {key} lists a feature twice")
    return tuple(names)


def term_numbers(
    content: Mapping[str, Any], key: str, name: str, *, least: float = -MOST_NUMBER
) -> Floats:
    """Return the number ``name`` of each object in the list ``key``. Raises ValueError."""
    values = [one.get(name) for one in content[key]]
    return numbers(values, f"{MODEL_FILE}: {name} of {key}", least=least, most=MOST_NUMBER)


def weighted_median(values: Floats, weight: Floats) -> float:
    """Return the smallest value with at least half of the weight at or below it.

    >>> weighted_median(np.array([3.0, 1.0, 2.0]), np.ones(3))
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


@dataclass(slots=True)
class GlobalMedian:
    """Predicts the median of the training times for every launch: the lowest bar."""

    log2_ns: float
    name: str = "global-median"
    refits: bool = True

    @classmethod
    def fit(cls, data: FitData) -> Self:
        """Take the weighted median of the targets."""
        return cls(log2_ns=weighted_median(data.log2_ns, data.weight))

    def predict(self, rows: Rows) -> Predicted:
        """Return the median for each row."""
        return Predicted(log2_ns=np.full(len(rows), self.log2_ns))

    def save(self, folder: Path) -> None:
        """Write ``model.json``."""
        write_model_json(folder, {"name": self.name, "log2_ns": self.log2_ns})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read ``model.json``."""
        return cls(log2_ns=log2_time(read_model_json(folder, "global-median"), "log2_ns"))


@dataclass(slots=True)
class LaunchFloorLogLinear:
    """time = launch floor + 2**(w . z + b): z are standardised features, ridge regression fits w.

    Near the floor log2(time - floor) is mostly noise. Therefore each row has the weight
    ((time - floor) / time)**2, the precision of the target if times have equal relative errors.
    """

    names: tuple[str, ...]
    mean: Floats
    scale: Floats
    coefficients: Floats
    intercept: float
    fallback_floor_ns: float
    name: str = "log-linear"
    refits: bool = True

    @classmethod
    def fit(cls, data: FitData, *, ridge: float) -> Self:
        """Solve the weighted ridge regression in closed form.

        Args:
            data: what to fit; the validation part is not used.
            ridge: penalty on the standardised coefficients.
        """
        features, names = data.rows.features, feature_names()
        time_ns = np.exp2(data.log2_ns)
        mean, scale = _standardisation(features)
        fallback = float(time_ns.min())
        floor = np.minimum(_floor_ns(features, names, fallback), 0.95 * time_ns)
        share = np.maximum(1 - floor / time_ns, _SMALLEST_SHARE_ABOVE_FLOOR)
        target = np.log2(share * time_ns)
        weight = data.weight * share**2
        z = _standardised(features, mean, scale)
        centre, level = np.average(z, axis=0, weights=weight), np.average(target, weights=weight)
        inner = z - centre
        gram = (inner * weight[:, None]).T @ inner + ridge * np.eye(z.shape[1])
        right = (inner * weight[:, None]).T @ (target - level)
        try:
            solved = np.linalg.solve(gram, right)
        except np.linalg.LinAlgError:  # the penalty is so small that rounding removes it
            solved = np.linalg.lstsq(gram, right)[0]
        return cls(
            names=names,
            mean=mean,
            scale=scale,
            coefficients=solved,
            intercept=float(level - centre @ solved),
            fallback_floor_ns=fallback,
        )

    def predict(self, rows: Rows) -> Predicted:
        """Return log2(floor + work)."""
        # Not a matrix product: a row's sum must not depend on the number of rows in the call.
        features = named_features(rows.features, self.names)
        z = _standardised(features, self.mean, self.scale)
        work = np.sum(z * self.coefficients, axis=1) + self.intercept
        floor = _floor_ns(features, self.names, self.fallback_floor_ns)
        log2_ns = np.asarray(np.log2(floor + np.exp2(work)), dtype=np.float64)
        return Predicted(log2_ns=log2_ns)

    def save(self, folder: Path) -> None:
        """Write ``model.json``, with one object for each feature."""
        terms = [
            {
                "feature": name,
                "mean": float(mean),
                "scale": float(scale),
                "coefficient": float(weight),
            }
            for name, mean, scale, weight in zip(
                self.names, self.mean, self.scale, self.coefficients, strict=True
            )
        ]
        content = {
            "name": self.name,
            "intercept": self.intercept,
            "fallback_floor_ns": self.fallback_floor_ns,
            "terms": terms,
        }
        write_model_json(folder, content)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read ``model.json``.

        Raises:
            ValueError: The file is missing or damaged.
        """
        content = read_model_json(folder, "log-linear")
        names = model_features(content, "terms", "feature")
        if _FLOOR_FEATURE not in names:
            raise ValueError(f"{MODEL_FILE}: terms lacks the feature {_FLOOR_FEATURE}")
        return cls(
            names=names,
            mean=term_numbers(content, "terms", "mean"),
            scale=term_numbers(content, "terms", "scale", least=LEAST_SCALE),
            coefficients=term_numbers(content, "terms", "coefficient"),
            intercept=number(
                content.get("intercept"),
                f"{MODEL_FILE}: intercept",
                least=-MOST_NUMBER,
                most=MOST_NUMBER,
            ),
            fallback_floor_ns=number(
                content.get("fallback_floor_ns"),
                f"{MODEL_FILE}: fallback_floor_ns",
                least=0,
                most=MOST_NUMBER,
            ),
        )


def _standardisation(features: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(features)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, features, 0.0).sum(axis=0) / count
    spread = np.where(known, features - mean, 0.0)
    scale = np.sqrt((spread * spread).sum(axis=0) / count)
    return mean, np.where(scale > 1e-9, scale, 1.0)


def _standardised(features: Floats, mean: Floats, scale: Floats) -> Floats:
    filled = np.where(np.isfinite(features), features, mean)
    return np.clip((filled - mean) / scale, -_LARGEST_Z, _LARGEST_Z)


def _floor_ns(features: Floats, names: tuple[str, ...], fallback_ns: float) -> Floats:
    measured = features[:, names.index(_FLOOR_FEATURE)]
    return np.where(np.isfinite(measured), np.exp2(np.nan_to_num(measured)), fallback_ns)
