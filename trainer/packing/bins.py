"""Bin packing of groups: the first waiting group opens a pack; the largest groups that fit fill it.

A group waits until it is in a pack. The last group of a pack may be split. Owns the search only:
``groups.py`` makes the groups and ``plan.py`` makes steps of packs. The search looks at a window of
the first waiting groups. The window is sorted by tokens and by prefix, so that the cost of the
search grows with n log(window).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trainer.packing.groups import Groups, Launches
from trainer.packing.packs import Indices, Packs, members, starts_of

DEFAULT_WINDOW = 256
"""Number of groups in the search window. Share of useful tokens (no padding, no repeated prefix) in
packs of 2,048 tokens, by window: 1 group 87.4 %, 16 groups 98.6 %, 64 groups 99.2 %, 256 groups
99.3 %, 1,024 groups 99.4 % (lengths of an H200 corpus)."""

_LOOKS = 32
"""Maximum number of groups skipped because a recent pack has their kernel. After that many, the
next group is taken although its kernel is in a recent pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """The rules for packs.

    Attributes:
        lengths: ascending; a pack has the shortest length that holds its first group whole.
        apart: maps the length of packs to a number n: of n consecutive packs of this length, at
            most one should contain a given kernel.
        window: number of groups in the search window.
    """

    lengths: tuple[int, ...]
    apart: Mapping[int, int]
    window: int = DEFAULT_WINDOW


def fill_bins(groups: Groups, launches: Launches, bins: Bins) -> Packs:
    """Put all groups into packs, approximately in the order of the groups.

    A pack has a kernel at most once. A group may be split: its first launches fill the rest of a
    pack, and its other launches come in a later pack, with a copy of the prefix.

    Args:
        groups: the groups; none is longer than the longest length.
        launches: the launches of the groups.
        bins: lengths and rules.

    Returns:
        Packs that together have each launch of the groups once. ``Packs.launch`` has the launches'
        row numbers in ``trainer.data.tokens.Tokens``.
    """
    packer = _Packer(groups, launches, bins)
    lengths: list[int] = []
    counts: list[int] = []
    parts: list[tuple[int, int, int]] = []
    for length, pack in packer.packs():
        lengths.append(length)
        counts.append(len(pack))
        parts += pack
    table = np.array(parts, dtype=np.int64).reshape(-1, 3)
    size = table[:, 2] - table[:, 1]
    index = groups.launch[members(table[:, 1], size)]
    return Packs(
        length=np.array(lengths, dtype=np.int64),
        part_start=starts_of(counts),
        kernel=table[:, 0],
        launch_start=starts_of(size),
        launch=launches.row[index],
    )


