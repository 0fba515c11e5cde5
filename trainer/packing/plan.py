"""The packs and steps of an epoch: a pure function of lengths, config, seed and epoch.

Owns how packs become steps, and the shapes that a run's batches have. Does not own the order of training
over epochs (``schedule.py``) nor which process computes what (``ranks.py``).
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
"""The launches that a pack can hold are a multiple of so many: even sizes for the head's matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """One epoch.

    Attributes:
        packs: of all steps, one step after the other.
        step_start: where each step begins in ``packs`` and the last ends, shape (s + 1,).
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
    """What all batches of one pack length have in common over a run.

    Attributes:
        packs_per_step: most packs of a step.
        launches: launches that a pack can hold.
    """

    packs_per_step: int
    launches: int


def plan_epoch(launches: Launches, config: PackingConfig, *, seed: int, epoch: int) -> EpochPlan:
    """Lay the launches of one epoch into packs and steps.

    A step has packs of one length, worth ``tokens_per_step`` tokens. An epoch's packs of a length are dealt
    evenly to as many steps as they need, so that no step is left with a small rest.

    Args:
        launches: of the train part; each comes once.
        config: lengths and sizes.
        seed: of the run.
        epoch: from 0.
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
    # Steps of all lengths alternate as their packs were made; a step's first pack is its own.
    steps.sort(key=lambda step: int(step.min()))
    order = np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64)
    return EpochPlan(packs=packs.take(order), step_start=starts_of([len(step) for step in steps]))


def validation_packs(launches: Launches, config: PackingConfig) -> Packs:
    """Lay launches into packs of the shapes that training has, in the order of kernels and rows."""
    longest = config.lengths[-1]
    groups = fixed_groups(launches, most=config.configs_per_kernel, longest=longest)
    return _pack(groups, launches, config.lengths)


def packs_for(tokens: Tokens, rows: Indices, config: PackingConfig) -> Packs:
    """Lay any launches into as few packs as we can, for prediction: many launches share a prefix.

    Only ``config.lengths`` counts. Packs are as long as possible and then cut to the shortest length that
    holds them.

    Args:
        tokens: of all launches.
        rows: which of them to predict, each once.
        config: lengths.

    Raises:
        BadInput: A prefix with one of its suffixes is longer than the longest pack.
    """
    longest = config.lengths[-1]
    launches = launches_of(tokens, rows, longest)
    packs = _pack(full_groups(launches, longest=longest), launches, (longest,))
    used = packs.tokens(tokens.prefix_lengths, tokens.suffix_lengths)
    return least_lengths(packs, used, config.lengths)


def pack_shapes(launches: Launches, config: PackingConfig) -> Mapping[int, PackShape]:
    """Return by pack length what all batches of a run have in common: it depends on no epoch.

    Args:
        launches: of train and validation part together.
        config: lengths and sizes.
    """
    shortest = np.full(len(launches.prefix), np.iinfo(np.int64).max // 2**20)
    np.minimum.at(shortest, launches.kernel, launches.suffix)
    most = np.minimum(
        most_by_kernel(launches, most=config.configs_per_kernel, longest=config.lengths[-1]),
        np.bincount(launches.kernel, minlength=len(launches.prefix)),
    )
    # A pack is fullest with the kernels that have most launches a token, a cut group has fewer: so this
    # many launches fit, whichever kernels meet.
    most_tokens = launches.prefix + most * shortest
    shapes = {}
    for length, packs in _packs_per_step(launches, config).items():
        num_launches = int(np.max(length * most // np.maximum(most_tokens, 1), initial=1))
        multiple = -(-num_launches // _LAUNCHES_MULTIPLE) * _LAUNCHES_MULTIPLE
        shapes[length] = PackShape(packs_per_step=packs, launches=multiple)
    return shapes


def _pack(groups: Groups, launches: Launches, lengths: tuple[int, ...]) -> Packs:
    # Kernels need not be apart where nothing is learnt, and the window may be all: the order is free.
    bins = Bins(lengths=lengths, apart=dict.fromkeys(lengths, 0), window=max(1, len(groups.kernel)))
    return fill_bins(groups, launches, bins)


def _packs_per_step(launches: Launches, config: PackingConfig) -> dict[int, int]:
    """Return the packs of a step by length: no more than an epoch of few launches can have."""
    most = most_by_kernel(launches, most=config.configs_per_kernel, longest=config.lengths[-1])
    num_launches = np.bincount(launches.kernel, minlength=len(launches.prefix))
    prefixes = int(np.sum(-(-num_launches // most) * launches.prefix))
    total = prefixes + int(np.sum(launches.suffix))
    return {
        length: max(1, min(config.tokens_per_step // length, -(-total // length)))
        for length in config.lengths
    }
