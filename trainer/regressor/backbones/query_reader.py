"""The query reader: encodes a kernel once and queries it with its launches, without packs.

An encoder reads the prefix in both directions. A launch is one vector, pooled from the tokens of
its suffix, that reads the encoded prefix by cross-attention. Pooling suits numeric tokens, because
each has a slot; for text with a token per digit, use packs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainer.regressor.attention import attend
from trainer.regressor.backbones.base import run_block
from trainer.regressor.backbones.rotary import angles
from trainer.regressor.backbones.small import Block, Mlp, check_heads, initialise
from trainer.regressor.precise import PreciseLayerNorm

_WAVELENGTH = 10_000.0
"""Longest wavelength of the sinusoidal position embedding, in tokens (arXiv 1706.03762)."""


class LookUp(nn.Module):
    """Cross-attention of launches to the encoded prefix; launches do not attend to each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(
        self, launches: torch.Tensor, prefix: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return updated launches.

        Args:
            launches: shape (g, k, width).
            prefix: the encoded prefixes, shape (g, t, width).
            mask: which prefix tokens are not padding, shape (g, 1, 1, t).
        """
        num_kernels, num_launches, width = launches.shape
        query = self.query(self.query_norm(launches))
        query = query.view(num_kernels, num_launches, self.heads, -1).transpose(1, 2)
        both = self.key_value(prefix).view(num_kernels, prefix.shape[1], 2, self.heads, -1)
        key, value = both.permute(2, 0, 3, 1, 4)
        found = attend(query, key, value, mask).transpose(1, 2)
        launches = launches + self.out(found.reshape(num_kernels, num_launches, width))
        updated: torch.Tensor = launches + self.mlp(self.mlp_norm(launches))
        return updated


class QueryReader(nn.Module):
    """Encoder over prefixes, with launches that query it.

    Args:
        vocabulary: number of text tokens.
        width: size of the hidden states.
        depth: number of the encoder's blocks, and of the look-ups of a launch.
        heads: attention heads of a block; ``width`` must be a multiple of ``2 * heads``.
        checkpointing: recompute activations in the backward pass to save memory.

    Raises:
        BadInput: The width cannot be split over the heads.
    """

    def __init__(
        self, *, vocabulary: int, width: int, depth: int, heads: int, checkpointing: bool = False
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.width = width
        self.checkpointing = checkpointing
        self.head_dims = width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.prefix_norm = nn.LayerNorm(width)
        self.token_norm = nn.LayerNorm(width)
        self.token_mlp = Mlp(width)
        self.look_ups = nn.ModuleList(LookUp(width, heads) for _ in range(depth))
        self.norm = PreciseLayerNorm(width)
        initialise(self, depth)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of text tokens, shape (*ids.shape, width)."""
        embeddings: torch.Tensor = self.embedding(ids)
        return embeddings

    def forward(
        self,
        prefix: torch.Tensor,
        prefix_present: torch.Tensor,
        suffix: torch.Tensor,
        suffix_present: torch.Tensor,
    ) -> torch.Tensor:
        """Return the launches' states after the final norm, shape (g, k, width), float32.

        Args:
            prefix: embedded prefixes, shape (g, t, width).
            prefix_present: which tokens are not padding, shape (g, t).
            suffix: embedded suffixes, shape (g, k, s, width).
            suffix_present: which tokens are not padding, shape (g, k, s).
        """
        # A padding kernel attends to its padding, because an empty softmax and NaN times 0 are NaN.
        seen = prefix_present | ~prefix_present.any(-1, keepdim=True)
        mask = seen[:, None, None, :]
        place = torch.arange(prefix.shape[1], device=prefix.device)[None]
        cosine, sine = angles(place, self.head_dims)
        for block in self.blocks:
            prefix = run_block(block, prefix, cosine, sine, mask, again=self.checkpointing)
        prefix = self.prefix_norm(prefix)
        launches = self._pool(suffix, suffix_present)
        for look_up in self.look_ups:
            launches = run_block(look_up, launches, prefix, mask, again=self.checkpointing)
        normed: torch.Tensor = self.norm(launches)
        return normed

    def layers(self) -> Iterable[nn.Module]:
        """Return the encoder's blocks, then the look-ups."""
        yield from self.blocks
        yield from self.look_ups

    def _pool(self, suffix: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Return one vector for each launch: the mean over its tokens with position embedding."""
        placed = suffix + _waves(suffix.shape[2], self.width, suffix.device).to(suffix.dtype)
        read = placed + self.token_mlp(self.token_norm(placed))
        weight = present.to(read.dtype)[..., None]
        count = weight.sum(dim=2).clamp_min(1)
        pooled: torch.Tensor = (read * weight).sum(dim=2) / count
        return pooled


def _waves(num_places: int, width: int, device: torch.device) -> torch.Tensor:
    """Return the sinusoidal embedding of each place, shape (num_places, width)."""
    place = torch.arange(num_places, device=device).float()[:, None]
    step = torch.arange(0, width, 2, device=device).float() / width
    angle = place * _WAVELENGTH**-step
    return torch.cat((angle.sin(), angle.cos()), dim=-1)
