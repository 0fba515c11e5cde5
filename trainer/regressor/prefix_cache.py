"""Attention of many suffixes to one prefix whose keys and values are computed once.

Owns attention in the two passes of a prediction. The first pass reads the prefix, and every layer
stores its keys and values. Later passes read chunks of suffixes, which attend to the stored prefix
and to themselves. The result equals that of a pack (``attention.py``). A dense mask over a pack of
t tokens computes t^2 pairs, whereas the cache computes only the unmasked pairs.
"""

from __future__ import annotations

import torch
from torch.nn import functional


class PrefixCache:
    """The keys and values of one prefix by layer. A backbone takes it in place of a mask.

    The first pass reads the prefix, a batch of one, and fills the cache. After ``close`` each pass
    reads a batch of suffixes. Keys are stored after rotation, so the caller must pass positions
    that continue the prefix.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._is_whole = False
        self._layer = 0

    def close(self) -> None:
        """End the pass over the prefix; later passes read suffixes."""
        self._is_whole = True

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the attended values of one layer, shape (b, h, t, d).

        Must be called once for each layer, in the order of the layers.

        Args:
            query: queries of the prefix (b is 1) or of b suffixes, shape (b, h, t, d).
            key: shape (b, h, t, d).
            value: shape (b, h, t, d).
        """
        if not self._is_whole:
            self._kept.append((key, value))
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        prefix = self._kept[self._layer]
        self._layer = (self._layer + 1) % len(self._kept)
        return _attend(query, key, value, *prefix)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    prefix_key: torch.Tensor,
    prefix_value: torch.Tensor,
) -> torch.Tensor:
    """Attend to a shared prefix, shape (1, h, p, d), and causally within each suffix.

    The queries of all suffixes form one matrix for each head, so that the prefix is neither copied
    nor read once per suffix. 16-bit types are widened: scores rounded to bfloat16 are 0.4 % off.
    """
    num, heads, length, dims = query.shape
    kind = query.dtype
    wide = torch.promote_types(kind, torch.float32)
    query, key, value = query.to(wide) * dims**-0.5, key.to(wide), value.to(wide)
    flat = query.transpose(0, 1).reshape(heads, num * length, dims)
    own = query @ key.transpose(-1, -2)
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    own = own.masked_fill(later, -torch.inf).transpose(0, 1).reshape(heads, num * length, length)
    scores = torch.cat((flat @ prefix_key[0].to(wide).transpose(-1, -2), own), dim=-1)
    weight = scores.softmax(dim=-1)
    num_prefix = prefix_key.shape[2]
    shared = weight[..., :num_prefix] @ prefix_value[0].to(wide)
    of_own = weight[..., num_prefix:].view(heads, num, length, length).transpose(0, 1) @ value
    return (shared.view(heads, num, length, dims).transpose(0, 1) + of_own).to(kind)
