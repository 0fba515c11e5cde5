"""How wrong a prediction is: a loss a launch, on log2 errors.

Owns the three losses of the predicted time and the one of the spread. Weights, sums over ranks and the scale
for DeepSpeed are ``engine.py``'s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never

import torch

LossKind = Literal["l1", "l2", "relative"]

L1_SHARE_OF_RELATIVE = 0.05
"""A prediction far too low has a relative error of nearly 1, whose slope vanishes; this much L1 pulls it up."""

SPREAD_SHARE = 0.1
"""Weight of the spread's likelihood: its gradient is of the order of L1's, and the time comes first."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Weighted sums over the launches of a pass, scalars.

    Attributes:
        objective: what is minimised: time and spread.
        of_time: the part that judges the predicted times, without gradient.
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

    What the model says where the weight is 0 has no influence, not even NaN.

    Args:
        kind: of the predicted times.
        predicted: log2(ns), shape (b, m).
        spread: expected abs(error) in log2, positive, shape (b, m).
        target: measured log2(ns), shape (b, m).
        weight: of the launches, shape (b, m).
    """
    counts = weight > 0
    error = torch.where(counts, predicted - target, 0.0)
    of_time = (weight * time_loss(kind, error)).sum()
    of_spread = (weight * spread_loss(torch.where(counts, spread, 1.0), error.detach())).sum()
    return Losses(objective=of_time + SPREAD_SHARE * of_spread, of_time=of_time.detach())


def time_loss(kind: LossKind, error: torch.Tensor) -> torch.Tensor:
    """Return the loss of each log2 error, any shape.

    ``relative`` is the relative error of the time, abs(2**e - 1), up to a prediction of twice the time, and
    its tangent beyond, so that one launch predicted 2**20 too long does not outweigh all others.
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
    """Return the negative log likelihood of each error under a Laplace distribution of mean abs ``spread``.

    ``error`` comes without gradient: a model that errs may say so, but does not err less for saying it.
    """
    return torch.log(2 * spread) + error.abs() / spread
