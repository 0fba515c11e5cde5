"""Layers that compute in float32, whatever the precision of their weights is.

The final norm, the numeric tokens and the head use them, because bfloat16 is too coarse: at
log2(ns) of 8 to 16 its rounding step is 4 % of the time. DeepSpeed's bf16 mode casts all
parameters, so weights are widened at their use. Autocast is switched off for the same reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_LOW = (torch.bfloat16, torch.float16)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a 16-bit tensor in float32, and any other as it is (tests use float64)."""
    return tensor.float() if tensor.dtype in _LOW else tensor


def full_precision(tensor: torch.Tensor) -> Any:
    """Return a context manager that switches autocast off on the tensor's device."""
    return torch.autocast(tensor.device.type, enabled=False)


class PreciseLinear(nn.Linear):
    """A linear layer that computes in float32 or wider."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's output in the weights' widened type."""
        weight = widen(self.weight)
        bias = None if self.bias is None else widen(self.bias)
        return functional.linear(input.to(weight.dtype), weight, bias)


class PreciseLayerNorm(nn.LayerNorm):
    """A layer norm that computes in float32 or wider."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the normed input in the weights' widened type."""
        weight, bias = widen(self.weight), widen(self.bias)
        return functional.layer_norm(
            input.to(weight.dtype), self.normalized_shape, weight, bias, self.eps
        )
