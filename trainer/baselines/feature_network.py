"""Small neural networks over the launch features, evaluated in numpy; the shipped models use them.

Owns the form of the network, its evaluation and its files. Evaluation needs neither a GPU nor
torch; only the fit (``trainer/fit/feature_network.py``) needs torch. The prediction is the mean of
several networks with different seeds.

A network models the time as a sum of a few terms (such as launch floor, memory, arithmetic). Each
term is a power law of the sizes with a learnt correction. A power law also holds beyond the
training sizes, where a plain network would saturate.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from llmperf_common.features.features import named_features
from llmperf_common.files.json_numbers import number, whole
from llmperf_common.files.plain_files import UnfitFileError, check_plain
from llmperf_common.files.visible import shown_value
from trainer.baselines.simple import (
    LEAST_SCALE,
    MODEL_FILE,
    MOST_NUMBER,
    log2_time,
    model_features,
    read_model_json,
    term_numbers,
    write_model_json,
)
from trainer.interface import Codes, Floats, Predicted, Rows

NAME = "feature-network"
WEIGHTS_FILE = "weights.npz"

LARGEST_Z = 6.0
"""Limit of standardised features, in standard deviations: an extreme size must not dominate."""
NORM_EPSILON = 1e-5
"""Constant added to the variance in a layer norm: torch's default, which the fit uses."""
TERM_SCALE_LOG2 = 3.0
"""One unit of a network's output in log2(ns): about the standard deviation of measured times."""

MAX_ARRAYS_BYTES = 512 * 2**20
"""Maximum bytes of a model's arrays in memory, in the types that the model computes with."""

_ROWS_AT_ONCE = 64
"""Rows of one matrix product; the last product is padded with zeros. With one shape only, a row's
prediction does not depend on the number of rows in the call. But on processors with AVX2
and without AVX-512, OpenBLAS's rounding of a row also depends on the row's place in the product:
this changes log2(ns) by about 1e-7."""

Single = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScaling:
    """The conversion of launch features to inputs: g z-scores and k missing-value indicators.

    Attributes:
        names: names of the g features used.
        mean: means of these features over the fit rows with a known value, shape (g,).
        scale: standard deviations of these features over the same rows, shape (g,).
        marked: indices into ``names`` of the features with a missing-value indicator, shape (k,).
    """

    names: tuple[str, ...]
    mean: Floats
    scale: Floats
    marked: Codes

    @classmethod
    def fit(cls, features: Floats, names: tuple[str, ...]) -> Self:
        """Compute the scaling from the fit rows; constant features are left out.

        Args:
            features: shape (n, f); NaN is unknown.
            names: names of the f features.

        Raises:
            ValueError: No feature varies.
        """
        known = np.isfinite(features)
        count = np.maximum(known.sum(axis=0), 1)
        filled = np.where(known, features, 0.0)
        mean = filled.sum(axis=0) / count
        scale = np.sqrt((np.where(known, features - mean, 0.0) ** 2).sum(axis=0) / count)
        used = np.flatnonzero(scale > _LEAST_SCALE)
        if len(used) == 0:
            raise ValueError("no feature varies over the fit rows")
        share = 1 - known[:, used].mean(axis=0)
        return cls(
            names=tuple(names[column] for column in used),
            mean=mean[used],
            scale=scale[used],
            marked=np.flatnonzero((share > _RARE) & (share < 1 - _RARE)),
        )

    def inputs(self, features: Floats) -> Single:
        """Return the network's inputs, shape (n, g + k).

        Args:
            features: shape (n, g), the columns ``names``.
        """
        z = np.clip((features - self.mean) / self.scale, -LARGEST_Z, LARGEST_Z)
        unknown = np.isnan(z)
        z[unknown] = 0.0
        return np.concatenate([z, unknown[:, self.marked]], axis=1).astype(np.float32)


