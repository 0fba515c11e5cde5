"""How much arithmetic a batch needs at least: the numerator of MFU.

Counts real tokens once and attention by unmasked pairs (as benchmarks/RESULTS.md states MFU), over the blocks only: embedding,
norms, head and padding count for nothing, so that the utilisation is not flattered. A training step is
three forward passes, with adapters two: the frozen weights need no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.packing.batch import PackBatch, QueryBatch
from trainer.regressor.backbones.codegen import CodeGenShape
from trainer.regressor.backbones.small import MLP_RATIO
from trainer.regressor.spec import RegressorSpec

TRAINING_PASSES = 3
"""Forward passes that forward and backward cost together."""


def training_passes(spec: RegressorSpec) -> int:
    """Return how many forward passes a training step of the backbone costs."""
    return TRAINING_PASSES - bool(spec.config.lora_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCount:
    """What a batch of packs holds.

    Attributes:
        tokens: real tokens.
        pairs: pairs of tokens of which the first may attend to the second.
        launches: launches that are present.
    """

    tokens: int
    pairs: int
    launches: int


def count_packs(batch: PackBatch) -> PackCount:
    """Count tokens, unmasked pairs and launches of a batch.

    A prefix of p tokens has p (p + 1) / 2 pairs; a suffix of s tokens after it s p + s (s + 1) / 2.
    """
    real = batch.kernel >= 0
    # A token sees itself and as many others as its position says: a suffix goes on where its prefix ended.
    # Grouping tokens by kernel and suffix took 45 ms for 49,152 tokens and held the interpreter's lock.
    pairs = int(np.sum(batch.position[real], dtype=np.int64)) + int(real.sum())
    return PackCount(tokens=int(real.sum()), pairs=pairs, launches=int((batch.row >= 0).sum()))


def query_flops(spec: RegressorSpec, batch: QueryBatch) -> int:
    """Return the floating-point operations of one forward pass over kernels and their queries.

    A prefix of p tokens has p^2 pairs, for the encoder reads it in both directions; each launch has p pairs a
    look-up.

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
    """Return the floating-point operations of one forward pass over what was counted.

    Raises:
        ValueError: The backbone is neither codegen nor small read packed: its arithmetic is not known here.
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
