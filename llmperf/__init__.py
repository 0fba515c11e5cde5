"""LLMPerf: predict the run time of a GPU kernel from its source, and collect the data for that.

This is the public Python API. ``import llmperf`` is fast, because it loads each part on first use.

>>> import llmperf
>>> llmperf.__version__
'0.1.0'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llmperf_common.errors import LlmperfError

__version__ = "0.1.0"
__all__ = [
    "CollectProgress",
    "LlmperfError",
    "Prediction",
    "__version__",
    "calibrate",
    "collect",
    "collect_on_cluster",
    "evaluate",
    "load_model",
    "open_dataset",
    "predict",
    "predict_many",
    "report",
    "train",
    "train_on_cluster",
    "verify",
]

if TYPE_CHECKING:
    from llmperf.api import (
        calibrate,
        collect,
        collect_on_cluster,
        evaluate,
        load_model,
        open_dataset,
        predict,
        predict_many,
        report,
        train,
        train_on_cluster,
        verify,
    )
    from llmperf.prediction.record import Prediction
    from llmperf.progress import CollectProgress

_ELSEWHERE = {
    "CollectProgress": "llmperf.progress",
    "Prediction": "llmperf.prediction.record",
}
"""Public names that are not in ``llmperf.api``, and their modules."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_ELSEWHERE.get(name, "llmperf.api")), name)
    raise AttributeError(f"module 'llmperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
