"""Packs as index arrays: which launches share a sequence.

Owns the record of packs, their selection and their concatenation. ``bins.py`` chooses the launches
of a pack, and ``layout.py`` makes arrays of token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packs:
    """The p packs with q parts and n launches; a part is a kernel's prefix with some launches.

    A pack without parts is padding of a forward pass and has no weight in the loss.

    Attributes:
        length: tokens that each pack can hold, shape (p,).
        part_start: first part of each pack, then q, shape (p + 1,).
        kernel: the kernel of each part (``group`` of ``Tokens``), shape (q,).
        launch_start: first launch of each part, then n, shape (q + 1,).
        launch: rows of ``Tokens``, shape (n,).
    """

    length: Indices
    part_start: Indices
    kernel: Indices
    launch_start: Indices
    launch: Indices

    def __len__(self) -> int:
        return len(self.length)

    @property
    def pack_of_part(self) -> Indices:
        """The pack of each part, shape (q,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.part_start))

    @property
    def part_of_launch(self) -> Indices:
        """The part of each launch, shape (n,)."""
        return np.repeat(np.arange(len(self.kernel)), np.diff(self.launch_start))

    @property
    def num_launches(self) -> Indices:
        """Number of launches of each pack, shape (p,)."""
        return np.diff(self.launch_start[self.part_start])

    def take(self, index: Indices) -> Self:
        """Return the packs at ``index``, in that order."""
        part, part_start = _ranges(self.part_start, index)
        launch, launch_start = _ranges(self.launch_start, part)
        return type(self)(
            length=self.length[index],
            part_start=part_start,
            kernel=self.kernel[part],
            launch_start=launch_start,
            launch=self.launch[launch],
        )

    def tokens(self, prefix_lengths: Indices, suffix_lengths: Indices) -> Indices:
        """Return the number of tokens of each pack without padding, shape (p,).

        Args:
            prefix_lengths: tokens of each kernel's prefix, by kernel.
            suffix_lengths: tokens of each launch's suffix, by row of ``Tokens``.
        """
        return _range_sums(prefix_lengths[self.kernel], self.part_start) + _range_sums(
            suffix_lengths[self.launch], self.launch_start[self.part_start]
        )


def empty_packs(length: int, count: int) -> Packs:
    """Return ``count`` packs of ``length`` tokens without a launch."""
    return Packs(
        length=np.full(count, length, dtype=np.int64),
        part_start=np.zeros(count + 1, dtype=np.int64),
        kernel=np.zeros(0, dtype=np.int64),
        launch_start=np.zeros(1, dtype=np.int64),
        launch=np.zeros(0, dtype=np.int64),
    )


def joined(parts: Sequence[Packs]) -> Packs:
    """Return the packs of all ``parts`` (at least one), in order."""
    return Packs(
        length=np.concatenate([one.length for one in parts]),
        part_start=_joined_starts([one.part_start for one in parts]),
        kernel=np.concatenate([one.kernel for one in parts]),
        launch_start=_joined_starts([one.launch_start for one in parts]),
        launch=np.concatenate([one.launch for one in parts]),
    )


def starts_of(counts: npt.ArrayLike) -> Indices:
    """Return where each of some consecutive ranges of ``counts`` elements starts, then the end.

    >>> starts_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))])


def members(start: Indices, count: Indices) -> Indices:
    """Return the integers of the ranges [start, start + count), concatenated.

    >>> members(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    before = starts_of(count)
    return np.arange(before[-1]) + np.repeat(start - before[:-1], count)


def _ranges(start: Indices, index: Indices) -> tuple[Indices, Indices]:
    count = np.diff(start)[index]
    return members(start[index], count), starts_of(count)


def _range_sums(amount: Indices, start: Indices) -> Indices:
    return np.diff(starts_of(amount)[start])


def _joined_starts(starts: Sequence[Indices]) -> Indices:
    return starts_of(np.concatenate([np.diff(start) for start in starts]))
