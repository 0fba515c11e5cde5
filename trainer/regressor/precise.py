"""Arithmetic that stays in float32 whatever precision the weights are held in.

The final norm, the numeric tokens and the head go through here: at log2(ns) of 8 to 16, bfloat16 is 4 % of a
time. DeepSpeed's bf16 mode casts every parameter, so the weights are widened where they are used; autocast
is switched off for the same reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

_LOW = (torch.bfloat16, torch.float16)


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a half-precision tensor in float32, another as it is (float64 in tests)."""
    return tensor.float() if tensor.dtype in _LOW else tensor


def full_precision(tensor: torch.Tensor) -> Any:
    """Return the context that keeps autocast off on the tensor's device."""
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
