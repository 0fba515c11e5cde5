"""Check the chain of manifests: each version must follow from the one before it.

Owns the chain rule for verification; ``publish.py`` obeys it when it writes.
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
    """Return the highest readable manifest, and all problems of the chain."""
    problems: list[Problem] = []
    last: Manifest | None = None
    versions = manifest_versions(fs)
    for version in versions:
        name = manifest_name(version)
        try:
            manifest = read_manifest(fs, version)
        except FileNotFoundError:
            continue  # the publisher did not keep this version
        except StoreError as error:
            problems.append(_problem(name, str(error)))
            continue
        if run is not None and manifest.plan_hash != run.plan_hash:
            problems.append(_problem(name, f"is of plan {manifest.plan_hash}, not {run.plan_hash}"))
        if last is not None:
            problems += [_problem(name, what) for what in breaks(last, manifest)]
        last = manifest
    if last is not None:
        what = "is missing, though an earlier and a later manifest exist"
        problems += [_problem(manifest_name(gap), what) for gap in missing_versions(versions, last)]
    return last, problems


def missing_versions(versions: Sequence[int], last: Manifest) -> list[int]:
    """Return the missing versions between the first present version and ``last``.

    A publisher removes most earlier versions and lists those that it keeps. Versions before the
    first present version may have been removed since.
    """
    if last.published_s:
        # The version before ``last`` must be there: ``last`` was made from it, and it is kept for a
        # while.
        expected = {last.version - 1, *(version for version, _ in last.earlier)}
    else:  # an older release, which removed no version; a gap may be huge: report only its ends
        gaps = [(one, two) for one, two in pairwise(versions) if two > one + 1]
        expected = {end for one, two in gaps for end in (one + 1, two - 1)}
    return sorted(version for version in expected - set(versions) if version > versions[0])


def breaks(before: Manifest, after: Manifest) -> list[str]:
    """Return how ``after`` breaks the chain rule; empty if it is a valid successor."""
    found = []
    if after.epoch < before.epoch:
        found.append(
            f"its epoch {after.epoch} is below epoch {before.epoch} of the previous version"
        )
    now = {entry.name: entry for entry in after.shards}
    replaced = after.replaced_names
    explained = replaced.union(after.dropped)
    lost = [e.name for e in before.shards if e.name not in now and e.name not in explained]
    if lost:
        found.append(naming(lost, "listed before, now neither listed nor replaced", "shard"))
    changed = [
        e.name
        for e in before.shards
        if now.get(e.name, e) != e and e.name not in after.dropped  # a device may be measured again
    ]
    if changed:
        found.append(naming(changed, "listed with other rows, bytes or sha256", "shard"))
    forgotten = sorted(before.replaced_names - replaced)
    if forgotten:
        found.append(naming(forgotten, "replaced before, but no longer", "shard"))
    forgotten = sorted(set(before.dropped).difference(after.dropped))
    if forgotten:
        found.append(naming(forgotten, "dropped before, but no longer", "shard"))
    return found


def _problem(name: str, what: str) -> Problem:
    return Problem(kind=ProblemKind.MANIFEST, name=name, what=what)
