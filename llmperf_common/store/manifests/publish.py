"""The next version of a dataset: made from the current one, created only if no other publisher was first.

Owns the retry of a publisher that lost. Does not own what a version holds (``manifest.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ShardEntry,
    latest_manifest,
    manifest_name,
)
from llmperf_common.store.manifests.segments import seal
from llmperf_common.store.manifests.versions import thinned


def put_manifest(
    fs: Filesystem, manifest: Manifest, *, now_s: float | None = None
) -> Manifest | None:
    """Create the file of a version, its new segments first, and remove earlier versions that are not kept.

    Args:
        fs: the dataset.
        manifest: made from the current version.
        now_s: seconds since 1970; this machine's clock where None.

    Returns:
        The version as it is stored; None if another publisher has created it first.

    Raises:
        StoreError: A segment of that content is there, and damaged.
    """
    moment_s = int(time.time() if now_s is None else now_s)
    sealed = seal(manifest.segments, manifest.tail, manifest.tail_replaces)
    earlier = thinned(manifest.earlier, now_s=moment_s)
    new = replace(manifest, segments=sealed.segments, published_s=moment_s, earlier=earlier)
    for name, data in sealed.files:
        if not fs.put_if_absent(name, data) and fs.read_bytes(name) != data:
            raise StoreError(
                f"{fs.describe(name)} is damaged: run `llmperf dataset repair {fs.describe()}`"
            )
    if not fs.put_if_absent(manifest_name(new.version), new.to_json()):
        return None
    kept = {version for version, _ in earlier}
    for version, _ in manifest.earlier:
        if version not in kept:
            fs.remove(manifest_name(version))
    return new


@dataclass(frozen=True, slots=True)
class StaleEpoch:
    """A newer epoch has published: this publisher's ledger was replaced and it must attach again."""

    current_epoch: int


def publish(
    fs: Filesystem,
    entries: Sequence[ShardEntry],
    *,
    plan_hash: str,
    epoch: int,
    admit: Callable[[Manifest], Sequence[ShardEntry]] = lambda _base: (),
    now_s: float | None = None,
) -> Manifest | StaleEpoch:
    """Make ``entries`` part of the current version, also while other processes publish.

    Create-if-absent decides between publishers; the loser re-reads and merges. Because each version is made
    from the one before it and never lowers the epoch, a publisher whose ledger was rebuilt elsewhere is
    refused from the moment the rebuild has published.

    Args:
        fs: the dataset.
        entries: committed shards.
        plan_hash: of the run.
        epoch: of the ledger that has committed them.
        admit: is asked for each version that the next one would be made from: raises where the ledger and that
            version differ, and returns what else it should have listed.
        now_s: seconds since 1970; this machine's clock where None.

    Raises:
        StoreError: The folder holds another plan's dataset.
    """
    while True:
        base = latest_manifest(fs)
        if base is None:
            base = Manifest(version=0, plan_hash=plan_hash, epoch=epoch)
        if base.plan_hash != plan_hash:
            raise StoreError(f"{fs.describe()} belongs to another plan ({base.plan_hash})")
        if base.epoch > epoch:
            return StaleEpoch(base.epoch)
        new = base.with_shards([*entries, *admit(base)], epoch=epoch)
        if base.version > 0 and base.epoch == epoch and new.shards == base.shards:
            return base
        stored = put_manifest(fs, new, now_s=now_s)
        if stored is not None:
            return stored
