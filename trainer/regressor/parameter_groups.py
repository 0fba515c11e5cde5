"""Groups of weights with their learning rates and weight decay."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import nn

from trainer.regressor_config import OptimiserConfig


class ParameterGroup(TypedDict):
    """One group as torch's optimisers and DeepSpeed take it.

    Attributes:
        name: part of the model and decay, such as ``backbone.decay``.
        params: the weights, in the model's order.
        lr: highest learning rate of the schedule.
        weight_decay: AdamW's weight decay.
    """

    name: str
    params: list[torch.nn.Parameter]
    lr: float
    weight_decay: float


def parameter_groups(model: nn.Module, config: OptimiserConfig) -> list[ParameterGroup]:
    """Return the weights to fit, in at most four groups of a fixed order.

    Weight decay applies to matrices of linear layers, not to biases, norms and embeddings. The rate
    is ``learning_rate`` for numeric tokens and head, and ``backbone_learning_rate`` (if set) for
    the backbone. Frozen weights are in no group.
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
