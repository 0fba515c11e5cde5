"""The schedule of training steps: the interface of packing for ``trainer/fit``.

Owns the order of steps over epochs and the cache of one epoch's plan. A step's packs are a function
of data, config, seed and step number, so that a training can resume at any step with any number of
processes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.packing.batch import PackBatch, QueryBatch
from trainer.packing.groups import Launches, launches_of
from trainer.packing.layout import pack_batch
from trainer.packing.packs import Indices, Packs
from trainer.packing.plan import EpochPlan, PackShape, pack_shapes, plan_epoch, validation_packs
from trainer.packing.queries import (
    QueryShape,
    plan_query_epoch,
    query_batch,
    query_packs,
    query_shape,
)
from trainer.packing.ranks import packs_per_pass, rank_passes
from trainer.regressor_config import PackingConfig

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[Batch]):
    """The functions that make batches for one kind of model (``reads``: packed or query).

    Attributes:
        plan: returns the plan of an epoch, counted from 0.
        validation: packs of the validation part; may be empty.
        per_pass: returns, for a step's packs and a number of processes, the number of packs in a
            forward pass by length.
        layout: turns the packs of a forward pass into arrays.
    """

    plan: Callable[[int], EpochPlan]
    validation: Packs
    per_pass: Callable[[Packs, int], Mapping[int, int]]
    layout: Callable[[Packs], Batch]


class Schedule(Generic[Batch]):
    """The steps of a run, over all epochs.

    Caches the plan of the epoch used last. Epochs have different numbers of steps. So a training
    that resumes at a late step makes the plans of all earlier epochs once (1 s each for 340,000
    launches).
    """

    def __init__(self, reading: Reading[Batch]) -> None:
        self._reading = reading
        self._epoch_start = [0]
        self._epoch = 0
        self._plan = reading.plan(0)

    def locate(self, step: int) -> tuple[int, int]:
        """Return a global step's epoch and its number within the epoch, both counted from 0."""
        while step >= self._epoch_start[-1]:
            last = len(self._epoch_start) - 1
            self._epoch_start.append(self._epoch_start[-1] + len(self._plan_of(last)))
        epoch = bisect_right(self._epoch_start, step) - 1
        return epoch, step - self._epoch_start[epoch]

    def step_packs(self, step: int) -> Packs:
        """Return the packs of a global step, counted from 0 over all epochs."""
        epoch, index = self.locate(step)
        return self._plan_of(epoch).step(index)

    def passes(self, step: int, *, rank: int = 0, world_size: int = 1) -> tuple[Packs, ...]:
        """Return one process's passes of a step; number and shapes are equal on all processes."""
        return self._passes(self.step_packs(step), rank, world_size)

    def validation_passes(self, *, rank: int = 0, world_size: int = 1) -> tuple[Packs, ...]:
        """Return one process's forward passes over the validation part; see ``rank_passes``."""
        return self._passes(self._reading.validation, rank, world_size)

    def batch(self, packs: Packs) -> Batch:
        """Return the packs of a forward pass as arrays."""
        return self._reading.layout(packs)

    def batches(self, step: int, *, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """Yield the batches of one process in a step: the arrays of each of ``passes``."""
        for packs in self.passes(step, rank=rank, world_size=world_size):
            yield self.batch(packs)

    def _passes(self, packs: Packs, rank: int, world_size: int) -> tuple[Packs, ...]:
        per_pass = self._reading.per_pass(packs, world_size)
        return rank_passes(packs, rank=rank, world_size=world_size, per_pass=per_pass)

    def _plan_of(self, epoch: int) -> EpochPlan:
        if epoch != self._epoch:
            self._plan, self._epoch = self._reading.plan(epoch), epoch
        return self._plan


def pack_schedule(
    tokens: Tokens,
    *,
    train: Indices,
    validation: Indices,
    config: PackingConfig,
    seed: int,
) -> Schedule[PackBatch]:
    """Return the steps of a model that reads packs (``reads = "packed"``).

    All batches of one pack length, even of validation, have the same shape over the whole run.

    Args:
        tokens: all launches.
        train: rows of the train part, at least one.
        validation: rows of the validation part; may be empty.
        config: lengths and sizes.
        seed: the run's seed.

    Raises:
        BadInput: A launch does not fit into the longest pack, or ``train`` is empty.
    """
    longest = config.lengths[-1]
    launches = _train_launches(tokens, train, longest)
    held_out = launches_of(tokens, validation, longest)
    shapes = pack_shapes(launches_of(tokens, np.union1d(train, validation), longest), config)

    def per_pass(_: Packs, world_size: int) -> Mapping[int, int]:
        return {
            length: packs_per_pass(shape.packs_per_step, _most_packs(config, length), world_size)
            for length, shape in shapes.items()
        }

    def layout(packs: Packs) -> PackBatch:
        shape: PackShape = shapes[int(packs.length[0])]
        return pack_batch(packs, tokens, num_launches=shape.launches)

    return Schedule(
        Reading(
            plan=lambda epoch: plan_epoch(launches, config, seed=seed, epoch=epoch),
            validation=validation_packs(held_out, config),
            per_pass=per_pass,
            layout=layout,
        )
    )


def query_schedule(
    tokens: Tokens,
    *,
    train: Indices,
    validation: Indices,
    config: PackingConfig,
    seed: int,
) -> Schedule[QueryBatch]:
    """Return the steps of a model that queries encoded kernels (``reads = "query"``).

    Prefixes are padded to one of at most four lengths; the number of kernels in a batch varies.
    Arguments and errors are those of ``pack_schedule``.
    """
    launches = _train_launches(tokens, train, config.lengths[-1])
    held_out = launches_of(tokens, validation, config.lengths[-1])
    both = launches_of(tokens, np.union1d(train, validation), config.lengths[-1])
    shape: QueryShape = query_shape(both, config)

    def per_pass(packs: Packs, world_size: int) -> Mapping[int, int]:
        counts = {int(one): int(np.sum(packs.length == one)) for one in np.unique(packs.length)}
        return {
            length: packs_per_pass(count, shape.kernels_per_pass(length, config), world_size)
            for length, count in counts.items()
        }

    return Schedule(
        Reading(
            plan=lambda epoch: plan_query_epoch(launches, shape, config, seed=seed, epoch=epoch),
            validation=query_packs(held_out, shape, config),
            per_pass=per_pass,
            layout=lambda packs: query_batch(packs, tokens, shape),
        )
    )


def _train_launches(tokens: Tokens, rows: Indices, longest: int) -> Launches:
    if len(rows) == 0:
        raise BadInput(
            "the train part has no launch, so there is nothing to learn from: collect more kernels"
        )
    return launches_of(tokens, rows, longest)


def _most_packs(config: PackingConfig, length: int) -> int:
    return max(1, config.tokens_per_pass // length)
