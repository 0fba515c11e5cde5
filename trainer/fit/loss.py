"""The loss of each launch, as a function of its log2 error.

Owns the three losses of the predicted time and the loss of the spread. ``engine.py`` owns sums over
ranks and the scale for DeepSpeed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never

import torch

LossKind = Literal["l1", "l2", "relative"]

L1_SHARE_OF_RELATIVE = 0.05
"""Weight of the L1 loss in the loss ``relative``. For predictions far too low the relative error is
nearly 1 and its slope nearly 0; the L1 loss keeps a gradient."""

SPREAD_SHARE = 0.1
"""Weight of the spread's loss. It is small, because the gradients of the spread's loss and of the
time's L1 loss are equally large."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Weighted sums over the launches of a pass, scalars.

    Attributes:
        objective: the loss to minimise, of time and spread.
        of_time: the loss of the predicted times alone, without gradient.
    """

    objective: torch.Tensor
    of_time: torch.Tensor


def losses(
    kind: LossKind,
    predicted: torch.Tensor,
    spread: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
) -> Losses:
    """Return the weighted sums of the losses of b packs with at most m launches.

    Predictions with weight 0 have no influence, even if they are NaN.

    Args:
        kind: loss of the predicted times.
        predicted: log2(ns), shape (b, m).
        spread: expected abs(error) in log2, positive, shape (b, m).
        target: measured log2(ns), shape (b, m).
        weight: weights of the launches, shape (b, m).
    """
    counts = weight > 0
    error = torch.where(counts, predicted - target, 0.0)
    of_time = (weight * time_loss(kind, error)).sum()
    of_spread = (weight * spread_loss(torch.where(counts, spread, 1.0), error.detach())).sum()
    return Losses(objective=of_time + SPREAD_SHARE * of_spread, of_time=of_time.detach())


def time_loss(kind: LossKind, error: torch.Tensor) -> torch.Tensor:
    """Return the loss of each log2 error e, of any shape.

    ``relative`` is the relative error of the time, abs(2**e - 1), up to e = 1. For larger e it is
    the tangent at e = 1, so that one launch predicted 2**20 times too long does not outweigh all
    others.
    """
    match kind:
        case "l1":
            return error.abs()
        case "l2":
            return error.square()
        case "relative":
            up_to_twice = torch.exp2(error.clamp(max=1.0)) - 1
            beyond = 2 * math.log(2) * (error - 1).clamp(min=0.0)
            return up_to_twice.abs() + beyond + L1_SHARE_OF_RELATIVE * error.abs()
        case _:
            assert_never(kind)


def spread_loss(spread: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of each error under a Laplace distribution.

    ``spread`` is the distribution's mean absolute value. ``error`` has no gradient, so that this
    loss fits the spread only and does not change the predicted times.
    """
    return torch.log(2 * spread) + error.abs() / spread
