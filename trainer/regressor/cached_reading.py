"""Reading of one prefix and its suffixes by a decoder: the prefix once, the suffixes in chunks.

Owns the division into chunks; ``prefix_cache.py`` owns attention.
"""

from __future__ import annotations

import torch

from trainer.regressor.backbones.base import Backbone
from trainer.regressor.precise import widen
from trainer.regressor.prefix_cache import PrefixCache

CHUNK_TOKENS = 512
"""Tokens of suffixes in one pass on a CPU, few enough for the CPU's caches: 1,000 launches of
``tiny`` took 0.30 s of one core with 512, 0.35 s with 1,024 and 0.46 s with 4,096."""
GPU_CHUNK_TOKENS = 1024
"""Tokens of suffixes in one pass on a GPU. Every pass has exactly this many tokens, even for one
launch. A pass with fewer tokens would take as long, because latency dominates."""


def suffix_states(
    backbone: Backbone, prefix: torch.Tensor, suffix: torch.Tensor, present: torch.Tensor
) -> torch.Tensor:
    """Return the state of each suffix's last token, shape (k, width); 0 for missing suffixes.

    On a GPU the last chunk is padded, so that all chunks have the same shape. Libraries choose
    kernels by shape, and with 16-bit weights another kernel rounds differently: without the
    padding, the answer for a launch would depend on the number of launches in the call.

    Args:
        backbone: a backbone whose ``takes_cache`` is true.
        prefix: embedded tokens, shape (t, width); t is at least 1 if there is a launch.
        suffix: embedded tokens, shape (k, s, width); missing suffixes come last.
        present: which tokens of ``suffix`` are not padding, shape (k, s).
    """
    num_padded, length, width = suffix.shape
    num = int(present.any(dim=1).sum())  # suffixes that are present; they come first
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
