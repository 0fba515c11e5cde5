"""Predictions of a regressor, batch after batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from trainer.regressor.batch import AnyBatch
from trainer.regressor.model import Regressor
from trainer.regressor.precise import PreciseLayerNorm, PreciseLinear

Precision = Literal["fp32", "bf16"]
Floats = npt.NDArray[np.float64]


def predict(model: Regressor, batches: Iterable[AnyBatch]) -> tuple[Floats, Floats]:
    """Return log2(ns) and spread of the present launches of all batches, concatenated.

    The launches of a numpy batch come in the order ``batch.row[batch.row >= 0]``. The model's mode
    (training or evaluation) is restored.

    Args:
        model: the regressor, on the batches' device.
        batches: consumed one at a time, so that a generator keeps one batch on the device.
    """
    training = model.training
    model.eval()
    log2_ns: list[npt.NDArray[Any]] = []
    spread: list[npt.NDArray[Any]] = []
    try:
        with torch.inference_mode():
            for batch in batches:
                output = model(batch)
                log2_ns.append(output.log2_ns[batch.present].cpu().numpy())
                spread.append(output.spread[batch.present].cpu().numpy())
    finally:
        model.train(training)
    return _joined(log2_ns), _joined(spread)


def set_precision(model: Regressor, precision: Precision) -> None:
    """Convert the backbone's weights, except the final norm's, to a precision."""
    kept = (PreciseLinear, PreciseLayerNorm)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    for module in model.backbone.modules():
        if not isinstance(module, kept):
            for weight in module.parameters(recurse=False):
                weight.data = weight.data.to(dtype)


def _joined(parts: list[npt.NDArray[Any]]) -> Floats:
    return np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
