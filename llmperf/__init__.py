"""LLMPerf: predict how long a GPU kernel runs from its source, and collect the data that makes this possible.

The public Python API, loaded on first use: ``import llmperf`` alone loads nothing heavy.

>>> import llmperf
>>> llmperf.__version__
'0.1.0'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmperf_common.errors import LlmperfError

__version__ = "0.1.0"
__all__ = ["LlmperfError", "__version__", "collect", "evaluate", "open_dataset", "predict", "train"]

if TYPE_CHECKING:
    from llmperf.api import collect, evaluate, open_dataset, predict, train


def __getattr__(name: str) -> Any:
    if name in __all__:
        from llmperf import api  # noqa: PLC0415  (loaded on first use)

        return getattr(api, name)
    raise AttributeError(f"module 'llmperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
