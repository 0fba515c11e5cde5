"""Whether a ledger and the manifests tell the same story, and what is to be done where they do not.

Owns the comparison, in both directions. A ledger that somebody has rolled back (a copy, or one whose write-ahead log was
removed) knows *less* than the manifests: it would give finished tasks out again. Manifests that somebody has removed know
less than the ledger: their shards must be listed again.

What makes a comparison of names enough: a ledger binds each task to one shard. If it knows every shard that a manifest
lists, then no shard that it has recorded beside these has one of their tasks.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmperf_common.ledger.protocol import Ledger
from llmperf_common.store.filesystem import Filesystem, StoreError
from llmperf_common.store.manifest import Manifest, ShardEntry, latest_manifest

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
    ledger: Ledger, manifest: Manifest, *, but: Collection[str] = frozenset()
) -> list[str]:
    """Return the kernels shards of ``manifest`` that ``ledger`` has never recorded.

    A compacted shard stands for those that it replaces: compaction does not tell the ledger.

    Args:
        ledger: of the dataset.
        manifest: its current version.
        but: shards that were found to be known before.
    """
    stands_for = dict(manifest.replaces)
    names = [entry.name for entry in manifest.of_table("kernels") if entry.name not in but]
    unknown: list[str] = []
    while names:
        absent = ledger.unknown(names)
        unknown += [name for name in absent if name not in stands_for]
        names = [old for name in absent for old in stands_for.get(name, ())]
    return unknown


def not_listed(entries: Sequence[ShardEntry], manifest: Manifest) -> list[ShardEntry]:
    """Return those of ``entries`` that ``manifest`` neither lists nor has replaced."""
    known = manifest.shard_names | manifest.replaced_names
    return [entry for entry in entries if entry.name not in known]


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
