"""Choose between the pairs of shards when a manifest binds a task twice.

Owns that choice. It follows the rule of a rebuild: bindings of a manifest are final, so the pair
that was listed first stays. Of pairs that were first listed in the same version, the pair with the
highest (epoch, token) stays; if these are equal, the pair with the lowest sha256 stays. Only whole
pairs are dropped: the other tasks of a dropped pair are done again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.manifests.manifest import ManifestError, manifest_versions, read_manifest

_HEAD_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundPair:
    """A sound pair of shards that the current manifest lists.

    Attributes:
        stem: file name of both shards, without folder and ending.
        names: the names of the two shards.
        sha256: SHA-256 of the kernels shard.
        epoch: epoch in the footer of the kernels shard.
        tokens: task ids, with the fencing tokens under which they were written.
    """

    stem: str
    names: tuple[str, ...]
    sha256: str
    epoch: int
    tokens: tuple[tuple[str, int], ...]


def doubled(fs: Filesystem, pairs: Sequence[BoundPair]) -> list[tuple[BoundPair, str]]:
    """Return the pairs to drop, so that no task is bound twice.

    Each pair to drop comes with the stem of the pair that stays in its place.
    """
    twice = _tasks_bound_twice(pairs)
    if not twice:
        return []
    clashing = [pair for pair in pairs if any(task in twice for task, _ in pair.tokens)]
    listed_in = _first_listed(fs, {pair.names[0] for pair in clashing})

    def rank(pair: BoundPair) -> tuple[int, int, int, str]:
        token = max(token for task, token in pair.tokens if task in twice)
        return (listed_in.get(pair.names[0], 0), -pair.epoch, -token, pair.sha256)

    going: list[tuple[BoundPair, str]] = []
    kept_in: dict[str, str] = {}
    for pair in sorted(clashing, key=rank):
        tasks = [task for task, _ in pair.tokens]
        taken = [kept_in[task] for task in tasks if task in kept_in]
        if taken or len(set(tasks)) < len(tasks):
            going.append((pair, taken[0] if taken else pair.stem))
        else:
            kept_in.update(dict.fromkeys(tasks, pair.stem))
    return going


def _tasks_bound_twice(pairs: Sequence[BoundPair]) -> frozenset[str]:
    """Return the ids that occur more than once; needs 8 bytes per task if all ids differ."""
    heads = np.fromiter(
        (int(task[:_HEAD_DIGITS], 16) for pair in pairs for task, _ in pair.tokens), np.uint64
    )
    values, counts = np.unique(heads, return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return frozenset()
    seen: set[str] = set()
    twice: set[str] = set()
    for pair in pairs:
        for task, _ in pair.tokens:
            if int(task[:_HEAD_DIGITS], 16) in suspects:
                (twice if task in seen else seen).add(task)
    return frozenset(twice)


def _first_listed(fs: Filesystem, names: Collection[str]) -> dict[str, int]:
    """Return for each shard the first present version that lists it."""
    found: dict[str, int] = {}
    for version in manifest_versions(fs):
        try:
            listed = read_manifest(fs, version).shard_names
        except ManifestError:
            continue
        found |= {name: version for name in names if name not in found and name in listed}
        if len(found) == len(names):
            break
    return found
