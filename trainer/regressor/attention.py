"""Who may attend to whom in a pack, and attention under that rule.

A token attends to tokens at an earlier or the same place, of its own kernel, that are prefix or of its own
suffix. Padding attends to itself only, so that no row of the softmax is empty.

Forms of one rule: a dense boolean mask through ``scaled_dot_product_attention``, exact and
everywhere at hand, and a block mask through FlexAttention, which skips the blocks that nothing may see; for prediction also a cache of one prefix (``prefix_cache.py``).
FlexAttention has no backward pass on CPUs and no float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from trainer.regressor.prefix_cache import PrefixCache

Mask = torch.Tensor | BlockMask | PrefixCache
"""Dense: bool, shape (b, 1, t, t), True where query (third) may attend to key (last)."""

Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From indices of pack, head, query and key to whether the query may attend to the key."""


def pack_rule(kernel: torch.Tensor, suffix: torch.Tensor) -> Rule:
    """Return the rule of packs, in the form that FlexAttention calls ``mask_mod``.

    Args:
        kernel: kernel of each token, shape (b, t); -1 in padding.
        suffix: 0 in a prefix, else the suffix's number within its pack, shape (b, t).
    """
    place = torch.arange(kernel.shape[1], device=kernel.device)
    # A padding token is a kernel of its own: then one comparison serves it, too.
    own = torch.where(kernel < 0, -1 - place, kernel)

    def rule(
        pack: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        visible = (suffix[pack, key] == 0) | (suffix[pack, key] == suffix[pack, query])
        return (query >= key) & (own[pack, query] == own[pack, key]) & visible

    return rule


def dense_mask(kernel: torch.Tensor, suffix: torch.Tensor) -> torch.Tensor:
    """Return the rule of packs as a mask, shape (b, 1, t, t); arguments as of ``pack_rule``."""
    num_packs, length = kernel.shape
    pack = torch.arange(num_packs, device=kernel.device)[:, None, None]
    place = torch.arange(length, device=kernel.device)
    return pack_rule(kernel, suffix)(pack, pack, place[None, :, None], place[None, None])[:, None]


def block_mask(kernel: torch.Tensor, suffix: torch.Tensor, *, compiled: bool = True) -> BlockMask:
    """Return the rule of packs for FlexAttention; arguments as of ``pack_rule``.

    Args:
        kernel: see there.
        suffix: see there.
        compiled: compile the construction, once a shape: 0.3 ms against 5.5 ms on one H200 for 24
            packs of 2,560 tokens.
    """
    num_packs, length = kernel.shape
    create: Callable[..., Any] = _compiled_create() if compiled else create_block_mask
    mask: BlockMask = create(
        pack_rule(kernel, suffix), num_packs, None, length, length, device=kernel.device
    )
    return mask


def pack_mask(
    kernel: torch.Tensor, suffix: torch.Tensor, *, dtype: torch.dtype, dense: bool = False
) -> Mask:
    """Return the form of the mask that suits the device.

    Args:
        kernel: kernel of each token, shape (b, t); -1 in padding.
        suffix: 0 in a prefix, else the suffix's number within its pack, shape (b, t).
        dtype: of the attention; float64 has the dense form only.
        dense: take the dense form on a GPU, too.
    """
    if dense or kernel.device.type != "cuda" or dtype == torch.float64:
        return dense_mask(kernel, suffix)
    return block_mask(kernel, suffix)


def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Mask) -> torch.Tensor:
    """Return softmax(query key^T / sqrt(d)) value under the mask.

    Args:
        query: shape (b, h, q, d).
        key: shape (b, h, t, d).
        value: shape (b, h, t, d).
        mask: dense, broadcastable to (b, h, q, t), a block mask, or the cache of a prefix.
    """
    if isinstance(mask, PrefixCache):
        return mask.attend(query, key, value)
    if isinstance(mask, torch.Tensor):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    # Inside a compiled block the call is part of that block's graph.
    inside = torch.compiler.is_compiling()
    flex: Any = flex_attention if inside else _compiled_flex()
    # torch 2.13's compiler gives wrong sums on a CPU where the heads are views of one qkv (0.7 off was
    # seen, 5e-7 with copies); a copy of the values costs less than a doubt.
    output: torch.Tensor = flex(
        query.contiguous(), key.contiguous(), value.contiguous(), block_mask=mask
    )
    return output


@cache
def _compiled_create() -> Callable[..., Any]:
    return torch.compile(create_block_mask, dynamic=False)


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)
