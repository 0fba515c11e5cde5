"""Mixing of steps: a step with few kernels exchanges packs with steps that have many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainer.packing.packs import Indices, Packs

MIN_KERNELS = 16
"""Minimum number of kernels of a step: fewer kernels would not represent the others."""

_PARTNERS = 32
"""Number of steps with which a step of too few kernels may exchange packs: those with the most
kernels."""


def mixed_steps(packs: Packs, steps: Sequence[Indices], least: int) -> list[Indices]:
    """Exchange packs between steps until each has ``least`` kernels; some may keep fewer.

    This is needed because bin packing uses up the small groups first, so that the last steps of an
    epoch may have only a few long kernels.

    Args:
        packs: all packs.
        steps: the packs of each step, all of one length; each pack in one step.
        least: number of kernels wanted in each step.
    """
    kernels = [
        frozenset(packs.kernel[begin:end].tolist())
        for begin, end in zip(
            packs.part_start[:-1].tolist(), packs.part_start[1:].tolist(), strict=True
        )
    ]
    mixed: list[list[int]] = [step.tolist() for step in steps]
    counts = np.array([len(_union(kernels, step)) for step in mixed])
    for poor in np.flatnonzero(counts < least).tolist():
        for rich in np.argsort(-counts, kind="stable")[:_PARTNERS].tolist():
            while counts[poor] < least and _exchange(kernels, mixed[poor], mixed[rich], least):
                counts[poor] = len(_union(kernels, mixed[poor]))
                counts[rich] = len(_union(kernels, mixed[rich]))
    return [np.sort(np.array(step, dtype=np.int64)) for step in mixed]


def _exchange(
    kernels: Sequence[frozenset[int]], poor: list[int], rich: list[int], least: int
) -> bool:
    """Swap a pack of few kernels (of ``poor``) and one of many, if it helps; return whether."""
    given = min(poor, key=lambda pack: (len(kernels[pack]), pack))
    taken = max(rich, key=lambda pack: (len(kernels[pack]), -pack))
    new_poor = [taken if pack == given else pack for pack in poor]
    new_rich = [given if pack == taken else pack for pack in rich]
    helps = len(_union(kernels, new_poor)) > len(_union(kernels, poor))
    if not helps or len(_union(kernels, new_rich)) < least:
        return False
    poor[:], rich[:] = new_poor, new_rich
    return True


def _union(kernels: Sequence[frozenset[int]], step: Sequence[int]) -> frozenset[int]:
    return frozenset().union(*(kernels[pack] for pack in step))
