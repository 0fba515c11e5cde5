"""Check whether a manifest, or ``run.json``, contradicts itself.

Owns what must hold inside one of these files, for verification. ``chain_checks.py`` compares the
manifests with each other, ``verify.py`` compares them with the shards.
"""

from __future__ import annotations

from llmperf_common.files.foreign_json import parse_json
from llmperf_common.files.visible import shown_value
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.manifests.epochs import MAX_EPOCH
from llmperf_common.store.manifests.manifest import Manifest, manifest_name
from llmperf_common.store.manifests.run import RUN_FILE, RunRecord
from llmperf_common.store.upkeep.problems import Problem, ProblemKind, naming

_MOST_TASKS = 10**10
"""Maximum number of tasks of a run. A collector holds its plan in memory, so no run plans more."""


def check_run(run: RunRecord) -> list[Problem]:
    """Return a problem if ``run.json`` says that more tasks are planned than any run can plan."""
    if run.num_tasks <= _MOST_TASKS:
        return []
    what = f"plans {run.num_tasks:,} tasks, more than any run can"
    return [Problem(kind=ProblemKind.RUN, name=RUN_FILE, what=what)]


def check_manifest(fs: Filesystem, manifest: Manifest) -> list[Problem]:
    """Return how a manifest contradicts itself."""
    found = _wrong_totals(fs, manifest)
    if not 0 <= manifest.epoch < MAX_EPOCH:
        found.append(
            f"its epoch {shown_value(manifest.epoch)} is a number that no run reaches, so no "
            "collector can continue the run"
        )
    # Dropped devices do not count, because they may be listed again.
    barred = sorted(manifest.barred_names & manifest.shard_names)
    if barred:
        found.append(naming(barred, "listed, and also dropped or replaced", "shard"))
    name = manifest_name(manifest.version)
    return [Problem(kind=ProblemKind.MANIFEST, name=name, what=what) for what in found]


def _wrong_totals(fs: Filesystem, manifest: Manifest) -> list[str]:
    """Return the totals in the file that differ from the sums over its shards."""
    try:
        document = parse_json(fs.read_bytes(manifest_name(manifest.version)))
    except FileNotFoundError:
        return []  # another process has published newer versions and removed this one
    totals = manifest.totals
    rows = document.get("rows", {})
    stated = {"tasks": document.get("tasks", totals.tasks)}
    summed = {"tasks": totals.tasks}
    for table in TABLES:
        summed[f"rows of {table}"] = totals.rows_of(table)
        has_one = isinstance(rows, dict) and table in rows
        stated[f"rows of {table}"] = rows[table] if has_one else totals.rows_of(table)
    return [
        f"says {shown_value(stated[what])} {what}, but its shards have {number:,}"
        for what, number in summed.items()
        if type(stated[what]) is not int or stated[what] != number
    ]
