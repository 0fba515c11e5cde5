"""Sweeping: move away what crashes and refused commits left behind.

Decides which files of a dataset folder are leftovers. The caller holds ``RUN_LOCK`` exclusively. So
no collector runs, and a shard that no manifest lists will never be listed.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import TEMPORARY_PREFIX, Filesystem, StoreError
from llmperf_common.store.manifests.epochs import EPOCHS_FOLDER
from llmperf_common.store.manifests.manifest import (
    Manifest,
    latest_manifest,
    manifest_name,
    manifest_versions,
    read_manifest,
)
from llmperf_common.store.manifests.run import read_run
from llmperf_common.store.manifests.segments import SEGMENTS_FOLDER
from llmperf_common.store.tables.shard import ShardError, read_footer
from llmperf_common.store.upkeep.rebuild import is_shard_name

TRASH_FOLDER = "trash"
"""The folder for unlisted shards; ``llmperf dataset compact`` deletes files that have been there
for a day."""
MOMENT = "%Y%m%dT%H%M%S"
_TRASHED = re.compile(r"([0-9]{8}T[0-9]{6})-")
_log = logging.getLogger(__name__)
MANIFESTS_KEPT_WHOLE = 3
"""Number of newest versions whose shards stay even after compaction, because a reader may have them
open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep did; all names are relative to the dataset.

    Attributes:
        removed: temporary files; manifests and segments that no reader needs; shards moved to the
            trash, by their old names; with ``remove_replaced`` also shards replaced by compaction.
        replaced: shards that compaction replaced, kept because a reader may have them open.
        foreign: files that were not touched, because the user must decide. They are Parquet files
            that are damaged, belong to another run, or are listed only by an earlier manifest of
            this epoch; or second names of files that the manifest needs (``needed_files``).
    """

    removed: tuple[str, ...]
    replaced: tuple[str, ...]
    foreign: tuple[str, ...]


def sweep(
    fs: Filesystem, *, recorded: Collection[str] = (), remove_replaced: bool = False
) -> SweepReport:
    """Move shards that were never committed to ``trash/``, and remove temporary files.

    Args:
        fs: the dataset; the caller holds ``RUN_LOCK`` exclusively.
        recorded: shards that the ledger has ever recorded. These shards are kept, whether a
            manifest lists them or not, because the ledger would never lease their tasks again.
        remove_replaced: also remove compacted shards that none of the last three manifests lists;
            the caller has checked that they are old enough (24 h).

    Raises:
        StoreError: The folder has no dataset, or its manifest is damaged; nothing was removed.
    """
    run, manifest = read_run(fs), latest_manifest(fs)
    if run is None or manifest is None:
        raise StoreError(f"{fs.describe()} has no dataset to sweep")
    temporary = temporary_files(fs)
    orphans: list[str] = []
    due: list[str] = []
    replaced: list[str] = []
    foreign: list[str] = []
    still_read = recently_listed(fs) if remove_replaced else frozenset()
    unlisted = [name for name in unlisted_shards(fs, manifest) if name not in recorded]
    listed_before = _listed_in_epoch(fs, manifest) if unlisted else frozenset()
    for name in unlisted:
        if name in manifest.replaced_names:
            can_go = remove_replaced and name not in still_read
            (due if can_go else replaced).append(name)
        elif name in listed_before:
            foreign.append(name)
        elif _is_of_plan(fs, name, run.plan_hash):
            orphans.append(name)
        else:
            foreign.append(name)
    old = superseded_lists(fs, manifest)
    segments = [segment.name for segment in manifest.segments]
    needed = needed_files(fs, manifest, (*due, *orphans)) | fs.same_files(old, segments)
    foreign += sorted(needed)
    due, orphans, old = ([n for n in names if n not in needed] for names in (due, orphans, old))
    for name in (*temporary, *due, *old):
        fs.remove(name)
    move_to_trash(fs, orphans)
    if foreign:
        _log.warning(
            "shards not swept: each is of another run, damaged, in an earlier manifest only, or a "
            "second name of a listed file: %s",
            ", ".join(foreign),
        )
    return SweepReport(
        removed=(*temporary, *due, *orphans, *old),
        replaced=tuple(replaced),
        foreign=tuple(foreign),
    )


def needed_files(fs: Filesystem, manifest: Manifest, going: Collection[str]) -> frozenset[str]:
    """Return those of ``going`` that lead to the file of a shard or segment of ``manifest``.

    ``manifest`` does not list these names, but a listed name may be a link to one of them, or a
    folder may be mounted twice. If one were moved away, the listed file could be lost.
    """
    segments = (segment.name for segment in manifest.segments)
    return fs.same_files(going, (*manifest.shard_names, *segments))


def move_to_trash(fs: Filesystem, names: Sequence[str], *, moment: datetime | None = None) -> None:
    """Move ``kernels/STEM.parquet`` to ``trash/TIME-kernels-STEM.parquet``, other shards likewise.

    No collector deletes a shard: if manifests were lost, a shard that no manifest lists may be the
    only copy of a result.
    """
    for name in names:
        fs.move(name, trash_name(name, moment or datetime.now(UTC)))


def trash_name(name: str, moment: datetime) -> str:
    """Return the name in the trash of a shard that is moved there at ``moment`` (UTC)."""
    return f"{TRASH_FOLDER}/{moment.strftime(MOMENT)}-{name.replace('/', '-', 1)}"


def old_trash(fs: Filesystem, *, before: datetime) -> list[str]:
    """Return the files that were moved to the trash before a time."""
    found = []
    for name in fs.names(TRASH_FOLDER):
        match = _TRASHED.match(name)
        moved_at = moment_of(match.group(1)) if match else None
        if moved_at is not None and moved_at < before:
            found.append(f"{TRASH_FOLDER}/{name}")
    return found


def moment_of(text: str) -> datetime | None:
    """Return the time in a file's name; None for an impossible time (``99999999T999999``)."""
    try:
        return datetime.strptime(text, MOMENT).replace(tzinfo=UTC)
    except ValueError:
        return None