class _Packer:
    """The state of the search, in lists, because NumPy is slow at access to single numbers."""

    def __init__(self, groups: Groups, launches: Launches, bins: Bins) -> None:
        self._bins = bins
        self._kernel: list[int] = groups.kernel.tolist()
        self._start: list[int] = groups.start.tolist()
        self._stop: list[int] = groups.stop.tolist()
        self._prefix: list[int] = launches.prefix[groups.kernel].tolist()
        self._tokens: list[int] = starts_of(launches.suffix[groups.launch]).tolist()
        self._waits = [True] * len(self._kernel)
        self._oldest = 0
        self._entered = 0
        self._by_size: list[tuple[int, int]] = []
        self._by_prefix: list[tuple[int, int]] = []
        self._num_packs = dict.fromkeys(bins.lengths, 0)
        self._last_pack: dict[int, dict[int, int]] = {length: {} for length in bins.lengths}

    def packs(self) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Yield each pack: length, and kernel, start, stop (in ``groups.launch``) of each part."""
        self._refill()
        while self._by_size:
            first = self._first()
            length = self._length_for(first)
            pack: list[tuple[int, int, int]] = []
            held: set[int] = set()
            capacity = length
            group: int | None = first
            while group is not None:
                count = self._fitting(group, capacity)
                capacity -= self._put(group, count, pack, held, length)
                group = self._largest(capacity, held, length)
                if group is None:
                    group = self._to_cut(capacity, held, length)
            self._num_packs[length] += 1
            yield length, pack

    def _refill(self) -> None:
        while len(self._by_size) < self._bins.window and self._entered < len(self._kernel):
            group = self._entered
            insort(self._by_size, (self._size(group), group))
            insort(self._by_prefix, (self._prefix[group], group))
            self._entered += 1

    def _size(self, group: int) -> int:
        suffixes = self._tokens[self._stop[group]] - self._tokens[self._start[group]]
        return self._prefix[group] + suffixes

    def _length_for(self, group: int) -> int:
        size = self._size(group)
        return next(length for length in self._bins.lengths if length >= size)

    def _is_near(self, group: int, length: int) -> bool:
        """Return whether one of the last ``apart`` packs of ``length`` has the group's kernel."""
        last = self._last_pack[length].get(self._kernel[group])
        return last is not None and self._num_packs[length] - last < self._bins.apart[length]

    def _first(self) -> int:
        """Return the first waiting group, preferably one whose kernel is in no recent pack."""
        while not self._waits[self._oldest]:
            self._oldest += 1
        waiting = (group for group in range(self._oldest, self._entered) if self._waits[group])
        for _, group in zip(range(_LOOKS), waiting, strict=False):
            if not self._is_near(group, self._length_for(group)):
                return group
        return self._oldest

    def _largest(self, capacity: int, held: set[int], length: int) -> int | None:
        """Return the largest group that fits, preferably with its kernel in no recent pack."""
        index = bisect_right(self._by_size, (capacity, len(self._kernel)))
        return self._choose(reversed(self._by_size[:index]), held, length)

    def _to_cut(self, capacity: int, held: set[int], length: int) -> int | None:
        """Return the group with the shortest prefix among the groups whose first launch fits."""
        index = bisect_left(self._by_prefix, (capacity, 0))
        fitting = (one for one in self._by_prefix[:index] if self._fitting(one[1], capacity))
        return self._choose(fitting, held, length)

    def _choose(
        self, candidates: Iterator[tuple[int, int]], held: set[int], length: int
    ) -> int | None:
        second = None
        looks = 0
        for _, group in candidates:
            if self._kernel[group] in held:
                continue
            if not self._is_near(group, length):
                return group
            second = group if second is None else second
            looks += 1
            if looks == _LOOKS:
                break
        return second

    def _fitting(self, group: int, capacity: int) -> int:
        """Return how many launches of the group fit with their prefix into ``capacity`` tokens."""
        start = self._start[group]
        until = self._tokens[start] + capacity - self._prefix[group]
        return bisect_right(self._tokens, until, start, self._stop[group] + 1) - 1 - start

    def _put(
        self,
        group: int,
        count: int,
        pack: list[tuple[int, int, int]],
        held: set[int],
        length: int,
    ) -> int:
        """Move the group's first ``count`` launches into the pack; return the number of tokens."""
        size = self._size(group)
        kernel, start = self._kernel[group], self._start[group]
        del self._by_size[bisect_left(self._by_size, (size, group))]
        self._start[group] = start + count
        if self._start[group] == self._stop[group]:
            del self._by_prefix[bisect_left(self._by_prefix, (self._prefix[group], group))]
            self._waits[group] = False
            self._refill()
        else:
            insort(self._by_size, (self._size(group), group))
        pack.append((kernel, start, start + count))
        held.add(kernel)
        self._last_pack[length][kernel] = self._num_packs[length]
        return self._prefix[group] + self._tokens[start + count] - self._tokens[start]


def least_lengths(packs: Packs, tokens: Indices, lengths: tuple[int, ...]) -> Packs:
    """Return the packs with the least length for each: the first of ``lengths`` that holds it.

    Args:
        packs: n packs.
        tokens: number of tokens of each pack, shape (n,).
        lengths: the lengths that a pack may have, in tokens, ascending.
    """
    ladder = np.array(lengths, dtype=np.int64)
    return Packs(
        length=ladder[np.searchsorted(ladder, tokens)],
        part_start=packs.part_start,
        kernel=packs.kernel,
        launch_start=packs.launch_start,
        launch=packs.launch,
    )
