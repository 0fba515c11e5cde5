"""Checks on the manifests: each version follows from the one before it.

Owns the chain rule as verification sees it; ``manifest.publish`` is what keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    Manifest,
    manifest_name,
    manifest_versions,
    read_manifest,
)
from llmperf_common.store.manifests.run import RunRecord
from llmperf_common.store.upkeep.problems import Problem, ProblemKind, naming


def check_chain(fs: Filesystem, run: RunRecord | None) -> tuple[Manifest | None, list[Problem]]:
    """Read all manifests and return the highest readable one with what is wrong in the chain."""
    problems: list[Problem] = []
    last: Manifest | None = None
    versions = manifest_versions(fs)
    for version in versions:
        name = manifest_name(version)
        try:
            manifest = read_manifest(fs, version)
        except FileNotFoundError:
            continue  # its publisher does not keep it
        except StoreError as error:
            problems.append(_problem(name, str(error)))
            continue
        if manifest.version != version:
            problems.append(_problem(name, f"says that it is version {manifest.version}"))
        if run is not None and manifest.plan_hash != run.plan_hash:
            problems.append(_problem(name, f"is of plan {manifest.plan_hash}, not {run.plan_hash}"))
        if last is not None:
            problems += [_problem(name, what) for what in breaks(last, manifest)]
        last = manifest
    if last is not None:
        what = "is missing, though an earlier and a later one exist"
        problems += [_problem(manifest_name(gap), what) for gap in missing_versions(versions, last)]
    return last, problems


def missing_versions(versions: Sequence[int], last: Manifest) -> list[int]:
    """Return the versions that ought to be there between the first that is there and ``last``.

    A publisher removes most of the earlier versions, and says which it has left. Those before the first that is there
    may have been removed since, with all before it.
    """
    if last.published_s:
        # Each version is made from the one before it, and keeps that for a while.
        expected = {last.version - 1, *(version for version, _ in last.earlier)}
    else:  # of a time when all were kept; a gap is reported by its ends, for it may be two billion long
        gaps = [(one, two) for one, two in pairwise(versions) if two > one + 1]
        expected = {end for one, two in gaps for end in (one + 1, two - 1)}
    return sorted(version for version in expected - set(versions) if version > versions[0])


def breaks(before: Manifest, after: Manifest) -> list[str]:
    """Say how ``after`` breaks the chain rule; empty if it is a proper successor of ``before``."""
    found = []
    if after.epoch < before.epoch:
        found.append(f"its epoch {after.epoch} is below {before.epoch} of the version before it")
    now = {entry.name: entry for entry in after.shards}
    replaced = after.replaced_names
    explained = replaced.union(after.dropped)
    lost = [e.name for e in before.shards if e.name not in now and e.name not in explained]
    if lost:
        found.append(naming(lost, "listed before, but neither now nor replaced", "shard"))
    changed = [
        e.name
        for e in before.shards
        if now.get(e.name, e) != e and e.name not in after.dropped  # a device, measured again
    ]
    if changed:
        found.append(naming(changed, "listed with other rows, bytes or sha256", "shard"))
    forgotten = sorted(before.replaced_names - replaced)
    if forgotten:
        found.append(naming(forgotten, "replaced before, no longer now", "shard"))
    forgotten = sorted(set(before.dropped).difference(after.dropped))
    if forgotten:
        found.append(naming(forgotten, "dropped before, no longer now", "shard"))
    return found


def _problem(name: str, what: str) -> Problem:
    return Problem(kind=ProblemKind.MANIFEST, name=name, what=what)
