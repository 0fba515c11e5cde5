"""Embedding of numeric tokens from their slot, magnitude, sign and remainders.

Run time depends mostly on the logarithm of a size, and also on its remainders by the widths of a
warp (32) and of a tile (128). Text would need several tokens for the logarithm and does not show
the remainders.
"""

from __future__ import annotations

import torch
from torch import nn

from trainer.regressor.batch import Numbers
from trainer.regressor.precise import PreciseLinear, full_precision, widen

PERIODS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Periods of the waves over log2(1 + abs(v)): from half a doubling to the range of int64."""

_LINEAR_SCALE = 16.0
"""Divisor of log2 of a size: a typical value, so that the result is about as large as the waves."""

_STD = 0.1
"""Standard deviation of the initial weights, the same as of the small model's text embedding."""


class NumericEmbedding(nn.Module):
    """Embeds numeric tokens: adds embeddings of slot, log2, sign and two remainders.

    Args:
        num_slots: number of slots of the prompt.
        width: size of the embedding.
    """

    def __init__(self, num_slots: int, width: int) -> None:
        super().__init__()
        self.slot = nn.Embedding(num_slots, width)
        self.sign = nn.Embedding(3, width)
        # Index 0 is "not an integer"; remainder r is index r + 1.
        self.remainder_32 = nn.Embedding(33, width)
        self.remainder_128 = nn.Embedding(129, width)
        self.log2 = PreciseLinear(2 * len(PERIODS) + 1, width)
        for layer in (self.slot, self.sign, self.remainder_32, self.remainder_128):
            nn.init.normal_(layer.weight, std=_STD)
        nn.init.normal_(self.log2.weight, std=_STD)
        nn.init.zeros_(self.log2.bias)

    def forward(self, slot: torch.Tensor, numbers: Numbers) -> torch.Tensor:
        """Return embeddings in float32 (float64 for a float64 model), shape (*slot.shape, width).

        Args:
            slot: slot of each token, from 0, any shape.
            numbers: the tokens' numbers, of that shape.
        """
        with full_precision(slot):
            embedded: torch.Tensor = self.log2(waves(numbers.log2))
            for table, index in (
                (self.slot, slot),
                (self.sign, numbers.sign),
                (self.remainder_32, numbers.remainder_32 + 1),
                (self.remainder_128, numbers.remainder_128 + 1),
            ):
                embedded = embedded + widen(table(index))
        return embedded


def waves(log2: torch.Tensor) -> torch.Tensor:
    """Return smooth features of log2 values, shape (*log2.shape, 2 len(PERIODS) + 1)."""
    period = torch.tensor(PERIODS, dtype=log2.dtype, device=log2.device)
    angle = 2 * torch.pi * log2[..., None] / period
    return torch.cat((angle.sin(), angle.cos(), log2[..., None] / _LINEAR_SCALE), dim=-1)
