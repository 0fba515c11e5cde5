"""Groups of launches that share one copy of their kernel's prefix; packs are made of groups.

Owns the lengths that packing works with, the check that each launch fits into a pack, and the
division of a kernel's launches into groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.data.tokens import Tokens
from trainer.errors import BadInput
from trainer.packing.packs import Indices, members, starts_of
from trainer.packing.shuffle import random_keys, random_shares

_LAUNCHES, _KERNELS = 1, 2
"""Codes that make random numbers for two purposes independent: for the order of a kernel's
launches, and for a kernel's place in the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Lengths in tokens of n launches to pack.

    Attributes:
        row: rows of ``Tokens``, ascending, shape (n,).
        kernel: the kernel of each launch (``group`` of ``Tokens``), shape (n,).
        suffix: length of each suffix, at least 1, shape (n,).
        prefix: length of each kernel's prefix, for all kernels of ``Tokens``, shape (g,).
    """

    row: Indices
    kernel: Indices
    suffix: Indices
    prefix: Indices

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The q groups in the order in which they are packed.

    Attributes:
        kernel: kernel of each group, shape (q,).
        start: where each group's launches begin in ``launch``, shape (q,).
        stop: where each group's launches end in ``launch``, shape (q,).
        launch: positions in ``Launches``, each once, shape (n,).
    """

    kernel: Indices
    start: Indices
    stop: Indices
    launch: Indices


def launches_of(tokens: Tokens, rows: Indices, longest: int) -> Launches:
    """Return the lengths of the launches ``rows``.

    Args:
        tokens: all launches.
        rows: rows of ``tokens``, each once, in any order.
        longest: length of the longest pack in tokens.

    Raises:
        BadInput: A prefix with one of its suffixes is longer than the longest pack.
    """
    row = np.sort(np.asarray(rows, dtype=np.int64))
    kernel = np.asarray(tokens.group[row], dtype=np.int64)
    suffix = tokens.suffix_lengths[row]
    prefix = tokens.prefix_lengths
    total = prefix[kernel] + suffix
    if np.any(total > longest):
        worst = int(np.argmax(total))
        raise BadInput(
            f"launch {row[worst]} has {total[worst]:,} tokens ({prefix[kernel[worst]]:,} of them "
            f"its kernel's), but the longest pack can hold {longest:,}: "
            "raise packing.lengths or lower prompt.max_tokens"
        )
    return Launches(row=row, kernel=kernel, suffix=suffix, prefix=prefix)


def shuffled_groups(
    launches: Launches, *, most: int, longest: int, seed: int, epoch: int
) -> Groups:
    """Shuffle each kernel's launches, divide them into equal groups, and shuffle the groups.

    The q groups of a kernel have equal distances (1/q of the epoch), and the place of the first one
    is random. So neighbouring groups belong to different kernels as far as the data allow.

    Args:
        launches: the launches to divide.
        most: maximum number of launches of a group.
        longest: length of the longest pack in tokens; no group is longer.
        seed: the run's seed.
        epoch: number of the epoch, from 0.
    """
    key = random_keys(seed, epoch, _LAUNCHES, launches.kernel, _place_in_kernel(launches.kernel))
    order = np.lexsort((key, launches.kernel))
    groups = _dealt(launches, order, most=most, longest=longest)
    place = _place_in_kernel(groups.kernel)
    num_groups = np.bincount(groups.kernel, minlength=len(launches.prefix))[groups.kernel]
    position = (place + random_shares(seed, epoch, _KERNELS, groups.kernel)) / num_groups
    return _reordered(groups, np.argsort(position, kind="stable"))


def fixed_groups(launches: Launches, *, most: int, longest: int) -> Groups:
    """Divide launches into groups as ``shuffled_groups`` does, in the order of kernels and rows."""
    order = np.argsort(launches.kernel, kind="stable")
    return _dealt(launches, order, most=most, longest=longest)


def full_groups(launches: Launches, *, longest: int) -> Groups:
    """Divide each kernel's launches into as few groups as possible; return long groups first."""
    order = np.argsort(launches.kernel, kind="stable")
    tokens = starts_of(launches.suffix[order])
    kernel_start = starts_of(np.bincount(launches.kernel, minlength=len(launches.prefix)))
    kernels: list[int] = []
    start: list[int] = []
    stop: list[int] = []
    for kernel in np.unique(launches.kernel).tolist():
        begin, end = int(kernel_start[kernel]), int(kernel_start[kernel + 1])
        while begin < end:
            capacity = tokens[begin] + longest - launches.prefix[kernel]
            until = min(end, int(np.searchsorted(tokens, capacity, side="right")) - 1)
            kernels.append(kernel)
            start.append(begin)
            stop.append(until)
            begin = until
    groups = Groups(
        kernel=np.array(kernels, dtype=np.int64),
        start=np.array(start, dtype=np.int64),
        stop=np.array(stop, dtype=np.int64),
        launch=order,
    )
    length = launches.prefix[groups.kernel] + tokens[groups.stop] - tokens[groups.start]
    return _reordered(groups, np.argsort(-length, kind="stable"))


def most_by_kernel(launches: Launches, *, most: int, longest: int) -> Indices:
    """Return each kernel's maximum number of launches in a group, at least 1, shape (g,)."""
    longest_suffix = np.ones(len(launches.prefix), dtype=np.int64)
    np.maximum.at(longest_suffix, launches.kernel, launches.suffix)
    fitting = (longest - launches.prefix) // longest_suffix
    return np.asarray(np.clip(fitting, 1, most), dtype=np.int64)


def _dealt(launches: Launches, order: Indices, *, most: int, longest: int) -> Groups:
    num_launches = np.bincount(launches.kernel, minlength=len(launches.prefix))
    num_groups = -(-num_launches // most_by_kernel(launches, most=most, longest=longest))
    kernel = np.repeat(np.arange(len(num_groups)), num_groups)
    place = members(np.zeros_like(num_groups), num_groups)
    begin = starts_of(num_launches)[kernel]
    return Groups(
        kernel=kernel,
        start=begin + place * num_launches[kernel] // num_groups[kernel],
        stop=begin + (place + 1) * num_launches[kernel] // num_groups[kernel],
        launch=order,
    )


def _place_in_kernel(kernel: Indices) -> Indices:
    """Return for each element how many equal elements precede it, shape of ``kernel``."""
    order = np.argsort(kernel, kind="stable")
    place = np.empty_like(kernel)
    count = np.bincount(kernel) if len(kernel) else np.zeros(0, dtype=np.int64)
    place[order] = members(np.zeros_like(count), count)
    return place


def _reordered(groups: Groups, order: Indices) -> Groups:
    return Groups(
        kernel=groups.kernel[order],
        start=groups.start[order],
        stop=groups.stop[order],
        launch=groups.launch,
    )
