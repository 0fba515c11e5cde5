"""Rotary position embedding on interleaved pairs, as in GPT-J and CodeGen.

The order of the float32 operations is that of ``transformers``, because another order changes the
angle by 1e-4 at position 2,047. Source: RoFormer, arXiv 2104.09864.
"""

from __future__ import annotations

import torch

from trainer.regressor.precise import widen

_BASE = 10_000.0


def angles(position: torch.Tensor, num_dims: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of each dimension's angle, shape (b, 1, t, num_dims), float32.

    Args:
        position: position ids, shape (b, t).
        num_dims: number of rotated dimensions of a head; even.
    """
    step = torch.arange(0, num_dims, 2, dtype=torch.int64, device=position.device)
    frequency = 1.0 / (_BASE ** (step / num_dims))
    angle = (position.float()[:, None, :, None] * frequency).repeat_interleave(2, dim=-1)
    return angle.cos(), angle.sin()


def rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the first dimensions of each head, pair by pair; the others do not change.

    Args:
        heads: queries or keys, shape (b, h, t, d).
        cosine: from ``angles``, shape (b, 1, t, r) with r at most d.
        sine: from ``angles``, shape (b, 1, t, r).
    """
    num_dims = cosine.shape[-1]
    turning = widen(heads[..., :num_dims])
    across = torch.stack((-turning[..., 1::2], turning[..., 0::2]), dim=-1).flatten(-2)
    turned = (turning * cosine + across * sine).to(heads.dtype)
    if num_dims == heads.shape[-1]:
        return turned
    return torch.cat((turned, heads[..., num_dims:]), dim=-1)
