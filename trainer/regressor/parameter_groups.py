"""Which weights decay, and which learn at what rate."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import nn

from trainer.regressor_config import OptimiserConfig


class ParameterGroup(TypedDict):
    """One group as torch's optimisers and DeepSpeed take it.

    Attributes:
        name: part and decay, such as ``backbone.decay``.
        params: the weights, in the model's order.
        lr: highest learning rate.
        weight_decay: AdamW's.
    """

    name: str
    params: list[torch.nn.Parameter]
    lr: float
    weight_decay: float


def parameter_groups(model: nn.Module, config: OptimiserConfig) -> list[ParameterGroup]:
    """Return the weights to fit, in at most four groups of a fixed order.

    Matrices of linear layers decay; biases, norms and embeddings do not. Numeric tokens and head learn at
    ``learning_rate``, the backbone at ``backbone_learning_rate`` where that is set. Frozen weights are
    in no group.
    """
    matrices = {
        id(weight)
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
        for weight in layer.parameters(recurse=False)
        if weight.ndim == 2
    }
    rates = {
        "backbone": config.backbone_learning_rate or config.learning_rate,
        "head": config.learning_rate,
    }
    groups = {
        (part, decays): ParameterGroup(
            name=f"{part}.{'decay' if decays else 'no_decay'}",
            params=[],
            lr=rate,
            weight_decay=config.weight_decay if decays else 0.0,
        )
        for part, rate in rates.items()
        for decays in (True, False)
    }
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            part = "backbone" if name.startswith("backbone.") else "head"
            groups[part, id(weight) in matrices]["params"].append(weight)
    return [group for group in groups.values() if group["params"]]
