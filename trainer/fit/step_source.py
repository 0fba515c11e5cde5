"""The interfaces between data, model and training loop.

A step is a list of packs that depends on the step's number only. Each rank computes a part of the
packs, and all ranks have the same number of forward passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch


class Output(Protocol):
    """A model's output for b packs of at most m launches.

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
        batch: input of the model, on the model's device.
        log2_ns: targets, shape (b, m); any number where there is no launch.
        weight: weights of the launches, shape (b, m); 0 where there is no launch.
        num_launches: number of launches.
        num_tokens: number of tokens without padding; a token that several launches share counts
            once.
        flops: floating-point operations of the forward and backward pass; 0 if not counted.
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
        passes: the same number on each rank, at least one.
        total_weight: sum of the weights over all ranks, positive.
    """

    passes: Sequence[Pass]
    total_weight: float


class StepSource(Protocol):
    """The training data, as a pure function of the step."""

    def passes(self, step: int, rank: int, world_size: int) -> StepPasses:
        """Return ``rank``'s passes of ``step``, counted from 1; any thread may call this."""
        ...


class ValidationSource(Protocol):
    """The rows that select the best checkpoint."""

    def passes(self, rank: int, world_size: int) -> Iterable[Pass]:
        """Return the rank's part of the rows; all ranks have the same number of passes."""
        ...