_LEAST_SCALE = 1e-4
"""A feature with a smaller standard deviation is constant, as the peaks in data of one device are."""
_RARE = 0.002
"""A feature gets a missing-value indicator if its share of unknown values is above this and below 1
minus this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of e networks with b residual blocks, i inputs, h units and t terms; float32.

    Attributes:
        into: shape (e, i, h); into_bias: (e, h).
        norm: gain and shift before each block, shape (e, b, 2, h).
        up: shape (e, b, h, 2h); up_bias: (e, b, 2h).
        down: shape (e, b, 2h, h); down_bias: (e, b, h).
        last_norm: gain and shift before the output, shape (e, 2, h).
        out: shape (e, h, t + 1), the last column is for the spread; out_bias: (e, t + 1).
        skip: linear map from the inputs to the terms, shape (e, i, t).
    """

    into: Single
    into_bias: Single
    norm: Single
    up: Single
    up_bias: Single
    down: Single
    down_bias: Single
    last_norm: Single
    out: Single
    out_bias: Single
    skip: Single

    def __post_init__(self) -> None:
        """Check that the arrays fit together.

        Raises:
            ValueError: A shape does not match the others, or a value is not finite.
        """
        if self.into.ndim != 3 or self.up.ndim != 4 or self.skip.ndim != 3:
            raise ValueError(
                "feature network: array 'into', 'up' or 'skip' has a wrong number of dimensions"
            )
        if 0 in (*self.into.shape, *self.skip.shape):
            raise ValueError("feature network: array 'into' or 'skip' is empty")
        (e, i, h), b, t = self.into.shape, self.up.shape[1], self.skip.shape[2]
        shapes = {
            "into": (e, i, h), "into_bias": (e, h), "norm": (e, b, 2, h), "up": (e, b, h, 2 * h),
            "up_bias": (e, b, 2 * h), "down": (e, b, 2 * h, h), "down_bias": (e, b, h),
            "last_norm": (e, 2, h), "out": (e, h, t + 1), "out_bias": (e, t + 1), "skip": (e, i, t),
        }  # fmt: skip
        for name, wanted in shapes.items():
            array = getattr(self, name)
            if array.shape != wanted:
                raise ValueError(
                    f"feature network: array {name!r} has shape {array.shape}, not {wanted}"
                )
            if not np.all(np.isfinite(array)):
                raise ValueError(f"feature network: array {name!r} has a value that is not finite")

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights."""
        return sum(getattr(self, one.name).nbytes for one in fields(self))

    @property
    def num_networks(self) -> int:
        """Number of networks."""
        return len(self.into)

    def answers(self, inputs: Single, network: int) -> tuple[Floats, Floats]:
        """Return log2(ns) minus the centre, and the spread, of one network; shape (n,) each.

        Args:
            inputs: shape (n, i).
            network: index from 0 to e - 1.
        """
        state = inputs @ self.into[network] + self.into_bias[network]
        for block in range(self.up.shape[1]):
            gain, shift = self.norm[network, block]
            inner = _norm(state, gain, shift) @ self.up[network, block]
            inner = _silu(inner + self.up_bias[network, block])
            state = state + (inner @ self.down[network, block] + self.down_bias[network, block])
        gain, shift = self.last_norm[network]
        found = _norm(state, gain, shift) @ self.out[network] + self.out_bias[network]
        terms = TERM_SCALE_LOG2 * (found[:, :-1] + inputs @ self.skip[network]).astype(np.float64)
        largest = terms.max(axis=1)
        log2_ns = largest + np.log2(np.exp2(terms - largest[:, None]).sum(axis=1))
        return log2_ns, np.logaddexp(0.0, found[:, -1].astype(np.float64))


def _norm(state: Single, gain: Single, shift: Single) -> Single:
    centred = state - state.mean(axis=1, keepdims=True)
    variance = np.mean(centred * centred, axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.float32(NORM_EPSILON)) * gain + shift)


def _silu(values: Single) -> Single:
    # The clip keeps exp within float32; below -80 silu is 0 to seven digits.
    return np.asarray(values / (1.0 + np.exp(-np.clip(values, -80.0, 80.0))), dtype=np.float32)


@dataclass(slots=True, kw_only=True)
class FeatureNetwork:
    """Fitted networks; the prediction is the mean of their outputs.

    Attributes:
        scaling: conversion of features to inputs.
        weights: the weights of all networks.
        centre_log2_ns: added to the networks' outputs.
        spread_scale: factor on the networks' spreads, measured on the validation part.
        chosen: settings of the fit, JSON values.
    """

    scaling: InputScaling
    weights: Weights
    centre_log2_ns: float
    spread_scale: float
    chosen: Mapping[str, Any]
    name: str = NAME
    refits: bool = False

    def predict(self, rows: Rows) -> Predicted:
        """Return the mean of log2(ns) and of the spread over the networks."""
        inputs = self.scaling.inputs(named_features(rows.features, self.scaling.names))
        log2_ns, spread = np.zeros(len(inputs)), np.zeros(len(inputs))
        for first, num, filled in _batches(inputs):
            for network in range(self.weights.num_networks):
                time, width = self.weights.answers(filled, network)
                log2_ns[first : first + num] += time[:num]
                spread[first : first + num] += width[:num]
        num_networks = self.weights.num_networks
        return Predicted(
            log2_ns=log2_ns / num_networks + self.centre_log2_ns,
            spread=np.maximum(spread / num_networks * self.spread_scale, _LEAST_SPREAD),
        )

    def save(self, folder: Path) -> None:
        """Write ``model.json`` and ``weights.npz`` (float16; lossless after the fit's rounding)."""
        content = {
            "name": self.name,
            "centre_log2_ns": self.centre_log2_ns,
            "spread_scale": self.spread_scale,
            "features": [
                {"feature": name, "mean": mean, "scale": scale}
                for name, mean, scale in zip(
                    self.scaling.names,
                    self.scaling.mean.tolist(),
                    self.scaling.scale.tolist(),
                    strict=True,
                )
            ],
            "marked": self.scaling.marked.tolist(),
            "chosen": dict(self.chosen),
        }
        write_model_json(folder, content)
        halves: dict[str, Any] = {
            one.name: getattr(self.weights, one.name).astype(np.float16) for one in fields(Weights)
        }
        np.savez_compressed(folder / WEIGHTS_FILE, **halves)

    @classmethod
    def load(cls, folder: Path, *, max_bytes: int = MAX_ARRAYS_BYTES) -> Self:
        """Read what ``save`` wrote; the weights may take ``max_bytes`` in memory.

        Raises:
            ValueError: A file is missing or damaged.
        """
        content = read_model_json(folder, NAME)
        names = model_features(content, "features", "feature")
        scaling = InputScaling(
            names=names,
            mean=term_numbers(content, "features", "mean"),
            scale=term_numbers(content, "features", "scale", least=LEAST_SCALE),
            marked=_marked(content.get("marked"), len(names)),
        )
        types = {one.name: np.float32 for one in fields(Weights)}
        weights = Weights(**read_arrays(folder / WEIGHTS_FILE, types, max_bytes=max_bytes))
        if weights.into.shape[1] != len(names) + len(scaling.marked):
            raise ValueError(
                f"{folder / WEIGHTS_FILE}: the networks have {weights.into.shape[1]} inputs, but "
                f"{MODEL_FILE} lists {len(names)} features and {len(scaling.marked)} indicators"
            )
        return cls(
            scaling=scaling,
            weights=weights,
            centre_log2_ns=log2_time(content, "centre_log2_ns"),
            spread_scale=number(
                content.get("spread_scale"),
                f"{MODEL_FILE}: spread_scale",
                least=0,
                most=MOST_NUMBER,
            ),
            chosen=dict(content["chosen"]),
        )


def _marked(places: object, num_features: int) -> Codes:
    """Return the indices of the features with an indicator, from ``model.json``."""
    if not isinstance(places, list) or len(places) > num_features:
        raise ValueError(f"{MODEL_FILE}: marked is not a list of the features' positions")
    each = [whole(one, f"{MODEL_FILE}: marked", least=0, most=num_features - 1) for one in places]
    return np.array(each, dtype=np.int64)


_LEAST_SPREAD = 1e-3
"""Smallest spread in log2: no prediction is more accurate than 0.1 %."""


def spread_scale(said: Predicted, log2_ns: Floats) -> float:
    """Return the factor that makes the mean spread equal to the mean absolute error.

    Args:
        said: predictions, with spread, of launches that were not fitted.
        log2_ns: log2 of the measured times of these launches in ns, shape (n,).
    """
    assert said.spread is not None, "feature networks give a spread"
    return float(np.mean(np.abs(said.log2_ns - log2_ns)) / np.mean(said.spread))


def _batches(inputs: Single) -> Iterator[tuple[int, int, Single]]:
    """Yield the first row, the number of rows, and these rows padded to ``_ROWS_AT_ONCE``."""
    for first in range(0, len(inputs), _ROWS_AT_ONCE):
        part = inputs[first : first + _ROWS_AT_ONCE]
        filled = np.zeros((_ROWS_AT_ONCE, inputs.shape[1]), dtype=np.float32)
        filled[: len(part)] = part
        yield first, len(part), filled


def read_arrays(
    path: Path, types: Mapping[str, npt.DTypeLike], *, max_bytes: int = MAX_ARRAYS_BYTES
) -> dict[str, Any]:
    """Read arrays of a ``.npz`` file.

    Args:
        path: the file.
        types: names of the arrays, with the types to convert them to. Floats may be stored for
            floats only, and integers for integers.
        max_bytes: maximum bytes of the stored arrays, and of the converted ones.

    Raises:
        ValueError: The file cannot be read, an array is missing, unknown or of another kind, or
            the arrays would take more than ``max_bytes``.
    """
    try:
        # The file is opened here, because numpy does not close a damaged file.
        check_plain(path, max_bytes=MAX_ARRAYS_BYTES)
        with path.open("rb") as stored, zipfile.ZipFile(stored) as packed:
            if sum(one.file_size for one in packed.infolist()) > max_bytes:
                raise ValueError(f"decompressed it would take more than {max_bytes} bytes")
        found: dict[str, Any] = {}
        with path.open("rb") as stored, np.load(stored, allow_pickle=False) as file:
            unknown = sorted(set(file.files).difference(types))
            if unknown:
                raise ValueError(f"it has an unknown array {shown_value(unknown[0])}")
            for name, wanted in types.items():
                array, kind = _array(file, name), np.dtype(wanted)
                if array.dtype.kind != kind.kind:
                    raise ValueError(f"array {name!r} is of type {array.dtype}, not {kind}")
                num_bytes = sum(one.nbytes for one in found.values())
                if num_bytes + array.size * kind.itemsize > max_bytes:
                    raise ValueError(f"its arrays as {kind} would take more than {max_bytes} bytes")
                found[name] = array.astype(kind, copy=False)
        return found
    except (
        OSError, EOFError, KeyError, ValueError, TypeError, AttributeError, MemoryError,
        OverflowError, SyntaxError, NotImplementedError, UnfitFileError, zipfile.BadZipFile,
        zlib.error,
    ) as error:  # fmt: skip
        raise ValueError(f"{path}: {error}") from None


def _array(file: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    """Return an array of a ``.npz`` file. Raises ValueError if it is missing or damaged."""
    if name not in file:
        raise ValueError(f"array {name!r} is missing")
    try:
        array = file[name]
    except ValueError:
        # numpy's message advises to trust the file, which would run code of a foreign model.
        raise ValueError(f"array {name!r} is not a plain array of numbers") from None
    if not isinstance(array, np.ndarray):
        raise ValueError(f"array {name!r} is not in numpy's format")
    return array
