"""The head: maps a launch's hidden state and features to log2(ns) and a spread.

The head computes in float32. The means and scales that standardise features and target come from
the train part. They are buffers: saved with the weights, but not fitted by the optimiser.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from trainer.regressor.precise import (
    PreciseLayerNorm,
    PreciseLinear,
    full_precision,
    widen,
)

NUM_BLOCKS = 2
"""Residual blocks of the head."""

MLP_RATIO = 4
"""Ratio of the width of a residual block's hidden layer to the head's width."""

FEATURE_LIMIT = 6.0
"""Limit of standardised features, in standard deviations, so that an outlier does not dominate."""

_LOG_SPREAD_LIMIT = 6.0
"""Limit of the natural logarithm of the spread, divided by the target's scale: the spread is
exp(-6) to exp(6) times this scale."""

_LOG2_NS_PER_US = math.log2(1000.0)
_LEAST_SCALE = 1e-3
"""Smallest scale of a feature or target, to avoid a division by zero for constant ones."""

Floats = npt.NDArray[np.floating]


class ResidualBlock(nn.Module):
    """A pre-norm MLP added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = PreciseLayerNorm(width)
        self.up = PreciseLinear(width, MLP_RATIO * width)
        self.down = PreciseLinear(MLP_RATIO * width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states after the block, of their shape."""
        updated: torch.Tensor = states + self.down(functional.gelu(self.up(self.norm(states))))
        return updated


class Head(nn.Module):
    """The regression head: joins state and features and returns log2(ns) and spread.

    ``log2_ns = offset + centre + scale z``. The last layer is initialised with zeros, so that the
    first prediction is the offset plus the centre.

    Args:
        width: size of the backbone's hidden states.
        num_features: number of launch features; 0 uses none.
        hidden: width of the head's layers.
    """

    feature_mean: torch.Tensor
    feature_scale: torch.Tensor
    centre: torch.Tensor
    scale: torch.Tensor

    def __init__(self, *, width: int, num_features: int, hidden: int) -> None:
        super().__init__()
        self.from_state = PreciseLinear(width, hidden)
        # Each feature has an indicator column that says whether it is unknown.
        self.from_features = PreciseLinear(2 * num_features, hidden) if num_features else None
        self.blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(NUM_BLOCKS))
        self.norm = PreciseLayerNorm(hidden)
        self.output = PreciseLinear(hidden, 2)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("feature_mean", torch.zeros(num_features))
        self.register_buffer("feature_scale", torch.ones(num_features))
        self.register_buffer("centre", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(
        self, state: torch.Tensor, features: torch.Tensor, offset: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log2(ns) and spread in log2(ns), each of shape (b, m).

        Args:
            state: hidden states after the final norm, shape (b, m, width).
            features: launch features, NaN where unknown, shape (b, m, f).
            offset: log2(ns) that the model corrects, shape (b, m).
        """
        with full_precision(state):
            states = self.from_state(state)
            if self.from_features is not None:
                states = states + self.from_features(self.standardised(features))
            for block in self.blocks:
                states = block(states)
            z, raw = self.output(self.norm(states)).unbind(-1)
            log2_ns = offset.to(z.dtype) + widen(self.centre) + widen(self.scale) * z
            return log2_ns, _spread(raw, self.scale)

    def standardised(self, features: torch.Tensor) -> torch.Tensor:
        """Return clipped features with their indicators, shape (b, m, 2 f)."""
        mean, scale = widen(self.feature_mean), widen(self.feature_scale)
        unknown = features.isnan()
        scaled = (features.to(mean.dtype) - mean) / scale
        scaled = scaled.clamp(-FEATURE_LIMIT, FEATURE_LIMIT).masked_fill(unknown, 0.0)
        return torch.cat((scaled, unknown.to(scaled.dtype)), dim=-1)

    def fit_features(self, features: Floats) -> None:
        """Set mean and scale of each feature from the train part's features, shape (n, f).

        A feature without a known value gets mean 0 and scale 1.
        """
        for index, column in enumerate(features.T):  # by column: a copy of all rows is large
            known = column[np.isfinite(column)].astype(np.float64)
            mean, scale = (known.mean(), known.std()) if len(known) else (0.0, 0.0)
            self.feature_mean[index] = float(mean)
            self.feature_scale[index] = float(scale) if scale >= _LEAST_SCALE else 1.0

    def fit_target(self, residual: Floats, weight: Floats | None = None) -> None:
        """Set centre and scale of the target.

        Args:
            residual: log2(ns) minus offset of the train part, shape (n,).
            weight: non-negative weights of the rows, shape (n,); None weighs all equally.
        """
        centre = float(np.average(residual, weights=weight))
        variance = float(np.average((residual - centre) ** 2, weights=weight))
        self.centre.fill_(centre)
        self.scale.fill_(max(variance**0.5, _LEAST_SCALE))


class SoftplusHead(nn.Module):
    """The paper's head: log2(us) = softplus(linear(state)), without features and offset.

    This head cannot predict less than 1 us. The spread is not in the paper. It is a second output
    whose gradient does not reach the backbone, so that the time is fitted as in the paper.

    Source: LLMPerf, arXiv 2503.11244.

    Args:
        width: size of the backbone's hidden states.
    """

    scale: torch.Tensor

    def __init__(self, *, width: int) -> None:
        super().__init__()
        self.output = PreciseLinear(width, 2)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("scale", torch.ones(()))

    def forward(
        self, state: torch.Tensor, features: torch.Tensor, offset: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log2(ns) and spread, each of shape (b, m); ``features``, ``offset`` are unused."""
        del features, offset
        with full_precision(state):
            log2_us, raw = self.output(state)[..., 0], self.output(state.detach())[..., 1]
            return functional.softplus(log2_us) + _LOG2_NS_PER_US, _spread(raw, self.scale)

    def fit_features(self, features: Floats) -> None:
        """Do nothing, because this head uses no feature."""

    def fit_target(self, residual: Floats, weight: Floats | None = None) -> None:
        """Set the spread's scale from the train part's log2(ns), shape (n,)."""
        centre = np.average(residual, weights=weight)
        variance = float(np.average((residual - centre) ** 2, weights=weight))
        self.scale.fill_(max(variance**0.5, _LEAST_SCALE))


def _spread(raw: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return a positive spread with a smooth limit; a clamp would have no gradient beyond it."""
    limited = _LOG_SPREAD_LIMIT * torch.tanh(raw / _LOG_SPREAD_LIMIT)
    return widen(scale) * limited.exp()
