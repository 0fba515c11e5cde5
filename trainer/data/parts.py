"""Split of a dataset into parts (train, validation, ...), and notes on the split."""

from __future__ import annotations

import numpy as np

from llmperf_common.statistics.splits import (
    Part,
    Split,
    SplitKind,
    assign_parts,
    check_split,
    crossing_families,
    split_by_config,
    split_by_family,
    split_by_kernel,
)
from trainer.config import SplitConfig
from trainer.data.dataset import Texts, TrainingData


def make_split(data: TrainingData, config: SplitConfig) -> Split:
    """Split the dataset as ``config`` says and check that a split by family keeps families whole.

    Raises:
        SplitError: Too few families or kernels.
    """
    families = data.kernel_families()
    if config.kind is SplitKind.FAMILY:
        split = split_by_family(
            data.family_suites(),
            seed=config.seed,
            public_suites=config.public_suites,
            held_out_share=config.held_out_share,
        )
    elif config.kind is SplitKind.KERNEL:
        split = split_by_kernel(
            np.unique(data.texts("kernel_id")).tolist(),
            seed=config.seed,
            held_out_share=config.held_out_share,
        )
    else:
        split = split_by_config(seed=config.seed)
    check_split(split, families)
    return split


def row_parts(data: TrainingData, split: Split) -> Texts:
    """Return the part of each row, shape (n,)."""
    return assign_parts(
        split,
        family_ids=data.family_id.tolist(),
        kernel_ids=data.texts("kernel_id").tolist(),
        sample_ids=data.texts("sample_id").tolist(),
    )


def split_notes(data: TrainingData, split: Split, parts: Texts) -> list[str]:
    """Return notes on the split that a reader of the metrics needs."""
    notes = []
    families = part_sizes(parts, data.family_id)
    small = [
        f"{part} {families.get(part, 0)}"
        for part in (Part.VALIDATION.value, Part.TEST.value)
        if families.get(part, 0) < 10
    ]
    if small and split.kind is SplitKind.FAMILY:
        notes.append(
            f"few families ({', '.join(small)}): other families could give very different metrics"
        )
    crossing = crossing_families(split, data.kernel_families())
    if crossing:
        notes.append(
            f"{len(crossing)} families have kernels in several parts, so near duplicates leak (as "
            "in the paper)"
        )
    if split.kind is SplitKind.CONFIG:
        notes.append("test holds launch configs of kernels that were fitted, not unseen kernels")
    return notes


def part_sizes(parts: Texts, families: Texts | None = None) -> dict[str, int]:
    """Return the number of rows by part or, with ``families`` (shape (n,)), of families by part."""
    names = [part for part in np.unique(parts).tolist() if part]
    if families is None:
        return {name: int(np.sum(parts == name)) for name in names}
    return {name: len(np.unique(families[parts == name])) for name in names}