def unlisted_shards(fs: Filesystem, manifest: Manifest) -> list[str]:
    """Return the Parquet files in the tables' folders that ``manifest`` does not list."""
    return [
        f"{table}/{name}"
        for table in TABLES
        for name in fs.names(table)
        if is_shard_name(name) and f"{table}/{name}" not in manifest.shard_names
    ]


def temporary_files(fs: Filesystem) -> list[str]:
    """Return the temporary files of writers that died (or that still write)."""
    return [
        _join(folder, name)
        for folder in ("", *TABLES, EPOCHS_FOLDER, SEGMENTS_FOLDER)
        for name in fs.names(folder)
        if name.startswith(TEMPORARY_PREFIX)
    ]


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def recently_listed(fs: Filesystem) -> frozenset[str]:
    """Return the shards of the last few versions, which a reader may have open."""
    recent = manifest_versions(fs)[-MANIFESTS_KEPT_WHOLE:]
    return frozenset(name for one in _manifests(fs, recent) for name in one.shard_names)


def _listed_in_epoch(fs: Filesystem, current: Manifest) -> frozenset[str]:
    """Return all shards that a manifest of the current epoch lists or has replaced."""
    names: set[str] = set()
    for manifest in _manifests(fs, reversed(manifest_versions(fs))):
        if manifest.epoch < current.epoch:
            break
        names |= manifest.shard_names | manifest.replaced_names
    return frozenset(names)


def _manifests(fs: Filesystem, versions: Iterable[int]) -> Iterator[Manifest]:
    for version in versions:
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            yield read_manifest(fs, version)


def superseded_lists(fs: Filesystem, manifest: Manifest) -> list[str]:
    """Return manifests that ``manifest`` does not keep, and segments that no kept manifest names.

    If an older LLMPerf published ``manifest``, all manifests stay, because that release kept them
    all.
    """
    versions = manifest_versions(fs)
    kept = {version for version, _ in manifest.earlier} | {*versions[-MANIFESTS_KEPT_WHOLE:]}
    going = [v for v in versions if v < manifest.version and v not in kept and manifest.earlier]
    names = [manifest_name(version) for version in going]
    present = [f"{SEGMENTS_FOLDER}/{name}" for name in fs.names(SEGMENTS_FOLDER)]
    if present:
        named: set[str] = set()
        for one in _manifests(fs, sorted(set(versions).difference(going))):
            named |= {segment.name for segment in one.segments}
        hidden = f"{SEGMENTS_FOLDER}/."
        names += [name for name in present if name not in named and not name.startswith(hidden)]
    return names


def _is_of_plan(fs: Filesystem, name: str, plan_hash: str) -> bool:
    """Whether a shard's footer has this plan hash.

    It is False for an unreadable shard, which a sweep must not remove. LLMPerf's shards appear
    whole (``link`` after fsync), so something other than a crash of LLMPerf has damaged it.
    """
    try:
        return read_footer(fs.read_bytes(name), name).plan_hash == plan_hash
    except (ShardError, FileNotFoundError):  # another process may just have removed it
        return False
