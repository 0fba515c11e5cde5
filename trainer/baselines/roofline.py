"""The analytic roofline (the longest of three computed times) as a predictor; needs no fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from llmperf_common.features.features import feature_names
from trainer.baselines.simple import log2_time, read_model_json, weighted_median, write_model_json
from trainer.interface import FitData, Floats, Predicted, Rows

ROOFLINE_FEATURE = "log2_roofline_ns"


def roofline_log2_ns(rows: Rows, fallback_log2_ns: float) -> Floats:
    """Return log2 of the largest of the memory, arithmetic and launch terms, shape (n,).

    Args:
        rows: the launches.
        fallback_log2_ns: result if no term is known (a device whose peaks were not measured).
    """
    known = rows.features[:, feature_names().index(ROOFLINE_FEATURE)]
    return np.where(np.isfinite(known), known, fallback_log2_ns)


@dataclass(slots=True)
class AnalyticRoofline:
    """Predicts the roofline, or the median of the training times if no term is known."""

    fallback_log2_ns: float
    name: str = "roofline"
    refits: bool = True

    @classmethod
    def fit(cls, data: FitData) -> Self:
        """Set the fallback to the weighted median of the targets; nothing else is fitted."""
        return cls(fallback_log2_ns=weighted_median(data.log2_ns, data.weight))

    def predict(self, rows: Rows) -> Predicted:
        """Return the largest term of each launch."""
        return Predicted(log2_ns=roofline_log2_ns(rows, self.fallback_log2_ns))

    def save(self, folder: Path) -> None:
        """Write ``model.json``."""
        write_model_json(folder, {"name": self.name, "fallback_log2_ns": self.fallback_log2_ns})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read ``model.json``."""
        content = read_model_json(folder, "roofline")
        return cls(fallback_log2_ns=log2_time(content, "fallback_log2_ns"))
