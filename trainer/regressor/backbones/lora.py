"""Low-rank adapters on linear layers: few weights are fitted beside frozen ones and later merged.

Written here in forty lines, because ``peft`` wraps modules, renames weights and pins versions of
``transformers``. Here the frozen weights keep their names.

Source: LoRA, arXiv 2106.09685.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from trainer.errors import BadInput

ADAPTER_NAMES = ("lora_a", "lora_b")


class LoraLinear(nn.Linear):
    """A frozen linear layer plus ``b a x``; ``b`` starts at zero, so that the output is unchanged.

    Args:
        layer: its weights are used, and frozen by ``adapt``.
        rank: number of rows of ``a``.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        # Not nn.Linear's constructor: it would draw weights that are not used.
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = layer.weight
        self.bias = layer.bias
        self.lora_a = nn.Parameter(torch.empty(rank, self.in_features, dtype=layer.weight.dtype))
        self.lora_b = nn.Parameter(torch.zeros(self.out_features, rank, dtype=layer.weight.dtype))
        nn.init.normal_(self.lora_a, std=self.in_features**-0.5)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the sum of the frozen layer's and the adapter's output."""
        added = functional.linear(functional.linear(input, self.lora_a), self.lora_b)
        return functional.linear(input, self.weight, self.bias) + added


def adapt(module: nn.Module, rank: int) -> int:
    """Freeze a module and put an adapter on each of its linear layers; return their number.

    Raises:
        BadInput: The module has no linear layer, so that nothing could be fitted.
    """
    for weight in module.parameters():
        weight.requires_grad_(False)
    num_layers = _adapt_children(module, rank)
    if not num_layers:
        raise BadInput(
            f"{type(module).__name__} has no linear layer for adapters; set regressor.lora_rank = 0"
        )
    return num_layers


def merged(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a state dict with the adapters merged into the weights of their layers.

    The sum is computed in float32 and rounded once to the weight's type.
    """
    plain = {
        name: tensor
        for name, tensor in state.items()
        if not name.endswith(tuple(f".{adapter}" for adapter in ADAPTER_NAMES))
    }
    for name, down in state.items():
        layer, dot, last = name.rpartition(".")
        if last == "lora_a":
            weight = state[f"{layer}{dot}weight"]
            wide = torch.promote_types(weight.dtype, torch.float32)
            added = state[f"{layer}{dot}lora_b"].to(wide) @ down.to(wide)
            plain[f"{layer}{dot}weight"] = (weight.to(wide) + added).to(weight.dtype)
    return plain


def _adapt_children(module: nn.Module, rank: int) -> int:
    num_layers = 0
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoraLinear(child, rank))
            num_layers += 1
        else:
            num_layers += _adapt_children(child, rank)
    return num_layers
