"""Repair a damaged dataset: drop damaged shards, so that their tasks can be measured again.

Decides what is dropped, and owns the order of steps. A pair is dropped if one of its shards is
missing or does not match the manifest's hash. A device is dropped for the same reasons. Of pairs
that share a task, all but the one that was listed first are dropped. Files of dropped shards go to
``trash/``; nothing is deleted.

Under the exclusive run lock: take the next epoch, so that no collector can use an older ledger or
publish from it, and the next collector rebuilds a ledger from the shards; move the files; publish
one manifest that lists the other shards and names the dropped ones. If a repair dies before it
publishes, the next repair finds that the moved files are missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from llmperf_common.ids import sha256_hex
from llmperf_common.ledger.holder import this_process
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.location import Location, open_filesystem
from llmperf_common.store.files.run_lock import alone
from llmperf_common.store.manifests.epochs import latest_epoch, strays, take_next_epoch
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ManifestError,
    NewerManifestError,
    ShardEntry,
    manifest_name,
    manifest_versions,
    misnamed_manifests,
    read_manifest,
)
from llmperf_common.store.manifests.publish import StaleEpoch, put_manifest
from llmperf_common.store.manifests.run import RunRecord, read_run
from llmperf_common.store.manifests.segments import SEGMENTS_FOLDER, is_damaged
from llmperf_common.store.tables.card import update_card
from llmperf_common.store.tables.shard import ShardError, read_footer
from llmperf_common.store.upkeep.chain_checks import missing_versions
from llmperf_common.store.upkeep.doubles import BoundPair, doubled
from llmperf_common.store.upkeep.rebuild import rebuild_manifest
from llmperf_common.store.upkeep.sweep import trash_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A shard that is dropped from the dataset, and why."""

    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What a repair did, or would do.

    Attributes:
        version: version of the manifest that is now current.
        dropped: shards that are no longer listed.
        num_freed_tasks: number of tasks that the next ``collect`` does again.
        num_tasks: number of tasks that have results.
        manifests: files for the trash: newer damaged manifests, all manifests up to an older
            damaged or missing one, and damaged segments.
        is_dry_run: whether nothing was changed.
        strays: what LLMPerf neither wrote nor reads, though it lies where manifests and epochs do:
            misnamed manifests, and in ``epochs/`` folders and other names. They stay.
    """

    version: int
    dropped: tuple[Dropped, ...]
    num_freed_tasks: int
    num_tasks: int
    manifests: tuple[str, ...]
    is_dry_run: bool
    strays: tuple[str, ...] = ()


def repair(where: Location | Filesystem, *, is_dry_run: bool = False) -> RepairReport:
    """Drop damaged and doubled shards from the dataset at ``where``; keep a sound dataset as it is.

    Args:
        where: the dataset.
        is_dry_run: whether to report only, without taking the lock.

    Raises:
        CollectingError: Collectors are at work on the dataset.
        StoreError: The dataset has no ``run.json`` or no manifest; nothing was changed.
    """
    fs = open_filesystem(where) if isinstance(where, Location) else where
    run = read_run(fs)
    if run is None:
        raise StoreError(
            f"{fs.describe()} is not a dataset (it has no run.json): nothing to repair"
        )
    if not manifest_versions(fs):
        raise StoreError(
            f"{fs.describe()} has no manifest, and so no list of its shards: run again the "
            "`llmperf collect` or `llmperf dataset merge` that created it"
        )
    if is_dry_run:
        return _look(fs, run).report(is_dry_run=True)
    with alone(fs, "repair"):
        seen = _look(fs, run)
        new = seen.manifest
        if seen.dropped or seen.above or seen.is_unfinished:
            new = _mended(fs, run, seen)
        _set_aside(fs, [*seen.below, *seen.segments])
        if new is not seen.manifest:
            update_card(fs)
    return seen.report(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What is wrong with a dataset.

    Attributes:
        manifest: the highest version that can be read.
        above: damaged manifests that are newer.
        below: all manifests up to the newest older version that is damaged or missing.
        segments: damaged segments.
        dropped: shards to drop.
        is_unfinished: whether a process took an epoch and died before it published, so that
            committed shards may not be listed.
        strays: as in ``RepairReport``.
    """

    manifest: Manifest
    above: tuple[str, ...]
    below: tuple[str, ...]
    segments: tuple[str, ...]
    dropped: tuple[Dropped, ...]
    is_unfinished: bool
    strays: tuple[str, ...]

    def report(self, new: Manifest | None = None, *, is_dry_run: bool = False) -> RepairReport:
        names = {one.name for one in self.dropped}
        kernels = self.manifest.of_table("kernels")
        num_freed = sum(entry.tasks for entry in kernels if entry.name in names)
        num_tasks = new.num_tasks if new else self.manifest.num_tasks - num_freed
        return RepairReport(
            version=(new or self.manifest).version,
            dropped=self.dropped,
            num_freed_tasks=max(0, self.manifest.num_tasks - num_tasks),
            num_tasks=num_tasks,
            manifests=(*self.above, *self.below, *self.segments),
            is_dry_run=is_dry_run,
            strays=self.strays,
        )


