"""The token runs (shingles) of many sources, in a form small enough to be stored with a model.

A new source is compared exactly with all training sources by these runs. Owns the stored form: for
each view (``shingles.py``) the distinct runs as 32-bit hashes, and for each source its runs.
Sources cannot be recovered: names are numbered, numbers become classes, and runs are hashed. 6,291
kernels of public repositories take 4 MB, a quarter of their text.

Does not own what counts as a near duplicate (``families.py``: ``MIN_JACCARD``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.families.families import compared_views
from llmperf_common.families.shingles import NUM_VIEWS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Short = npt.NDArray[np.uint32]

_KEPT_BITS = np.uint64(32)
"""Number of bits kept of each 64-bit hash. Among 400,000 distinct runs about 20 pairs then collide.
Each collision changes one run of one pair of sources."""


SCHEMA = pa.schema(
    [
        pa.field(f"{kind}_{view}", pa.list_(pa.uint32()), nullable=False)
        for view in range(NUM_VIEWS)
        for kind in ("runs", "new")
    ]
)
"""Columns of ``SourceSets.table``."""


@dataclass(frozen=True)
class _View:
    """One view of n sources.

    Attributes:
        hashes: the distinct runs in the order of their first appearance, shape (r,).
        members: for each source the positions of its runs in ``hashes``, ascending; the positions
            of all sources are concatenated, shape (m,).
        starts: the start of each source in ``members``, shape (n + 1,).
    """

    hashes: Short
    members: Ints
    starts: Ints

    @cached_property
    def _by_hash(self) -> tuple[Short, Ints, Ints, Ints]:
        """Return sorted hashes, their positions, and each position's sources (starts, owners)."""
        order = np.argsort(self.hashes)
        owner = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        by_run = np.argsort(self.members, kind="stable")
        counts = np.bincount(self.members, minlength=len(self.hashes))
        return self.hashes[order], order, np.concatenate([[0], np.cumsum(counts)]), owner[by_run]

    def overlaps(self, wanted: Short) -> Floats:
        """Return the similarity of ``wanted`` (sorted, unique) to each source, shape (n,)."""
        ordered, positions, first, owners = self._by_hash
        place = np.minimum(np.searchsorted(ordered, wanted), max(0, len(ordered) - 1))
        found = positions[place[ordered[place] == wanted]] if len(ordered) else positions
        lists = [owners[first[run] : first[run + 1]] for run in found.tolist()]
        num_sources = len(self.starts) - 1
        common = np.bincount(np.concatenate([*lists, owners[:0]]), minlength=num_sources)
        union = len(wanted) + np.diff(self.starts) - common
        return np.asarray(common / np.maximum(union, 1), dtype=np.float64)


class SourceSets:
    """The runs of n sources in both views."""

    def __init__(self, views: tuple[_View, ...]) -> None:
        """Keep the views that ``of_sources`` or ``of_table`` made."""
        self._views = views

    def __len__(self) -> int:
        return len(self._views[0].starts) - 1

    @classmethod
    def of_sources(cls, sources: Sequence[str]) -> SourceSets:
        """Make the runs of ``sources``, in the order of the sources; takes 2 ms per source."""
        sets = [short_views(source) for source in sources]
        return cls(tuple(_view([one[view] for one in sets]) for view in range(NUM_VIEWS)))

    def overlaps(self, source: str) -> Floats:
        """Return ``source``'s similarity to each stored source, the larger of both views: (n,)."""
        wanted = short_views(source)
        each = [view.overlaps(one) for view, one in zip(self._views, wanted, strict=True)]
        return np.asarray(np.max(each, axis=0), dtype=np.float64)

    def table(self) -> pa.Table:
        """Return a table for ``of_table``: one row per source, of integers that compress well.

        ``runs_V`` holds the numbers of the source's runs in view V, each as the difference from the
        number before it. ``new_V`` holds the hashes of the runs that no earlier source has; these
        runs get the next free numbers.
        """
        columns: dict[str, pa.Array] = {}
        for name, view in enumerate(self._views):
            begins = view.starts[:-1][np.diff(view.starts) > 0]
            gaps = np.diff(view.members, prepend=0)
            gaps[begins] = view.members[begins]
            highest = np.full(len(self) + 1, -1)
            has_runs = np.flatnonzero(np.diff(view.starts) > 0)
            highest[has_runs + 1] = view.members[view.starts[has_runs + 1] - 1]
            known = np.maximum.accumulate(highest) + 1
            columns[f"runs_{name}"] = _lists(view.starts, gaps)
            columns[f"new_{name}"] = _lists(known, view.hashes)
        return pa.table(columns)

    @classmethod
    def of_table(cls, table: pa.Table) -> SourceSets:
        """Read the columns that ``table`` has written.

        Raises:
            ValueError: A column is missing or contradicts the others.
        """
        try:
            return cls(tuple(_read_view(table, name) for name in range(NUM_VIEWS)))
        except (KeyError, pa.ArrowException) as error:
            raise ValueError(f"source sets: {error}") from None


@lru_cache(maxsize=1 << 14)
def short_views(source: str) -> tuple[Short, ...]:
    """Return the 32-bit runs of one source in each view, sorted, without repetition; cached."""
    return tuple(
        np.unique((view >> _KEPT_BITS).astype(np.uint32)) for view in compared_views(source)
    )


def _view(sets: Sequence[Short]) -> _View:
    starts = np.concatenate([[0], np.cumsum([len(one) for one in sets], dtype=np.int64)])
    joined = np.concatenate([*sets, np.zeros(0, np.uint32)])
    distinct, first, inverse = np.unique(joined, return_index=True, return_inverse=True)
    # Runs are numbered by first appearance. Neighbouring runs of a source thus get close numbers,
    # and their differences are small.
    order = np.argsort(first)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    owner = np.repeat(np.arange(len(sets)), np.diff(starts))
    members = place[inverse]
    return _View(
        hashes=distinct[order], members=members[np.lexsort((members, owner))], starts=starts
    )


def _lists(starts: Ints, values: npt.NDArray[Any]) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()), pa.array(values.astype(np.uint32), pa.uint32())
    )


def _read_view(table: pa.Table, name: int) -> _View:
    runs = table.column(f"runs_{name}").combine_chunks()
    gaps = runs.flatten().cast(pa.int64()).to_numpy(zero_copy_only=False)
    sizes = pc.list_value_length(runs).cast(pa.int64()).to_numpy(zero_copy_only=False)
    hashes = table.column(f"new_{name}").combine_chunks().flatten().cast(pa.uint32())
    starts = np.concatenate([[0], np.cumsum(sizes)])
    total = np.cumsum(gaps)
    # ``total`` is summed over all sources: subtract the value that it has before each source.
    before = np.concatenate([[0], total])[starts[:-1]]
    members = total - np.repeat(before, sizes)
    if len(members) and not (members.min() >= 0 and members.max() < len(hashes)):
        raise ValueError(f"source sets: view {name} refers to runs that the table does not hold")
    return _View(hashes=hashes.to_numpy(zero_copy_only=False), members=members, starts=starts)
