"""One prefix and its suffixes through a decoder: the prefix once, the suffixes in chunks.

Owns the chunks. What attention does there: ``prefix_cache.py``.
"""

from __future__ import annotations

import torch

from trainer.regressor.backbones.base import Backbone
from trainer.regressor.precise import widen
from trainer.regressor.prefix_cache import PrefixCache

CHUNK_TOKENS = 512
"""Tokens of suffixes in one pass on a CPU: they stay in its caches. 1,000 launches of ``tiny`` took 0.30 s of one core
with 512, 0.35 s with 1,024 and 0.46 s with 4,096."""
GPU_CHUNK_TOKENS = 1024
"""On a GPU: one launch alone costs a whole chunk there, and below this many tokens a pass costs its latency."""


def suffix_states(
    backbone: Backbone, prefix: torch.Tensor, suffix: torch.Tensor, present: torch.Tensor
) -> torch.Tensor:
    """Return the state of each suffix's last token, shape (k, width); 0 for missing suffixes, which come last.

    On a GPU all chunks have one shape, the last one is filled up: the library chooses its kernels by shape, and
    with 16-bit weights another kernel's rounding would make an answer depend on how many others were asked for.

    Args:
        backbone: that takes a ``PrefixCache``.
        prefix: embedded tokens, shape (t, width); t is at least 1 where there is a launch.
        suffix: embedded tokens, shape (k, s, width).
        present: which of them are no padding, shape (k, s).
    """
    num_padded, length, width = suffix.shape
    num = int(present.any(dim=1).sum())  # they come first; what fills up a batch costs nothing
    if num == 0:
        return widen(suffix.new_zeros((num_padded, width)))
    suffix, present = suffix[:num], present[:num]
    place = torch.arange(len(prefix) + length, device=suffix.device)[None]
    cache = PrefixCache()
    backbone(prefix[None], place[:, : len(prefix)], cache, at=place[:, :1])
    cache.close()
    last = (present.sum(dim=1) - 1).clamp_min(0)[:, None]
    capacity = max(1, (GPU_CHUNK_TOKENS if suffix.is_cuda else CHUNK_TOKENS) // length)
    if suffix.is_cuda:
        missing = -num % capacity
        suffix = torch.cat((suffix, suffix.new_zeros((missing, length, width))))
        last = torch.cat((last, last.new_zeros((missing, 1))))
    position = place[:, len(prefix) :]
    states = [
        backbone(
            suffix[first : first + capacity],
            position.expand(len(suffix[first : first + capacity]), -1),
            cache,
            at=last[first : first + capacity],
        )[:, 0]
        for first in range(0, len(suffix), capacity)
    ]
    found = torch.cat(states)[:num]
    return torch.cat((found, found.new_zeros((num_padded - num, width))))
