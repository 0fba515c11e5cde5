"""Rebuild from shards alone: decide which shards on disk count when the ledger is gone.

Owns the choice between shards that no manifest lists, and the rebuilt manifest. Tasks whose shards
a manifest lists are bound to these shards for ever. Of the other sound shards, the one with the
highest (epoch, token) of a task wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from llmperf_common.store.files.filesystem import TEMPORARY_PREFIX, Filesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ShardEntry,
    latest_manifest,
    manifest_name,
)
from llmperf_common.store.manifests.publish import StaleEpoch, put_manifest
from llmperf_common.store.tables.shard import ShardError, decode, read_footer

COMPACTED_PREFIX = "compact-"
"""Start of the stems of pairs that a compaction has joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A verified pair of shards that no manifest lists; it may or may not have been committed."""

    stem: str
    epoch: int
    tokens: tuple[tuple[str, int], ...]
    """Task ids with the fencing tokens under which they were written."""
    sha256: str
    entries: tuple[ShardEntry, ...]


def arbitrate(candidates: Sequence[Candidate], bound: Collection[str]) -> list[Candidate]:
    """Choose the pairs of shards to adopt: no task twice, and no committed pair left out.

    A committed pair holds the highest token of each of its tasks. So a pair with a lower token in
    any task was never committed, and is excluded first. The other pairs can overlap for two reasons.
    A compaction has joined committed pairs: the joined pair is preferred, because some of the pairs
    that it replaces may have been removed already. Or one holder wrote the same tasks twice: a pair
    whose commit was refused, and then a smaller pair, which is preferred.

    Args:
        candidates: verified pairs of this plan.
        bound: ids of tasks that a published manifest already binds to a shard.
    """
    open_ = [c for c in candidates if not any(task in bound for task, _ in c.tokens)]
    best: dict[str, tuple[int, int]] = {}
    for candidate in open_:
        for task, token in candidate.tokens:
            rank = (candidate.epoch, token)
            best[task] = max(best.get(task, rank), rank)
    top = [c for c in open_ if all(best[task] == (c.epoch, token) for task, token in c.tokens)]
    adopted: list[Candidate] = []
    taken: set[str] = set()
    for candidate in sorted(top, key=_preference):
        tasks = {task for task, _ in candidate.tokens}
        if not tasks & taken:
            adopted.append(candidate)
            taken |= tasks
    return sorted(adopted, key=lambda c: c.stem)


def _preference(candidate: Candidate) -> tuple[bool, int, str]:
    is_joined = candidate.stem.startswith(COMPACTED_PREFIX)
    num_tasks = len(candidate.tokens)
    return not is_joined, -num_tasks if is_joined else num_tasks, candidate.sha256


def tasks_by_shard(
    fs: Filesystem, manifest: Manifest, *, but: Collection[str] = ()
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name and task ids of each kernels shard of ``manifest``; reads one shard at a time.

    Args:
        fs: the dataset.
        manifest: the current version.
        but: shards to leave out.

    Raises:
        ShardError: A shard is missing or damaged.
    """
    for entry in manifest.of_table("kernels"):
        if entry.name in but:
            continue
        try:
            data = fs.read_bytes(entry.name)
        except FileNotFoundError:
            raise ShardError(
                f"{fs.describe(entry.name)} is listed in {manifest_name(manifest.version)} but "
                "missing: restore it from a backup, or run "
                f"`llmperf dataset repair {fs.describe()}` to have its tasks done again"
            ) from None
        yield entry.name, tuple(task for task, _ in read_footer(data, entry.name).tasks)


