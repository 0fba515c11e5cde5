"""Conversion between the layout of published CodeGen checkpoints and ours.

The published qkv projection has four partitions. The rows of partition 0 are the queries, then the
*values*, then the keys of the first quarter of the heads; partition 1 follows. Our projection has
all queries, then all keys, then all values, each by head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from trainer.regressor.backbones.codegen import NUM_PARTITIONS

_TO_OURS = (
    (re.compile(r"^wte\.weight$"), "embedding.weight"),
    (re.compile(r"^ln_f\.(weight|bias)$"), r"norm.\1"),
    (re.compile(r"^h\.(\d+)\.ln_1\.(weight|bias)$"), r"blocks.\1.norm.\2"),
    (re.compile(r"^h\.(\d+)\.attn\.qkv_proj\.weight$"), r"blocks.\1.qkv.weight"),
    (re.compile(r"^h\.(\d+)\.attn\.out_proj\.weight$"), r"blocks.\1.out.weight"),
    (re.compile(r"^h\.(\d+)\.mlp\.fc_in\.(weight|bias)$"), r"blocks.\1.up.\2"),
    (re.compile(r"^h\.(\d+)\.mlp\.fc_out\.(weight|bias)$"), r"blocks.\1.down.\2"),
)
_TO_THEIRS = (
    (re.compile(r"^embedding\.weight$"), "wte.weight"),
    (re.compile(r"^norm\.(weight|bias)$"), r"ln_f.\1"),
    (re.compile(r"^blocks\.(\d+)\.norm\.(weight|bias)$"), r"h.\1.ln_1.\2"),
    (re.compile(r"^blocks\.(\d+)\.qkv\.weight$"), r"h.\1.attn.qkv_proj.weight"),
    (re.compile(r"^blocks\.(\d+)\.out\.weight$"), r"h.\1.attn.out_proj.weight"),
    (re.compile(r"^blocks\.(\d+)\.up\.(weight|bias)$"), r"h.\1.mlp.fc_in.\2"),
    (re.compile(r"^blocks\.(\d+)\.down\.(weight|bias)$"), r"h.\1.mlp.fc_out.\2"),
)
_NOT_NEEDED = re.compile(r"^lm_head\.|\.attn\.(causal_mask|bias|masked_bias|embed_positions)$")
"""Names of the language-model head and of buffers that older versions of ``transformers`` saved."""


def our_name(name: str) -> str | None:
    """Return our name of a checkpoint's tensor; None if it is not needed; unknown names stay.

    >>> our_name("transformer.h.3.attn.qkv_proj.weight")
    'blocks.3.qkv.weight'
    """
    if _NOT_NEEDED.search(name):
        return None
    plain = name.removeprefix("transformer.")
    for pattern, ours in _TO_OURS:
        if pattern.match(plain):
            return pattern.sub(ours, plain)
    return name


def to_our_layout(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a checkpoint's tensor in our layout; ``name`` is our name of the tensor."""
    if not name.endswith(".qkv.weight"):
        return tensor
    query, value, key = _split_rows(tensor)
    return torch.cat([part.flatten(0, 1) for part in (query, key, value)])


def to_their_layout(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return our backbone's state dict under the published names and in the published layout."""
    theirs = {}
    for name, tensor in state.items():
        pattern, template = next(pair for pair in _TO_THEIRS if pair[0].match(name))
        if name.endswith(".qkv.weight"):
            quarters = [part.chunk(NUM_PARTITIONS) for part in tensor.chunk(3)]
            query, key, value = quarters
            rows = [
                part
                for index in range(NUM_PARTITIONS)
                for part in (query[index], value[index], key[index])
            ]
            theirs[pattern.sub(template, name)] = torch.cat(rows)
        else:
            theirs[pattern.sub(template, name)] = tensor
    return theirs


def _split_rows(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Split published qkv rows into query, value, key, each of shape (4, width / 4, width)."""
    return tensor.view(NUM_PARTITIONS, 3, -1, tensor.shape[1]).unbind(1)
