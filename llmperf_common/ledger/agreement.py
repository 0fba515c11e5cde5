"""Whether a ledger and the manifests tell the same story, and what is to be done where they do not.

Owns the comparison, in both directions. A ledger that was rolled back (a copy, or one whose write-ahead log was
removed) knows *less* than the manifests: it would give finished tasks out again. Manifests that were removed know
less than the ledger: their shards must be listed again.

What makes a comparison of names enough: a ledger binds each task to one shard. If it knows every shard that a manifest
lists, then no shard that it has recorded beside these has one of their tasks.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from llmperf_common.ledger.protocol import Ledger
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry, latest_manifest
from llmperf_common.store.manifests.segments import Segment

_ALL_TASKS = range(1 << 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a ledger and the current manifest differ.

    Attributes:
        unknown: kernels shards that the manifest lists and the ledger has never recorded.
        unlisted: what the ledger has recorded and the manifest neither lists nor has replaced.
    """

    unknown: tuple[str, ...]
    unlisted: tuple[ShardEntry, ...]


def compare(ledger: Ledger, fs: Filesystem) -> Comparison:
    """Compare ``ledger`` with the current manifest, in an order that colleagues at work do not disturb.

    A commit comes before its manifest. So the ledger is asked for its counts first, then the manifest is read, and
    then the ledger is asked for the manifest's shards.
    """
    num_done = ledger.counts(_ALL_TASKS).done
    waiting = ledger.unpublished()
    manifest = latest_manifest(fs)
    if manifest is None:
        return Comparison(unknown=(), unlisted=tuple(ledger.shards() if num_done else waiting))
    unlisted = not_listed(waiting, manifest)
    num_waiting = sum(entry.tasks for entry in unlisted if entry.table == "kernels")
    if manifest.num_tasks + num_waiting < num_done:
        unlisted = not_listed(ledger.shards(), manifest)
    return Comparison(unknown=tuple(unknown_shards(ledger, manifest)), unlisted=tuple(unlisted))


def unknown_shards(
    ledger: Ledger, manifest: Manifest, *, checked: Manifest | None = None
) -> list[str]:
    """Return the kernels shards of ``manifest`` that ``ledger`` has never recorded.

    A compacted shard stands for those that it replaces: compaction does not tell the ledger.

    Args:
        ledger: of the dataset.
        manifest: its current version.
        checked: a manifest whose shards the ledger was found to know. Segments that both have are not looked at.
    """
    settled = _names(_outside(checked, manifest)) if checked else frozenset()
    parts = _outside(manifest, checked)
    names = [
        entry.name
        for entry in chain(*(part.shards for part in parts))
        if entry.table == "kernels" and entry.name not in settled
    ]
    unknown: list[str] = []
    stands_for: dict[str, tuple[str, ...]] | None = None
    while names and (absent := ledger.unknown(names)):
        stands_for = dict(manifest.replaces) if stands_for is None else stands_for
        unknown += [name for name in absent if name not in stands_for]
        names = [old for name in absent for old in stands_for.get(name, ())]
    return unknown


def has_forgotten(ledger: Ledger, manifest: Manifest, waiting: Iterable[ShardEntry] = ()) -> bool:
    """Whether ``ledger`` counts fewer finished tasks than the shards that it must know hold: it was rolled back in place.

    Names that were compared once are not compared again (``unknown_shards``), and the server of a ledger can be set back
    under its name and run id, with the host that it runs on. The ledger is counted last: what it commits meanwhile only adds.

    Args:
        ledger: of the dataset.
        manifest: read before.
        waiting: what the ledger has said, before that, to have recorded; listed or not.
    """
    num_bound = manifest.with_shards(waiting, epoch=manifest.epoch).num_tasks
    return ledger.counts(_ALL_TASKS).done < num_bound


def lists_all_of(manifest: Manifest, before: Manifest) -> bool:
    """Whether ``manifest`` lists or has replaced every shard that ``before`` lists. Segments that both have are not looked at."""
    parts = _outside(manifest, before)
    moved = _names(_outside(before, manifest))
    if moved <= _names(parts).union(*(part.replaced for part in parts)):
        return True
    return before.shard_names <= manifest.shard_names | manifest.replaced_names


def not_listed(entries: Sequence[ShardEntry], manifest: Manifest) -> list[ShardEntry]:
    """Return those of ``entries`` that ``manifest`` neither lists nor has replaced or dropped."""
    known = manifest.shard_names | manifest.barred_names
    return [entry for entry in entries if entry.name not in known]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a manifest's list."""

    shards: tuple[ShardEntry, ...]
    names: frozenset[str]
    replaced: frozenset[str]


def _outside(manifest: Manifest, other: Manifest | None) -> list[Segment[ShardEntry] | _Part]:
    """Return the parts of a manifest's list that ``other`` does not have: segments, which are named after their content, and the tail."""
    shared = {one.name for one in other.segments} if other else frozenset()
    tail = _Part(
        manifest.tail,
        frozenset(entry.name for entry in manifest.tail),
        frozenset(name for _, old in manifest.tail_replaces for name in old),
    )
    return [*(one for one in manifest.segments if one.name not in shared), tail]


def _names(parts: Sequence[Segment[ShardEntry] | _Part]) -> frozenset[str]:
    return frozenset().union(*(part.names for part in parts))


def absent_shards(fs: Filesystem, entries: Sequence[ShardEntry]) -> list[ShardEntry]:
    """Return those of ``entries`` that are not on disk, or not with all their bytes.

    Raises:
        StoreLostError: The dataset is not there at all.
    """
    fs.check_place()
    sizes = fs.sizes([entry.name for entry in entries])
    absent = [entry for entry in entries if sizes[entry.name] != entry.bytes]
    if absent:
        fs.check_place()
    return absent


def refuse_doubled(fs: Filesystem, bound: Mapping[str, array[int]]) -> None:
    """No ledger can be built of a dataset in which a task is there twice: an older LLMPerf has left it so."""
    tasks = np.concatenate([np.empty(0, np.int64), *map(np.asarray, bound.values())])
    names = np.repeat(np.arange(len(bound)), [len(indices) for indices in bound.values()])
    order = np.argsort(tasks, kind="stable")
    twice = np.flatnonzero(tasks[order][1:] == tasks[order][:-1])
    if not len(twice):
        return
    shards = list(bound)
    first, second = (shards[names[order[twice[0] + step]]] for step in (0, 1))
    raise StoreError(
        f"{fs.describe()} holds {len(twice)} results twice, the first in {first} and in {second}: "
        f"run `llmperf dataset repair {fs.describe()}`, then the same command again"
    )
