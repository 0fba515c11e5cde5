"""The division of a step's packs among processes.

A step's packs do not depend on the number of processes; only their division does.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.packing.packs import Packs, empty_packs, joined


def packs_per_pass(num_packs: int, most: int, world_size: int) -> int:
    """Return the number of packs of a pass, if as few passes as possible share all evenly.

    >>> packs_per_pass(num_packs=16, most=16, world_size=2), packs_per_pass(16, 6, 1)
    (8, 6)

    Args:
        num_packs: packs of one length in a step, over all processes.
        most: packs that a pass of one process may have.
        world_size: number of processes.
    """
    num_passes = max(1, -(-num_packs // (world_size * most)))
    return max(1, -(-num_packs // (world_size * num_passes)))


def rank_passes(
    packs: Packs, *, rank: int, world_size: int, per_pass: Mapping[int, int]
) -> tuple[Packs, ...]:
    """Return the forward passes of a step that one process computes, shortest packs first.

    Each pack is computed by one process. All processes have the same number of passes, with the
    same lengths in the same order and the same numbers of packs; empty packs fill the gaps.

    Args:
        packs: the packs of a step.
        rank: rank of the process, from 0.
        world_size: number of processes.
        per_pass: packs of a forward pass, by length.
    """
    passes = []
    for length in np.unique(packs.length).tolist():
        index = np.flatnonzero(packs.length == length)
        width = per_pass[length]
        num_passes = -(-len(index) // (world_size * width))
        mine = index[rank::world_size]
        padded = joined([packs.take(mine), empty_packs(length, num_passes * width - len(mine))])
        passes += [
            padded.take(np.arange(first, first + width))
            for first in range(0, num_passes * width, width)
        ]
    return tuple(passes)
