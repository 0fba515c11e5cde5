"""Compaction: join many small pairs of shards into few larger ones, without changing a row.

Decides which pairs are joined and when replaced shards may be removed, and owns the order of steps.
A run commits every few seconds, so a long run leaves thousands of pairs, and readers open each
pair.

Under the exclusive run lock: write the new pairs; publish one manifest that lists them and names
the shards they replace (``replaces``); write the card; remove shards replaced long ago. Only the
manifest counts: a process that dies before it publishes the manifest leaves shards that no manifest
lists; if it dies later, the compaction is done. Pairs of different epochs are not joined, because a
footer names one epoch and a rebuild ranks tasks by (epoch, token). The ledger need not know of a
compaction: it knows which tasks are done, and its names of shards are used only until these shards
are published.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from llmperf_common.schemas import KERNELS, SAMPLES
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.location import Location, open_filesystem
from llmperf_common.store.files.run_lock import CollectingError, alone
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry, manifest_name
from llmperf_common.store.manifests.publish import put_manifest
from llmperf_common.store.tables.card import update_card
from llmperf_common.store.tables.reader import Dataset, conform, open_dataset, read_columns
from llmperf_common.store.tables.shard import (
    Footer,
    ShardFile,
    encode_table,
    read_footer,
    write_shard,
)
from llmperf_common.store.tables.unpacked_budget import UnpackedBudget
from llmperf_common.store.upkeep.rebuild import COMPACTED_PREFIX
from llmperf_common.store.upkeep.sweep import (
    MANIFESTS_KEPT_WHOLE,
    MOMENT,
    moment_of,
    move_to_trash,
    needed_files,
    old_trash,
    recently_listed,
    unlisted_shards,
)

KEPT_FOR = timedelta(hours=24)
"""Time for which replaced shards are kept. A process that reads an earlier version must finish
within this time."""
_STEM = re.compile(rf"\w+/{COMPACTED_PREFIX}([0-9]{{8}}T[0-9]{{6}})-[0-9a-f]+\.parquet")
_SMALL_SHARE = 0.5
"""Share of the target size above which a pair stays as it is, because joining it gains little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTarget:
    """The largest size of a compacted pair of shards; one pair is held in memory, uncompressed.

    Attributes:
        rows: number of rows of samples.
        size_mib: MiB of both files before compaction.
    """

    rows: int = 200_000
    size_mib: int = 64

    def __post_init__(self) -> None:
        for name in ("rows", "size_mib"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a compaction did.

    Attributes:
        version: version of the manifest that is now current.
        num_pairs_before: number of pairs of shards that were listed before.
        num_pairs: number of pairs that are listed now.
        removed: shards that were removed: they were replaced long ago, or a compaction that died
            has left them.
        waiting: replaced shards that are kept for their readers.
    """

    version: int
    num_pairs_before: int
    num_pairs: int
    removed: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    kernels: ShardEntry
    samples: ShardEntry
    epoch: int

    @property
    def size_bytes(self) -> int:
        return self.kernels.bytes + self.samples.bytes


def compact(
    where: Location | Filesystem, *, target: CompactionTarget, now: datetime | None = None
) -> CompactionReport:
    """Compact the dataset at ``where``, and remove shards that were replaced long enough ago.

    Args:
        where: the dataset.
        target: the largest size of a compacted pair.
        now: the time that decides what is removed; None: this machine's clock.

    Raises:
        CollectingError: Collectors are at work on the dataset.
        ShardError: A shard is missing or damaged; nothing was changed.
    """
    fs = open_filesystem(where) if isinstance(where, Location) else where
    open_dataset(fs)  # raises without a dataset, before a lock file is created
    moment = now or datetime.now(UTC)
    with alone(fs, "compact"):
        before = open_dataset(fs)
        left = _left_by_the_dead(fs, before.manifest)
        needed = needed_files(fs, before.manifest, left)
        left = [name for name in left if name not in needed]
        move_to_trash(fs, left, moment=moment)
        manifest = _publish_compacted(before, target, moment)
        due = _due(fs, manifest, moment)
        manifest = _age(fs, manifest, due)
        update_card(fs)  # first, because the old card names files that are removed next
        listed = recently_listed(fs) | needed_files(fs, manifest, due)
        removed = _remove(fs, [name for name in due if name not in listed])
        removed += _remove(fs, old_trash(fs, before=moment - KEPT_FOR))
    waiting = [name for name in unlisted_shards(fs, manifest) if name in manifest.replaced_names]
    return CompactionReport(
        version=manifest.version,
        num_pairs_before=len(before.shards("samples")),
        num_pairs=len(manifest.of_table("samples")),
        removed=(*left, *removed),
        waiting=tuple(waiting),
    )


def replaced_at(name: str) -> datetime | None:
    """Return when a compacted shard was made; None for any other shard.

    >>> replaced_at("samples/compact-20260801T120000-0f.parquet").isoformat()
    '2026-08-01T12:00:00+00:00'
    """
    match = _STEM.fullmatch(name)
    return moment_of(match.group(1)) if match else None


def _publish_compacted(dataset: Dataset, target: CompactionTarget, moment: datetime) -> Manifest:
    """Write compacted pairs and publish their manifest.

    Return this manifest, or the current manifest if there are no small pairs to join.
    """
    fs = dataset.fs
    replaced: dict[ShardEntry, list[str]] = {}
    for group in _groups(_pairs(dataset), target):
        stem = f"{COMPACTED_PREFIX}{moment.strftime(MOMENT)}-{secrets.token_hex(6)}"
        for table in ("kernels", "samples"):
            shard = _joined(dataset, group, table, stem)
            replaced[write_shard(fs, shard)] = [getattr(pair, table).name for pair in group]
    if not replaced:
        return dataset.manifest
    new = dataset.manifest.with_replaced(replaced)
    stored = put_manifest(fs, new)
    if stored is None:
        raise CollectingError(
            f"{fs.describe(manifest_name(new.version))} was published by another process in the "
            "meantime: nothing was compacted; run the same command again"
        )
    return stored


def _pairs(dataset: Dataset) -> Iterator[_Pair]:
    kernels = {entry.name.split("/", 1)[1]: entry for entry in dataset.shards("kernels")}
    for samples in dataset.shards("samples"):
        stem = samples.name.split("/", 1)[1]
        if stem not in kernels:
            raise StoreError(
                f"{dataset.fs.describe(samples.name)} has no kernels shard of the same name: run "
                "`llmperf dataset verify`"
            )
        footer = read_footer(dataset.shard_bytes(kernels[stem]), kernels[stem].name)
        yield _Pair(kernels=kernels[stem], samples=samples, epoch=footer.epoch)


def _groups(pairs: Iterator[_Pair], target: CompactionTarget) -> list[list[_Pair]]:
    """Return the groups of pairs to join.

    The pairs of a group have one epoch, are in order of publication, and do not exceed the target.
    """
    max_bytes = target.size_mib << 20
    open_: dict[int, list[_Pair]] = {}
    full: list[list[_Pair]] = []
    for pair in pairs:
        if (
            pair.samples.rows > _SMALL_SHARE * target.rows
            or pair.size_bytes > _SMALL_SHARE * max_bytes
        ):
            continue
        group = open_.setdefault(pair.epoch, [])
        if (
            sum(one.samples.rows for one in group) + pair.samples.rows > target.rows
            or sum(one.size_bytes for one in group) + pair.size_bytes > max_bytes
        ):
            full.append(group)
            group = open_[pair.epoch] = []
        group.append(pair)
    return [group for group in (*full, *open_.values()) if len(group) > 1]


def _joined(dataset: Dataset, group: Sequence[_Pair], table: str, stem: str) -> ShardFile:
    """Return one shard with a table's rows of all pairs of ``group``, stably sorted by task."""
    schema = KERNELS if table == "kernels" else SAMPLES
    parts: list[pa.Table] = []
    footers: list[Footer] = []
    entries: list[ShardEntry] = [getattr(pair, table) for pair in group]
    budget = UnpackedBudget()
    for entry in entries:
        data = dataset.shard_bytes(entry)
        found = read_columns(data, entry.name, schema.names)
        budget.take(found, entry.name, len(data))
        parts.append(conform(found, schema))
        footers.append(read_footer(data, entry.name))
    rows = pa.concat_tables(parts)
    number = pa.array(range(rows.num_rows), pa.int64())
    order = pa.table({"task": rows.column("task_id"), "row": number})
    order = order.sort_by([("task", "ascending"), ("row", "ascending")])
    footer = Footer(
        plan_hash=dataset.manifest.plan_hash,
        epoch=group[0].epoch,
        tasks=tuple(sorted(task for one in footers for task in one.tasks)),
        sentinel=tuple(reading for one in footers for reading in one.sentinel),
    )
    data = encode_table(rows.take(order.column("row")), footer)
    tasks = len(footer.tasks)
    return ShardFile(name=f"{table}/{stem}.parquet", data=data, rows=rows.num_rows, tasks=tasks)


def _left_by_the_dead(fs: Filesystem, manifest: Manifest) -> list[str]:
    """Return the shards of compactions that died before publishing, recognised by their names."""
    return [
        name
        for name in unlisted_shards(fs, manifest)
        if replaced_at(name) is not None and name not in manifest.replaced_names
    ]


def _due(fs: Filesystem, manifest: Manifest, moment: datetime) -> list[str]:
    """Return the shards on disk that were replaced long enough ago."""
    present = set(unlisted_shards(fs, manifest))
    due = []
    for new, old in manifest.replaces:
        made = replaced_at(new)
        if made is not None and moment - made >= KEPT_FOR:
            due += [name for name in old if name in present]
    return due


def _age(fs: Filesystem, manifest: Manifest, due: Sequence[str]) -> Manifest:
    """Publish unchanged versions until the last three list no shard of ``due``; return the last.

    Shards are kept as long as one of the last three versions lists them, and in a finished dataset
    no other process publishes further versions.
    """
    for _ in range(MANIFESTS_KEPT_WHOLE):
        if not due or recently_listed(fs).isdisjoint(due):
            break
        following = put_manifest(fs, manifest.with_replaced({}))
        if following is None:
            break
        manifest = following
    return manifest


def _remove(fs: Filesystem, names: Sequence[str]) -> list[str]:
    for name in names:
        fs.remove(name)
    return list(names)
