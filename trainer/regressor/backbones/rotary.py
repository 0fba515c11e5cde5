"""Rotary position embedding on interleaved pairs, as GPT-J and CodeGen have it.

Source: RoFormer, arXiv 2104.09864; the order of the float32 operations is that of ``transformers``, because
at position 2,047 another order turns the angle by 1e-4.
"""

from __future__ import annotations

import torch

from trainer.regressor.precise import widen

_BASE = 10_000.0


def angles(position: torch.Tensor, num_dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of each position's angles, shape (b, 1, t, num_dims / 2), float32.

    Args:
        position: position ids, shape (b, t).
        num_dims: how many dimensions of a head are rotated, an even number.
    """
    step = torch.arange(0, num_dims, 2, dtype=torch.int64, device=position.device)
    frequency = 1.0 / (_BASE ** (step / num_dims))
    angle = position.float()[:, None, :, None] * frequency
    return angle.cos(), angle.sin()


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the first dimensions of each head, pair by pair; the rest stays.

    Args:
        heads: queries or keys, shape (b, h, t, d).
        cosine: from ``angles``, shape (b, 1, t, r / 2) with r at most d.
        sine: like ``cosine``.
    """
    num_dims = 2 * cosine.shape[-1]
    turning = widen(heads[..., :num_dims])
    even, odd = turning[..., 0::2], turning[..., 1::2]
    turned = torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1)
    return torch.cat((turned.flatten(-2).to(heads.dtype), heads[..., num_dims:]), dim=-1)
