"""The attention mask of packs, and attention under it.

A token attends to itself and to earlier tokens of its own kernel that belong to the prefix or to
the token's own suffix. Padding attends to itself only, so that no row of the softmax is empty.

The mask has two forms. The dense boolean mask works on every device with
``scaled_dot_product_attention``. The block mask for FlexAttention skips fully masked blocks, but
has no backward pass on CPUs and no float64. Prediction can also use the cache of one prefix
(``prefix_cache.py``).
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
"""A dense mask has type bool and shape (b, 1, t, t): True where the query (third dimension) attends
to the key (last dimension)."""

_HALF = (torch.bfloat16, torch.float16)

LEAST_HEAD = 16
"""Smallest head dimension that FlexAttention accepts on a GPU."""

_NARROW_HEAD = 64
_NARROW_TILES: dict[str, Any] = {
    **dict.fromkeys(("fwd_BLOCK_M", "fwd_BLOCK_N"), 64),
    **dict.fromkeys(("bwd_BLOCK_M1", "bwd_BLOCK_N1", "bwd_BLOCK_M2", "bwd_BLOCK_N2"), 64),
    **dict.fromkeys(("fwd_num_warps", "bwd_num_warps"), 4),
    **dict.fromkeys(("fwd_num_stages", "bwd_num_stages"), 3),
}
"""Tiles for heads of at most 64 dimensions in 16 bits. The library's default tile of 128 tokens
computes many masked pairs in packs of short kernels. Times in ms on one H200 with 24 packs of 2,048
tokens, by default -> with these tiles: 16 heads of 64 dimensions, forward 1.61 -> 0.55, backward
2.00 -> 1.72; heads of 80 dimensions, forward 0.83 -> 0.85, backward 2.60 -> 3.40. So wider heads
keep the default."""

Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Maps indices of pack, head, query and key to whether the query attends to the key."""


def pack_rule(kernel: torch.Tensor, suffix: torch.Tensor) -> Rule:
    """Return the rule which token attends to which in packs, as FlexAttention's ``mask_mod``.

    Args:
        kernel: kernel of each token, shape (b, t); -1 in padding.
        suffix: 0 in a prefix, else the suffix's number within its pack, shape (b, t).
    """
    begin, prefix_end, own_begin = _spans(kernel, suffix)

    def rule(
        pack: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        in_prefix = (key >= begin[pack, query]) & (key < prefix_end[pack, query])
        return (query >= key) & ((key >= own_begin[pack, query]) | in_prefix)

    return rule


def _spans(
    kernel: torch.Tensor, suffix: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return for each token where its kernel begins, its prefix ends and its own segment begins.

    All have shape (b, t) and type int32. In most blocks FlexAttention evaluates the rule for each
    pair of query and key. With these bounds, which depend on the query only, the rule loads no
    value for the key.
    """
    place = torch.arange(kernel.shape[1], device=kernel.device).expand_as(kernel)
    before_kernel = functional.pad(kernel[:, :-1], (1, 0), value=-2)
    before_suffix = functional.pad(suffix[:, :-1], (1, 0), value=-2)
    is_new = (kernel != before_kernel) | (kernel < 0)  # each padding token counts as a kernel
    begin = place.where(is_new, 0).cummax(dim=1).values
    own_begin = place.where(is_new | (suffix != before_suffix), 0).cummax(dim=1).values
    is_prefix = (suffix == 0).int()
    count = is_prefix.cumsum(dim=1)
    length = count - (count - is_prefix).gather(1, begin)  # prefix tokens up to this token
    return begin.int(), (begin + length).int(), own_begin.int()


def dense_mask(kernel: torch.Tensor, suffix: torch.Tensor) -> torch.Tensor:
    """Return the rule of packs as a mask, shape (b, 1, t, t); arguments as in ``pack_rule``."""
    num_packs, length = kernel.shape
    pack = torch.arange(num_packs, device=kernel.device)[:, None, None]
    place = torch.arange(length, device=kernel.device)
    return pack_rule(kernel, suffix)(pack, pack, place[None, :, None], place[None, None])[:, None]


def block_mask(kernel: torch.Tensor, suffix: torch.Tensor, *, compiled: bool = True) -> BlockMask:
    """Return the rule of packs as a block mask for FlexAttention.

    Args:
        kernel: as in ``pack_rule``.
        suffix: as in ``pack_rule``.
        compiled: compile the construction once for each shape. On one H200 it then takes 0.3 ms
            instead of 5.5 ms for 24 packs of 2,560 tokens.
    """
    num_packs, length = kernel.shape
    create: Callable[..., Any] = _compiled_create() if compiled else create_block_mask
    mask: BlockMask = create(
        pack_rule(kernel, suffix),
        num_packs,
        None,
        length,
        length,
        device=kernel.device,
    )
    return mask


def pack_mask(
    kernel: torch.Tensor, suffix: torch.Tensor, *, dtype: torch.dtype, dense: bool = False
) -> Mask:
    """Return the form of the mask that suits the device.

    Args:
        kernel: kernel of each token, shape (b, t); -1 in padding.
        suffix: 0 in a prefix, else the suffix's number within its pack, shape (b, t).
        dtype: type of the attention; float64 has the dense form only.
        dense: take the dense form even on a GPU.
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
    # torch 2.13's compiler gives wrong sums on a CPU if query, key and value are views of one qkv
    # tensor (error 0.7; 5e-7 with copies). The copies are cheap, so they are made on every device.
    is_narrow = query.dtype in _HALF and query.shape[-1] <= _NARROW_HEAD
    output: torch.Tensor = flex(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        block_mask=mask,
        kernel_options=_NARROW_TILES if is_narrow else None,
    )
    return output


@cache
def _compiled_create() -> Callable[..., Any]:
    return torch.compile(create_block_mask, dynamic=False)


@cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)
