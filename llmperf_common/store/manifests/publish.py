"""Publish the next version of a dataset, unless another publisher was first.

Owns the retry: if another publisher was first, the next attempt starts from its version.
``manifest.py`` owns the content of a version.
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
    """Write a version: create its new segments and its manifest file.

    Then remove the earlier versions that are no longer kept.

    Args:
        fs: the dataset.
        manifest: the new version, made from the current version.
        now_s: seconds since 1970; None: this machine's clock.

    Returns:
        The version as it is stored; None if another publisher created this version first.

    Raises:
        StoreError: A segment of this name exists, and its content is damaged. (A segment is named
            after its content.)
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
    """A newer epoch has published, so this publisher's ledger was replaced: attach again."""

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
    """Add ``entries`` to the current version, even while other processes publish.

    Of several publishers of a version, the one that creates its file wins. The others read the new
    version and add their entries to that. Each version is made from the version before it and never
    lowers the epoch. So a publisher whose ledger was rebuilt elsewhere is refused as soon as the
    rebuild has published.

    Args:
        fs: the dataset.
        entries: committed shards.
        plan_hash: plan hash of the run.
        epoch: epoch of the ledger that has committed the entries.
        admit: called with each version before the next version is made from it. It raises if ledger
            and version contradict each other, and returns further shards that must be listed.
        now_s: seconds since 1970; None: this machine's clock.

    Raises:
        StoreError: The folder holds another plan's dataset.
    """
    while True:
        base = latest_manifest(fs)
        if base is None:
            base = Manifest(version=0, plan_hash=plan_hash, epoch=epoch)
        if base.plan_hash != plan_hash:
            raise StoreError(
                f"{fs.describe()} belongs to another plan (plan hash {base.plan_hash}, not "
                f"{plan_hash}): choose another --out"
            )
        if base.epoch > epoch:
            return StaleEpoch(base.epoch)
        new = base.with_shards([*entries, *admit(base)], epoch=epoch)
        if base.version > 0 and base.epoch == epoch and new.shards == base.shards:
            return base
        stored = put_manifest(fs, new, now_s=now_s)
        if stored is not None:
            return stored