def _look(fs: Filesystem, run: RunRecord) -> _Seen:
    """Check all manifests, and the shards of the highest version that can be read."""
    versions = manifest_versions(fs)
    manifest: Manifest | None = None
    above: list[int] = []
    broken: list[int] = []
    for version in reversed(versions):
        try:
            found = read_manifest(fs, version)
        except NewerManifestError:
            raise
        except ManifestError:
            (above if manifest is None else broken).append(version)
        else:
            manifest = manifest or found
    manifest = manifest or Manifest(version=0, plan_hash=run.plan_hash, epoch=0)
    broken = sorted((*broken, *missing_versions(versions, manifest)), reverse=True)
    segments = [f"{SEGMENTS_FOLDER}/{name}" for name in fs.names(SEGMENTS_FOLDER)]
    present = [version for version in versions if broken and version <= broken[0]]
    return _Seen(
        manifest=manifest,
        above=tuple(manifest_name(version) for version in above if version in versions),
        below=tuple(map(manifest_name, present)),
        segments=tuple(
            name
            for name in segments
            if not name.startswith(f"{SEGMENTS_FOLDER}/.") and is_damaged(name, fs.read_bytes(name))
        ),
        dropped=_find(fs, manifest),
        is_unfinished=latest_epoch(fs) > manifest.epoch,
        strays=(*misnamed_manifests(fs), *strays(fs)),
    )


def _mended(fs: Filesystem, run: RunRecord, seen: _Seen) -> Manifest:
    """Move the dropped shards to the trash, and publish the manifest without them."""
    holder = this_process()
    who = f"repair, {holder.host}/{holder.pid}"
    # Pass the manifest's epoch, because a merged dataset has no file in ``epochs/``.
    epoch = take_next_epoch(fs, who=who, after=seen.manifest.epoch)
    names = frozenset(one.name for one in seen.dropped)
    _set_aside(fs, [*sorted(names), *seen.above, *seen.segments])
    if not seen.above and not seen.is_unfinished:
        return _put(fs, seen.manifest.without(names, epoch=epoch))
    # Shards that only a damaged manifest listed are found through their footers, as after the loss
    # of a ledger. All changes are in one new version. If the repair dies before it publishes this
    # version, an epoch without a version tells this to the next repair.
    rebuilt = rebuild_manifest(fs, plan_hash=run.plan_hash, epoch=epoch, drop=names)
    if isinstance(rebuilt, StaleEpoch):
        raise StoreError(f"{fs.describe()} was changed meanwhile: run the same command again")
    return rebuilt


def _put(fs: Filesystem, manifest: Manifest) -> Manifest:
    stored = put_manifest(fs, manifest)
    if stored is None:
        raise StoreError(
            f"{fs.describe(manifest_name(manifest.version))} was published by another process in "
            "the meantime: run the same command again"
        )
    return stored


def _find(fs: Filesystem, manifest: Manifest) -> tuple[Dropped, ...]:
    """Return the shards to drop, and why."""
    found: dict[str, str] = {}
    for entry in manifest.of_table("devices"):
        why = _damage(fs, entry)
        if why:
            found[entry.name] = why
    sound: list[BoundPair] = []
    for stem, halves in _by_stem(manifest).items():
        reasons = {entry.name: why for entry in halves if (why := _damage(fs, entry))}
        if not reasons and len(halves) < 2:
            reasons[halves[0].name] = "the other shard of its pair is not listed"
        pair = None if reasons else _read_pair(fs, stem, halves)
        if pair is not None:
            sound.append(pair)
            continue
        first = next(iter(reasons), halves[0].name)
        reasons.setdefault(first, "its footer cannot be read")
        for entry in halves:
            found[entry.name] = reasons.get(entry.name, f"{first} is dropped")
    for pair, other in doubled(fs, sound):
        for name in pair.names:
            found[name] = f"one of its tasks is also in kernels/{other}"
    return tuple(Dropped(name=name, why=why) for name, why in found.items())


def _by_stem(manifest: Manifest) -> dict[str, list[ShardEntry]]:
    found: dict[str, list[ShardEntry]] = {}
    for table in ("kernels", "samples"):
        for entry in manifest.of_table(table):
            found.setdefault(entry.name.split("/", 1)[1], []).append(entry)
    return found


def _damage(fs: Filesystem, entry: ShardEntry) -> str:
    """Return what is wrong with a listed shard's bytes; empty if they are as committed."""
    try:
        data = fs.read_bytes(entry.name)
    except FileNotFoundError:
        return "there is no such file"
    is_same = len(data) == entry.bytes and sha256_hex(data) == entry.sha256
    return "" if is_same else "its sha256 differs from the manifest's"


def _read_pair(fs: Filesystem, stem: str, halves: Sequence[ShardEntry]) -> BoundPair | None:
    kernels = next(entry for entry in halves if entry.table == "kernels")
    with contextlib.suppress(ShardError):
        footer = read_footer(fs.read_bytes(kernels.name), kernels.name)
        return BoundPair(
            stem=stem,
            names=tuple(entry.name for entry in halves),
            sha256=kernels.sha256,
            epoch=footer.epoch,
            tokens=footer.tasks,
        )
    return None


def _set_aside(fs: Filesystem, names: Sequence[str]) -> None:
    """Move files to the trash: ``kernels/STEM.parquet`` to ``trash/TIME-kernels-STEM.parquet``."""
    moment = datetime.now(UTC)
    for name in names:
        try:
            data = fs.read_bytes(name)
        except FileNotFoundError:
            continue
        for place in _places(trash_name(name, moment)):
            if fs.put_if_absent(place, data):
                break
        fs.remove(name)


def _places(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}.{number}" for number in range(2, 1 << 30))
