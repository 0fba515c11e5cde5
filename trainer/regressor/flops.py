"""Floating-point operations that a batch needs, to compute MFU (the used share of the peak).

Each token counts once, and attention counts by unmasked pairs of tokens (the definition of MFU in
benchmarks/RESULTS.md). Only the blocks count. Embedding, norms, head and padding do not count, so
that MFU is not overstated. A training step costs three forward passes; with adapters it costs two,
because the frozen weights need no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.packing.batch import PackBatch, QueryBatch
from trainer.regressor.backbones.codegen import CodeGenShape
from trainer.regressor.backbones.small import MLP_RATIO
from trainer.regressor.spec import RegressorSpec

TRAINING_PASSES = 3
"""Cost of a forward and backward pass, in forward passes."""


def training_passes(spec: RegressorSpec) -> int:
    """Return the cost of a training step of the backbone, in forward passes."""
    return TRAINING_PASSES - bool(spec.config.lora_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCount:
    """Counts of a batch of packs, without padding.

    Attributes:
        tokens: number of tokens.
        pairs: number of pairs of tokens of which the first attends to the second.
        launches: number of launches.
    """

    tokens: int
    pairs: int
    launches: int


def count_packs(batch: PackBatch) -> PackCount:
    """Count tokens, unmasked pairs and launches of a batch.

    A prefix of p tokens has p (p + 1) / 2 pairs; a suffix of s tokens has s p + s (s + 1) / 2.
    """
    real = batch.kernel >= 0
    # A token attends to itself and to ``position`` others, because a suffix continues its prefix.
    # Grouping tokens by kernel and suffix instead took 45 ms for 49,152 tokens and held the GIL.
    pairs = int(np.sum(batch.position[real], dtype=np.int64)) + int(real.sum())
    return PackCount(tokens=int(real.sum()), pairs=pairs, launches=int((batch.row >= 0).sum()))


def query_flops(spec: RegressorSpec, batch: QueryBatch) -> int:
    """Return the floating-point operations of one forward pass over kernels and their queries.

    A prefix of p tokens has p^2 pairs, because the encoder reads it in both directions. Each launch
    has p pairs in each of its cross-attention layers (``LookUp``).

    Raises:
        ValueError: The backbone does not read queries.
    """
    config = spec.config
    if config.backbone != "small" or config.reads != "query":
        raise ValueError(f"backbone {config.backbone!r} that reads {config.reads!r} has no queries")
    prefix = batch.prefix_length.astype(np.int64)
    launches = np.sum(batch.row >= 0, axis=1)
    num_prefix, num_launches = int(prefix.sum()), int(launches.sum())
    num_suffix = int(batch.suffix_length.sum(dtype=np.int64))
    mlp = 2 * MLP_RATIO * config.width**2
    block = 4 * config.width**2 + mlp  # qkv and out; up and down
    weights = config.depth * (
        block * num_prefix
        + 2 * config.width**2 * num_prefix
        + (2 * config.width**2 + mlp) * num_launches
    )  # the encoder; keys and values of the look-ups; their queries, out and MLP
    pairs = int((prefix**2).sum() + (prefix * launches).sum())
    return 2 * (weights + mlp * num_suffix) + 4 * config.width * config.depth * pairs


def forward_flops(spec: RegressorSpec, count: PackCount) -> int:
    """Return the floating-point operations of one forward pass over the counted tokens.

    Raises:
        ValueError: The backbone is neither codegen nor a packed small one; others are not counted.
    """
    config = spec.config
    if config.backbone == "codegen":
        shape = CodeGenShape.from_config(spec.backbone)
        width, depth, mlp_width = shape.width, shape.depth, shape.mlp_width
    elif config.backbone == "small" and config.reads == "packed":
        width, depth, mlp_width = config.width, config.depth, MLP_RATIO * config.width
    else:
        raise ValueError(f"no count for backbone {config.backbone!r} that reads {config.reads!r}")
    weights = 4 * width**2 + 2 * width * mlp_width  # qkv and out; up and down
    return depth * (2 * weights * count.tokens + 4 * width * count.pairs)
