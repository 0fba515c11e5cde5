"""What every model of ours can do: predict log2(ns) for rows, and live in a folder.

Owns the protocol that the tree and linear baselines share with the language-model regressor, and the rows
they are given. How a model is fitted is its own business (``trainer/life/fitting.py`` knows all of them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

Progress = Callable[[str], object]
"""Told one line at each step of a long call; the command line shows it, tests collect it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Launch configs to predict, as numbers and as the tables they came from.

    Attributes:
        features: shape (n, f), the columns of ``llmperf_common.features.features.feature_names()``.
        samples: n rows with at least ``global_size, local_size, args`` (schema ``SAMPLES``).
        kernels: kernels rows with at least ``name, source, args, build, device_class`` (schema
            ``KERNELS``); models that read text take the source from here, and must say so where it is
            null. ``build.options`` holds the macros that the source alone does not say.
        kernel_row: for each sample the row of its kernel in ``kernels``, shape (n,).
    """

    features: Floats
    samples: pa.Table
    kernels: pa.Table
    kernel_row: Codes

    def __len__(self) -> int:
        return len(self.features)

    def take(self, index: npt.NDArray[np.intp]) -> Rows:
        """Return the rows at ``index`` (shape (m,)), in that order."""
        return Rows(
            features=self.features[index],
            samples=self.samples.take(pa.array(index)),
            kernels=self.kernels,
            kernel_row=self.kernel_row[index],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FitData:
    """What a model is fitted on and chosen with.

    Attributes:
        rows: the train part, n rows.
        log2_ns: log2 of the measured medians, shape (n,).
        family: code of each row's family, shape (n,): cross-validation keeps them together.
        weight: positive weights with mean 1, shape (n,).
        validation: rows to choose on (early stopping), or None.
        validation_log2_ns: their targets, or None.
    """

    rows: Rows
    log2_ns: Floats
    family: Codes
    weight: Floats
    validation: Rows | None = None
    validation_log2_ns: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What a model says about n launches.

    Attributes:
        log2_ns: log2 of the predicted times in ns, shape (n,), all finite.
        spread: how far off the model expects to be, shape (n,), positive: the mean of
            abs(log2(measured / predicted)); None from a model that expects the same of every launch.
        is_cut: whether the model read a part of the kernel's source only, because its context is shorter,
            shape (n,); None from a model that reads no source, or all of it.
    """

    log2_ns: Floats
    spread: Floats | None = None
    is_cut: npt.NDArray[np.bool_] | None = None


@runtime_checkable
class Predictor(Protocol):
    """A fitted model. ``load`` of what ``save`` wrote predicts the same, bit by bit.

    Attributes:
        name: of the model.
        refits: whether it is fitted again on a part of the families within seconds, so that
            out-of-fold errors can be had. A language model is not.
    """

    name: str
    refits: bool

    def predict(self, rows: Rows) -> Predicted:
        """Return what the model says about the rows."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model into ``folder`` (there, empty): text, JSON or arrays, never a pickle."""
        ...

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ValueError: A file is missing or not as ``save`` writes it.
        """
        ...
