"""The interface of backbones: they map token embeddings to hidden states.

Owns the interface between the regressor and its language model, and code that backbones share:
activation checkpointing, gathering of states, compilation of blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.regressor.attention import Mask

_COMPILATIONS = 64
"""Maximum number of compilations of a block: 4 pack lengths x full or partial batches x 2 modes
(training, inference) are 16; the rest is a margin."""


class Backbone(nn.Module, ABC):
    """A decoder that reads packs.

    Attributes:
        width: size of its hidden states.
        takes_blocks: whether its attention takes FlexAttention's block mask.
        takes_cache: whether its attention takes a ``PrefixCache``.
    """

    width: int
    takes_blocks: bool = True
    takes_cache: bool = True

    @abstractmethod
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of text tokens.

        Args:
            ids: token ids, none negative, shape (b, t).

        Returns:
            Shape (b, t, width), in the floating-point type that the blocks compute in.
        """

    @abstractmethod
    def forward(
        self,
        embeddings: torch.Tensor,
        position: torch.Tensor,
        mask: Mask,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return hidden states after the final norm, in float32 (float64 for a float64 model).

        Args:
            embeddings: shape (b, t, width).
            position: position ids, shape (b, t).
            mask: which token attends to which.
            at: places of the tokens whose states are returned, shape (b, m); None: all tokens.

        Returns:
            Shape (b, m, width), or (b, t, width) without ``at``.
        """

    @abstractmethod
    def layers(self) -> Iterable[nn.Module]:
        """Return the blocks, first to last."""

    def compile_blocks(self, compiler: str = "inductor") -> None:
        """Compile each block in place, for a GPU; the names of the weights do not change.

        Equal blocks share their compilations, one for each shape of a batch and each mode
        (training, inference). Not usable with ZeRO-3, whose hooks fetch weights of inner modules.

        Args:
            compiler: name of a torch.compile backend.
        """
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, _COMPILATIONS)
        for block in self.layers():
            block.compile(dynamic=False, backend=compiler)


def states_at(states: torch.Tensor, at: torch.Tensor | None) -> torch.Tensor:
    """Return the states at places ``at`` (shape (b, m)) of ``states`` (b, t, w); None: all."""
    if at is None:
        return states
    return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))


def run_block(block: nn.Module, states: torch.Tensor, *rest: object, again: bool) -> torch.Tensor:
    """Run one block; ``again`` recomputes its activations in the backward pass to save memory."""
    if again and torch.is_grad_enabled():
        output: torch.Tensor = checkpoint(
            block, states, *rest, use_reentrant=False, preserve_rng_state=False
        )
    else:
        output = block(states, *rest)
    return output
