"""How much arithmetic a batch needs at least: the numerator of MFU.

Counts real tokens once and attention by unmasked pairs (DESIGN section 9), over the blocks only: embedding,
norms, head and padding count for nothing, so that the utilisation is not flattered. A training step is
three forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.packing.batch import PackBatch
from trainer.regressor.backbones.codegen import CodeGenShape
from trainer.regressor.backbones.small import MLP_RATIO
from trainer.regressor.spec import RegressorSpec

TRAINING_PASSES = 3
"""Forward passes that forward and backward cost together."""


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
