"""The interface of every model: predict log2(ns) for rows, save to a folder, load from it.

Owns the ``Predictor`` protocol, and the values that a predictor takes and returns. The tree
baselines, the linear baselines and the language-model regressor implement it.
``trainer/life/fitting.py`` fits them.
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

MOST_LOG2_NS = 500.0
"""Limit of log2(time in ns) in a model's file. Squares and ratios of such times stay finite."""

Progress = Callable[[str], object]
"""Called with one line of text at each step of a long call. The command line shows the lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Launch configs to predict, as numbers and as the tables they came from.

    Attributes:
        features: shape (n, f), the columns of ``llmperf_common.features.features.feature_names()``.
        samples: n rows with at least ``global_size, local_size, args`` (schema ``SAMPLES``).
        kernels: kernels rows with at least ``name, source, args, build, device_class`` (schema
            ``KERNELS``). ``source`` may be null; a model that reads the source must report this.
            ``build.options`` holds the macros that are defined outside of the source.
        kernel_row: the row of each sample's kernel in ``kernels``, shape (n,).
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
    """The rows and targets that a model is fitted on, and those for early stopping.

    Attributes:
        rows: the train part, n rows.
        log2_ns: log2 of the measured medians in ns, shape (n,).
        family: code of each row's family, shape (n,); cross-validation keeps a family in one fold.
        weight: positive weights with mean 1, shape (n,).
        validation: the v rows of the validation part, for early stopping; None without such rows.
        validation_log2_ns: targets of ``validation``, shape (v,), or None.
    """

    rows: Rows
    log2_ns: Floats
    family: Codes
    weight: Floats
    validation: Rows | None = None
    validation_log2_ns: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The predicted times of n launches.

    Attributes:
        log2_ns: log2 of the predicted times in ns, shape (n,), all finite.
        spread: the error that the model expects of each prediction, as the mean of
            abs(log2(measured / predicted)), positive, shape (n,). None if the model does not
            estimate its error.
        is_cut: whether the kernel's source was longer than the model's context, so that the model
            read only a part, shape (n,). None from a model that never cuts a source.
    """

    log2_ns: Floats
    spread: Floats | None = None
    is_cut: npt.NDArray[np.bool_] | None = None


@runtime_checkable
class Predictor(Protocol):
    """A fitted model. After ``save`` and ``load`` its predictions are bit-identical.

    Attributes:
        name: the model's name.
        refits: whether a fit takes only seconds. Then cross-validation can fit the model again on
            parts of the train part, to get errors on rows that were not fitted (out-of-fold
            errors). False for a language model.
    """

    name: str
    refits: bool

    def predict(self, rows: Rows) -> Predicted:
        """Return the predicted times of the rows."""
        ...

    def save(self, folder: Path) -> None:
        """Write the model into ``folder``, which exists and is empty. No file is a pickle."""
        ...

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.

        Raises:
            ValueError: A file is missing, or its content is not in the form that ``save`` writes.
        """
        ...
