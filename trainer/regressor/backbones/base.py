"""What every backbone does: token embeddings in, hidden states out.

Owns the interface between the regressor and its language model, and what the stacks of our own share:
activation checkpointing, the gathering of queries, and compilation of blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.regressor.attention import Mask

_COMPILATIONS = 64
"""Most compilations of a block: four pack lengths, with whole and partial batches, in both modes."""


class Backbone(nn.Module, ABC):
    """A decoder that reads packs.

    Attributes:
        width: size of its hidden states.
        takes_blocks: whether its attention takes FlexAttention's block mask.
        takes_cache: whether its attention is ours and takes a ``PrefixCache``.
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
            Shape (b, t, width), in the type that the blocks compute in.
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
            mask: who may attend to whom.
            at: places whose states are wanted, shape (b, m); None takes all.

        Returns:
            Shape (b, m, width), or (b, t, width) without ``at``.
        """

    @abstractmethod
    def layers(self) -> Iterable[nn.Module]:
        """Return the blocks, first to last."""

    def compile_blocks(self, compiler: str = "inductor") -> None:
        """Compile each block where it stands, for a GPU; the names of the weights do not change.

        Blocks of one shape share their compilations: one for each shape of the batch and each mode
        (training, inference). Not for ZeRO-3, whose hooks fetch the weights of inner modules.

        Args:
            compiler: name of a torch.compile backend.
        """
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, _COMPILATIONS)
        for block in self.layers():
            block.compile(dynamic=False, backend=compiler)


def states_at(states: torch.Tensor, at: torch.Tensor | None) -> torch.Tensor:
    """Return the states at places ``at`` (shape (b, m)) of ``states`` (b, t, w); all where it is None."""
    if at is None:
        return states
    return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))


def run_block(block: nn.Module, states: torch.Tensor, *rest: object, again: bool) -> torch.Tensor:
    """Run one block; with ``again`` its activations are computed anew in the backward pass."""
    if again and torch.is_grad_enabled():
        output: torch.Tensor = checkpoint(
            block, states, *rest, use_reentrant=False, preserve_rng_state=False
        )
    else:
        output = block(states, *rest)
    return output
