"""What a step is made of: the forward passes of each rank, and the model that reads them.

Owns the forms between packing, model and loop. A step is a list of packs, a function of the step alone; the
ranks take slices of it, in equally many passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Output(Protocol):
    """What a model says about b packs of at most m launches.

    Attributes:
        log2_ns: predicted log2(ns), shape (b, m), float32.
        spread: expected abs(log2(measured / predicted)), shape (b, m), float32, positive.
    """

    @property
    def log2_ns(self) -> torch.Tensor: ...  # noqa: D102
    @property
    def spread(self) -> torch.Tensor: ...  # noqa: D102


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass of one rank.

    Attributes:
        batch: what the model reads; on the model's device.
        log2_ns: targets, shape (b, m); any number where no launch is.
        weight: weights of the launches, shape (b, m); 0 where no launch is, and in passes that only fill up.
        num_launches: launches with a weight.
        num_tokens: real tokens, each counted once.
        flops: floating-point operations of the forward and backward pass; 0 where not counted.
    """

    batch: Any
    log2_ns: torch.Tensor
    weight: torch.Tensor
    num_launches: int = 0
    num_tokens: int = 0
    flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPasses:
    """One rank's part of a step.

    Attributes:
        passes: equally many on each rank, at least one.
        total_weight: sum of the weights over all ranks, positive.
    """

    passes: Sequence[Pass]
    total_weight: float


class StepSource(Protocol):
    """The training data, as a pure function of the step."""

    def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
        """Return what ``rank`` computes in ``step`` (from 1). May be called from another thread."""
        ...


class ValidationSource(Protocol):
    """The rows that the best checkpoint is chosen on."""

    def passes(self, rank: int, world_size: int) -> Iterable[Pass]:
        """Return the rank's slice of the rows, in equally many passes on each rank."""
        ...
