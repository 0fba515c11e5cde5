"""The packs and steps of an epoch, as a pure function of lengths, config, seed and epoch.

Owns the division of packs into steps and the shapes of a run's batches. ``schedule.py`` owns the
order of epochs, ``ranks.py`` the division of a step among processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainer.data.tokens import Tokens
from trainer.packing.bins import Bins, fill_bins, least_lengths
from trainer.packing.groups import (
    Groups,
    Launches,
    fixed_groups,
    full_groups,
    launches_of,
    most_by_kernel,
    shuffled_groups,
)
from trainer.packing.mixing import MIN_KERNELS, mixed_steps
from trainer.packing.packs import Indices, Packs, starts_of
from trainer.regressor_config import PackingConfig

_LAUNCHES_MULTIPLE = 8
"""The maximum number of launches of a pack is rounded up to a multiple of this, so that the head
computes with matrices of even sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """The plan of one epoch with s steps.

    Attributes:
        packs: the packs of all steps, step by step.
        step_start: first pack of each step, then the number of packs, shape (s + 1,).
    """

    packs: Packs
    step_start: Indices

    def __len__(self) -> int:
        return len(self.step_start) - 1

    def step(self, index: int) -> Packs:
        """Return the packs of a step, counted from 0 within the epoch."""
        begin, end = self.step_start[index : index + 2]
        return self.packs.take(np.arange(begin, end))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackShape:
    """The shape of all batches of one pack length in a run.

    Attributes:
        packs_per_step: maximum number of packs of a step.
        launches: maximum number of launches of a pack.
    """

    packs_per_step: int
    launches: int


def plan_epoch(launches: Launches, config: PackingConfig, *, seed: int, epoch: int) -> EpochPlan:
    """Return the packs and steps of one epoch.

    A step has packs of one length, at most ``tokens_per_step`` tokens in all. The packs of a length
    are divided evenly over the steps, so that no step is much smaller than the others.

    Args:
        launches: the launches of the train part; each comes once.
        config: lengths and sizes.
        seed: the run's seed.
        epoch: number of the epoch, from 0.
    """
    longest = config.lengths[-1]
    groups = shuffled_groups(
        launches, most=config.configs_per_kernel, longest=longest, seed=seed, epoch=epoch
    )
    per_step = _packs_per_step(launches, config)
    packs = fill_bins(groups, launches, Bins(lengths=config.lengths, apart=per_step))
    steps: list[Indices] = []
    for length, most in per_step.items():
        index = np.flatnonzero(packs.length == length)
        if len(index):
            split = np.array_split(index, -(-len(index) // most))
            steps += mixed_steps(packs, split, MIN_KERNELS)
    # Steps of different lengths alternate, because steps are sorted by their first packs.
    steps.sort(key=lambda step: int(step.min()))
    order = np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64)
    return EpochPlan(packs=packs.take(order), step_start=starts_of([len(step) for step in steps]))


def validation_packs(launches: Launches, config: PackingConfig) -> Packs:
    """Return packs of the training's shapes, with the launches in the order of kernels and rows."""
    longest = config.lengths[-1]
    groups = fixed_groups(launches, most=config.configs_per_kernel, longest=longest)
    return _pack(groups, launches, config.lengths)


def packs_for(tokens: Tokens, rows: Indices, config: PackingConfig) -> Packs:
    """Pack any launches into few packs, for prediction; as many launches as fit share a prefix.

    The launches are packed to the longest length. Then each pack gets the shortest length that
    holds it.

    Args:
        tokens: all launches.
        rows: the rows of ``tokens`` to predict, each once.
        config: only ``lengths`` is used.

    Raises:
        BadInput: A prefix with one of its suffixes is longer than the longest pack.
    """
    longest = config.lengths[-1]
    launches = launches_of(tokens, rows, longest)
    packs = _pack(full_groups(launches, longest=longest), launches, (longest,))
    used = packs.tokens(tokens.prefix_lengths, tokens.suffix_lengths)
    return least_lengths(packs, used, config.lengths)


def pack_shapes(launches: Launches, config: PackingConfig) -> Mapping[int, PackShape]:
    """Return the shape of batches by pack length; it is the same for all epochs of a run.

    Args:
        launches: the launches of the train and validation parts together.
        config: lengths and sizes.
    """
    shortest = np.full(len(launches.prefix), np.iinfo(np.int64).max // 2**20)
    np.minimum.at(shortest, launches.kernel, launches.suffix)
    most = np.minimum(
        most_by_kernel(launches, most=config.configs_per_kernel, longest=config.lengths[-1]),
        np.bincount(launches.kernel, minlength=len(launches.prefix)),
    )
    # Upper bound of the launches in a pack: the whole pack is filled with the kernel that has the
    # most launches per token. A group that was split has fewer launches per token than a whole one.
    most_tokens = launches.prefix + most * shortest
    shapes = {}
    for length, packs in _packs_per_step(launches, config).items():
        num_launches = int(np.max(length * most // np.maximum(most_tokens, 1), initial=1))
        multiple = -(-num_launches // _LAUNCHES_MULTIPLE) * _LAUNCHES_MULTIPLE
        shapes[length] = PackShape(packs_per_step=packs, launches=multiple)
    return shapes


def _pack(groups: Groups, launches: Launches, lengths: tuple[int, ...]) -> Packs:
    # Without training, order does not matter: kernels may repeat, and the window has all groups.
    bins = Bins(lengths=lengths, apart=dict.fromkeys(lengths, 0), window=max(1, len(groups.kernel)))
    return fill_bins(groups, launches, bins)


def _packs_per_step(launches: Launches, config: PackingConfig) -> dict[int, int]:
    """Return the maximum number of packs of a step, by length; few launches give fewer packs."""
    most = most_by_kernel(launches, most=config.configs_per_kernel, longest=config.lengths[-1])
    num_launches = np.bincount(launches.kernel, minlength=len(launches.prefix))
    prefixes = int(np.sum(-(-num_launches // most) * launches.prefix))
    total = prefixes + int(np.sum(launches.suffix))
    return {
        length: max(1, min(config.tokens_per_step // length, -(-total // length)))
        for length in config.lengths
    }