def rebuild_manifest(
    fs: Filesystem,
    *,
    plan_hash: str,
    epoch: int,
    note: Callable[[str, Sequence[str]], None] = lambda name, tasks: None,
    drop: Collection[str] = (),
) -> Manifest | StaleEpoch:
    """Publish a manifest of ``epoch`` with the current version's shards and all adopted ones.

    After that, publishers of older epochs are refused. ``note`` receives the name and the tasks of
    each kernels shard that was listed before, so that the caller need not read these shards again.
    ``drop`` holds listed shards that the new version leaves out. ``StaleEpoch`` is returned if the
    rebuild of a newer epoch published first (or the folder ``epochs`` has lost entries).
    """
    while True:
        base = latest_manifest(fs) or Manifest(version=0, plan_hash=plan_hash, epoch=0)
        if base.epoch >= epoch:
            return StaleEpoch(base.epoch)
        if base.plan_hash != plan_hash:
            raise StoreError(
                f"{fs.describe()} belongs to another plan (plan hash {base.plan_hash}, not "
                f"{plan_hash}): choose another --out"
            )
        if drop:
            without = base.without(drop, epoch=base.epoch)
            base = replace(
                without, version=base.version, published_s=base.published_s, earlier=base.earlier
            )
        candidates = list(find_candidates(fs, base, plan_hash))
        claimed = {task for candidate in candidates for task, _ in candidate.tokens}
        # Read every listed shard, even without candidates, so that damage is reported before we
        # publish.
        bound = {task for _, tasks in tasks_by_shard(fs, base) for task in tasks if task in claimed}
        adopted = arbitrate(candidates, bound)
        entries = [entry for candidate in adopted for entry in candidate.entries]
        if entries or base.shards or any(name.startswith("devices/") for name in base.dropped):
            entries += _device_entries(fs, base, plan_hash)
        new = base.with_shards(entries, epoch=epoch)
        stored = put_manifest(fs, new)
        if stored is not None:
            return stored


def find_candidates(fs: Filesystem, base: Manifest, plan_hash: str) -> Iterator[Candidate]:
    """Yield the undamaged pairs of this plan that ``base`` neither lists nor replaces nor drops."""
    samples = set(fs.names("samples"))
    known = base.shard_names | base.barred_names
    for name in fs.names("kernels"):
        if f"kernels/{name}" in known or not is_shard_name(name) or name not in samples:
            continue
        candidate = _read_candidate(fs, name, plan_hash)
        if candidate is not None:
            yield candidate


def is_shard_name(name: str) -> bool:
    """Whether a file name can be the name of a shard; names of temporary files cannot."""
    return name.endswith(".parquet") and not name.startswith((TEMPORARY_PREFIX, "."))


def _read_candidate(fs: Filesystem, name: str, plan_hash: str) -> Candidate | None:
    entries = []
    footers = []
    for folder in ("kernels", "samples"):
        full_name = f"{folder}/{name}"
        try:
            data = fs.read_bytes(full_name)
            table, footer = decode(data, full_name)
        except (ShardError, FileNotFoundError):
            return None  # damaged or moved, so never committed: a commit first reads its shards
        footers.append(footer)
        entries.append(ShardEntry.of(full_name, data, rows=table.num_rows, tasks=len(footer.tasks)))
    first, second = footers
    if first.plan_hash != plan_hash or (first.epoch, first.tasks) != (second.epoch, second.tasks):
        return None
    return Candidate(
        stem=name,
        epoch=first.epoch,
        tokens=first.tasks,
        sha256=entries[0].sha256,
        entries=tuple(entries),
    )


def _device_entries(fs: Filesystem, base: Manifest, plan_hash: str) -> list[ShardEntry]:
    """Return the undamaged devices of this plan that ``base`` lacks.

    They are returned even if no pair is adopted, because the samples that ``base`` lists may belong
    to a device that only a lost manifest has listed.
    """
    entries = []
    for name in filter(is_shard_name, fs.names("devices")):
        if not base.lacks(f"devices/{name}"):
            continue
        data = fs.read_bytes(f"devices/{name}")
        try:
            table, footer = decode(data, f"devices/{name}")
        except ShardError:
            continue
        if footer.plan_hash == plan_hash:
            entries.append(ShardEntry.of(f"devices/{name}", data, rows=table.num_rows, tasks=0))
    return entries
