"""The small decoder that is trained from scratch and reads packs.

Pre-norm blocks, rotary positions over the whole head, GELU, no dropout. The query reader
(``query_reader.py``) uses the same block.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional

from trainer.errors import BadInput
from trainer.regressor.attention import LEAST_HEAD, Mask, attend
from trainer.regressor.backbones.base import Backbone, run_block, states_at
from trainer.regressor.backbones.rotary import angles, rotate
from trainer.regressor.precise import PreciseLayerNorm

MLP_RATIO = 4
"""Ratio of the width of a block's hidden layer to the model's width."""

_EMBEDDING_STD = 0.1


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence to itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(
        self, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: Mask
    ) -> torch.Tensor:
        """Return attended states, shape (b, t, width)."""
        num_packs, length, width = states.shape
        qkv = self.qkv(states).view(num_packs, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(qkv[0], cosine, sine), rotate(qkv[1], cosine, sine)
        mixed = attend(query, key, qkv[2], mask)
        output: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(num_packs, length, width))
        return output


class Mlp(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, MLP_RATIO * width)
        self.down = nn.Linear(MLP_RATIO * width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return an update of the states, of the same shape."""
        output: torch.Tensor = self.down(functional.gelu(self.up(states)))
        return output


class Block(nn.Module):
    """Attention, then MLP; each reads normed states, and its output is added to the states."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(
        self, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: Mask
    ) -> torch.Tensor:
        """Return the states after the block, shape (b, t, width)."""
        states = states + self.attention(self.attention_norm(states), cosine, sine, mask)
        updated: torch.Tensor = states + self.mlp(self.mlp_norm(states))
        return updated


class SmallBackbone(Backbone):
    """A decoder with random weights.

    Args:
        vocabulary: number of text tokens.
        width: size of the hidden states.
        depth: number of blocks.
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
        self.takes_blocks = self.head_dims >= LEAST_HEAD
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = PreciseLayerNorm(width)
        initialise(self, depth)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of text tokens, shape (b, t, width)."""
        embeddings: torch.Tensor = self.embedding(ids)
        return embeddings

    def forward(
        self,
        embeddings: torch.Tensor,
        position: torch.Tensor,
        mask: Mask,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states after the final norm; see ``Backbone.forward``."""
        states = embeddings
        cosine, sine = angles(position, self.head_dims)
        for block in self.blocks:
            states = run_block(block, states, cosine, sine, mask, again=self.checkpointing)
        normed: torch.Tensor = self.norm(states_at(states, at))
        return normed

    def layers(self) -> Iterable[nn.Module]:
        """Return the blocks, first to last."""
        return self.blocks


def check_heads(width: int, heads: int) -> None:
    """Check that the heads can share the width.

    Raises:
        BadInput: ``width`` is not an even multiple of ``heads``.
    """
    if width % (2 * heads):
        raise BadInput(
            f"regressor.width = {width}: must be a multiple of twice regressor.heads = {heads}"
        )


def initialise(module: nn.Module, depth: int) -> None:
    """Draw the initial weights of linear layers and embeddings.

    Linear layers have unit gain. Those whose output is added to the residual stream have the gain
    1/sqrt(2 depth) (GPT-2), so that the stream's scale does not grow with depth.

    Args:
        module: its linear layers and embeddings are initialised.
        depth: number of blocks that add to one residual stream.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            writes = name.endswith((".out", ".down"))
            gain = (2 * depth) ** -0.5 if writes else 1.0
            nn.init.normal_(layer.weight, std=gain * layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Embedding):
            nn.init.normal_(layer.weight, std=_EMBEDDING_STD)
