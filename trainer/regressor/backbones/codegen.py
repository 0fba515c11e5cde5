"""A fast CodeGen: attention and MLP in parallel on one norm, with every mask of ``attention.py``.

Owns the module and its shape. The rows of qkv are all queries, then all keys, then all values;
``codegen_weights.py`` converts from the layout of published checkpoints.

Source: CodeGen, arXiv 2203.13474; GPT-J's block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from trainer.errors import BadInput
from trainer.regressor.attention import LEAST_HEAD, Mask, attend
from trainer.regressor.backbones.base import Backbone, run_block, states_at
from trainer.regressor.backbones.rotary import angles, rotate
from trainer.regressor.precise import PreciseLayerNorm

NUM_PARTITIONS = 4
"""Number of partitions of the heads in the published layout; a divisor of the number of heads."""

_INIT_STD = 0.02

_GELU = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
"""Maps a checkpoint's name of the activation to torch's name of the GELU approximation."""


def codegen_config(
    *, width: int, depth: int, heads: int, rotary_dims: int, vocabulary: int = 51_200
) -> dict[str, Any]:
    """Return a ``config.json`` for ``transformers``, for a model with random weights.

    Args:
        width: size of the hidden states.
        depth: number of blocks.
        heads: attention heads of a block.
        rotary_dims: number of rotated dimensions of a head.
        vocabulary: rows of the embedding; the published models have 51,200.
    """
    return {
        "model_type": "codegen",
        "architectures": ["CodeGenModel"],
        "vocab_size": vocabulary,
        "n_positions": 2048,
        "n_ctx": 2048,
        "n_embd": width,
        "n_layer": depth,
        "n_head": heads,
        "rotary_dim": rotary_dims,
        "n_inner": None,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": _INIT_STD,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


CODEGEN_350M = codegen_config(width=1024, depth=20, heads=16, rotary_dims=32)
"""The shape of the published 350M models."""

CODEGEN_2B = codegen_config(width=2560, depth=32, heads=32, rotary_dims=64)
"""The shape of the published 2B models."""


_MOST_BLOCKS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeGenShape:
    """The shape that a CodeGen checkpoint's ``config.json`` specifies.

    Attributes:
        vocabulary: rows of the embedding.
        context: longest sequence in tokens.
        width: size of the hidden states.
        depth: number of blocks.
        heads: attention heads of a block.
        rotary_dims: number of rotated dimensions of a head.
        mlp_width: size of the MLP's hidden layer.
        approximation: torch's name of the GELU approximation.
        epsilon: epsilon of the layer norms.
    """

    vocabulary: int
    context: int
    width: int
    depth: int
    heads: int
    rotary_dims: int
    mlp_width: int
    approximation: str
    epsilon: float

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> CodeGenShape:
        """Read the shape from a ``config.json``.

        Raises:
            BadInput: The config is of another architecture, or a number is missing or impossible.
        """
        kind = config.get("model_type")
        if kind != "codegen":
            raise BadInput(
                f"model_type is {kind!r}, but backbone codegen takes a checkpoint of CodeGen; "
                f"set regressor.backbone = 'auto' for other architectures"
            )
        try:
            width, heads = int(config["n_embd"]), int(config["n_head"])
            shape = cls(
                vocabulary=int(config["vocab_size"]),
                context=int(config["n_positions"]),
                width=width,
                depth=int(config["n_layer"]),
                heads=heads,
                rotary_dims=int(config["rotary_dim"]),
                mlp_width=int(config.get("n_inner") or 4 * width),
                approximation=_GELU[str(config.get("activation_function", "gelu_new"))],
                epsilon=float(config.get("layer_norm_epsilon", 1e-5)),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"CodeGen's config: {type(error).__name__}: {error}") from None
        shape._check()
        return shape

    def _check(self) -> None:
        if self.heads < 1 or self.heads % NUM_PARTITIONS or self.width % self.heads:
            raise BadInput(
                f"CodeGen's config: n_head = {self.heads} must be a multiple of {NUM_PARTITIONS} "
                f"that divides n_embd = {self.width}"
            )
        if not 0 < self.depth <= _MOST_BLOCKS:
            raise BadInput(f"CodeGen's config: n_layer = {self.depth} must be 1 to {_MOST_BLOCKS}")
        if self.rotary_dims % 2 or not 0 < self.rotary_dims <= self.width // self.heads:
            raise BadInput(
                f"CodeGen's config: rotary_dim = {self.rotary_dims} must be even and at most "
                f"n_embd / n_head = {self.width // self.heads}"
            )


class CodeGenBlock(nn.Module):
    """A block whose attention and MLP read the same normed states and add to the same states."""

    def __init__(self, shape: CodeGenShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.approximation = shape.approximation
        self.norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.up = nn.Linear(shape.width, shape.mlp_width)
        self.down = nn.Linear(shape.mlp_width, shape.width)

    def forward(
        self, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, mask: Mask
    ) -> torch.Tensor:
        """Return the states after the block, shape (b, t, width)."""
        num_packs, length, width = states.shape
        normed = self.norm(states)
        qkv = self.qkv(normed).view(num_packs, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = rotate(qkv[0], cosine, sine), rotate(qkv[1], cosine, sine)
        mixed = attend(query, key, qkv[2], mask).transpose(1, 2).reshape(num_packs, length, width)
        hidden = functional.gelu(self.up(normed), approximate=self.approximation)
        updated: torch.Tensor = states + self.out(mixed) + self.down(hidden)
        return updated


class CodeGenBackbone(Backbone):
    """CodeGen without its language-model head.

    Args:
        shape: the shape that the checkpoint's config specifies.
        checkpointing: recompute activations in the backward pass to save memory.
    """

    def __init__(self, shape: CodeGenShape, *, checkpointing: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.width = shape.width
        self.checkpointing = checkpointing
        self.takes_blocks = shape.width // shape.heads >= LEAST_HEAD
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(CodeGenBlock(shape) for _ in range(shape.depth))
        self.norm = PreciseLayerNorm(shape.width, eps=shape.epsilon)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=_INIT_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

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
        cosine, sine = angles(position, self.shape.rotary_dims)
        for block in self.blocks:
            states = run_block(block, states, cosine, sine, mask, again=self.checkpointing)
        normed: torch.Tensor = self.norm(states_at(states, at))
        return normed

    def layers(self) -> Iterable[nn.Module]:
        """Return the blocks, first to last."""
        return self.blocks
