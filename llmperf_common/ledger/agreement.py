"""Compare a ledger with the manifests, and find what each of them lacks.

Owns the comparison in both directions. A ledger that was rolled back (an old copy, or a file
without its write-ahead log) knows *less* than the manifests. It would lease finished tasks again.
If the newest manifests were removed, the remaining ones know less than the ledger. Then the shards
that they lack must be listed again. ``attach.py`` acts on a difference.

A comparison of names suffices, because a ledger binds each task to one shard. If the ledger knows
every shard of a manifest, then no other shard in the ledger contains a task of these shards.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        unlisted: shards that the ledger has recorded and the manifest neither lists nor has
            replaced or dropped.
        num_without_shard: number of tasks that the ledger calls finished although no shard holds
            them; the ledger would never lease them again.
    """

    unknown: tuple[str, ...]
    unlisted: tuple[ShardEntry, ...]
    num_without_shard: int = 0


def compare(ledger: Ledger, fs: Filesystem) -> Comparison:
    """Compare ``ledger`` with the current manifest, also while collectors run.

    The order of steps makes that possible, because a shard is committed before a manifest lists it:
    read the ledger's counts, then the manifest; last ask the ledger which of its shards it knows.
    """
    num_done = ledger.counts(_ALL_TASKS).done
    waiting = ledger.unpublished()
    manifest = latest_manifest(fs)
    if manifest is None:
        unlisted, num_listed = list(ledger.shards() if num_done else waiting), 0
    else:
        unlisted, num_listed = not_listed(waiting, manifest), manifest.num_tasks
        lacks_tasks = num_listed + _num_tasks(unlisted) < num_done
        if lacks_tasks or (num_done and _may_lack_device(fs, manifest, unlisted)):
            unlisted = not_listed(ledger.shards(), manifest)
    return Comparison(
        unknown=tuple(unknown_shards(ledger.unknown, manifest)) if manifest else (),
        unlisted=tuple(unlisted),
        num_without_shard=max(0, num_done - num_listed - _num_tasks(unlisted)),
    )


def _may_lack_device(fs: Filesystem, manifest: Manifest, unlisted: Iterable[ShardEntry]) -> bool:
    """Whether the manifest may lack a device: it lists none, or not every file in ``devices/``.

    The ledger's unpublished shards do not tell. If a manifest that listed a device was lost, the
    ledger still calls this device published. A file in ``devices/`` may also belong to a worker
    that has committed nothing yet; the ledger does not know this device.
    """
    names = chain(manifest.shard_names, (entry.name for entry in unlisted))
    listed = {name for name in names if name.startswith("devices/")}
    if not listed:
        return True
    known = listed | manifest.barred_names
    return any(f"devices/{name}" not in known for name in fs.names("devices"))


def _num_tasks(entries: Iterable[ShardEntry]) -> int:
    return sum(entry.tasks for entry in entries if entry.table == "kernels")


def unknown_shards(
    ask: Callable[[Sequence[str]], list[str]],
    manifest: Manifest,
    *,
    checked: Manifest | None = None,
    further: Iterable[str] = (),
) -> list[str]:
    """Return the kernels shards of ``manifest`` that a ledger has never recorded.

    The ledger does not know compacted shards, because compaction does not tell it. So it is asked
    for the shards that a compacted shard replaces.

    Args:
        ask: returns those of the given names that the ledger has not recorded. It is called at
            least once.
        manifest: the current version.
        checked: a manifest whose shards the ledger is known to have recorded. Segments that both
            manifests share are skipped.
        further: names of further shards to ask for.
    """
    settled = _names(_outside(checked, manifest)) if checked else frozenset()
    parts = _outside(manifest, checked)
    listed = (
        entry.name
        for entry in chain(*(part.shards for part in parts))
        if entry.table == "kernels" and entry.name not in settled
    )
    names = list(dict.fromkeys(chain(listed, further)))
    unknown: list[str] = []
    stands_for: dict[str, tuple[str, ...]] | None = None
    while absent := ask(names):
        stands_for = dict(manifest.replaces) if stands_for is None else stands_for
        unknown += [name for name in absent if name not in stands_for]
        names = [old for name in absent for old in stands_for.get(name, ())]
    return unknown


def has_forgotten(ledger: Ledger, manifest: Manifest) -> bool:
    """Whether ``ledger`` counts fewer finished tasks than the shards of ``manifest`` hold.

    If so, the ledger was rolled back. If not, it may have been rolled back all the same, because
    other workers may have committed as many tasks since. So a publisher compares names instead
    (``checked_names.py``).

    Args:
        ledger: the dataset's ledger.
        manifest: a manifest that was read before this call. Commits since then only add tasks.
    """
    return ledger.counts(_ALL_TASKS).done < manifest.num_tasks


def lists_all_of(manifest: Manifest, before: Manifest) -> bool:
    """Whether ``manifest`` lists or replaces all shards of ``before``.

    Segments that both manifests share are skipped.
    """
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
    """Return the segments of a manifest that ``other`` lacks, and always the rest of the list.

    A segment is named after its content, so equal names mean equal content.
    """
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
    """Return those of ``entries`` that are missing on disk or have a different length there.

    Raises:
        StoreLostError: The dataset itself is gone.
    """
    fs.check_place()
    sizes = fs.sizes([entry.name for entry in entries])
    absent = [entry for entry in entries if sizes[entry.name] != entry.bytes]
    if absent:
        fs.check_place()
    return absent


def refuse_doubled(fs: Filesystem, bound: Mapping[str, array[int]]) -> None:
    """Raise StoreError if a task is in two shards, which an older LLMPerf could cause."""
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
