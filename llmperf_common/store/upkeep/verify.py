"""Verification: check every guarantee of the dataset against the bytes on disk.

Owns the order of checks, what must hold between files (manifest chain, shards, footers, uniqueness)
and the report. Damage raises no exception: each finding is a ``Problem``. Reads one pair of shards
at a time.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from llmperf_common.failures import OK_STATUS
from llmperf_common.ids import sha256_hex
from llmperf_common.notebook import html_facts, html_table
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.location import Location, open_filesystem
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ShardEntry,
    manifest_name,
    manifest_versions,
)
from llmperf_common.store.manifests.run import RUN_FILE, RUN_LOCK, RunRecord, read_run
from llmperf_common.store.tables.reader import conform, value_counts
from llmperf_common.store.tables.sample_keys import IdKeys, id_keys, join_keys, repeated_ids
from llmperf_common.store.tables.shard import Footer, ShardError, decode
from llmperf_common.store.tables.unpacked_budget import UnpackedBudget
from llmperf_common.store.upkeep.chain_checks import check_chain
from llmperf_common.store.upkeep.manifest_checks import check_manifest, check_run
from llmperf_common.store.upkeep.problems import Problem, ProblemKind, naming
from llmperf_common.store.upkeep.row_checks import (
    Surroundings,
    check_devices,
    check_kernels,
    check_samples,
)
from llmperf_common.store.upkeep.sweep import needed_files, temporary_files, unlisted_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyCounts:
    """The numbers of tasks and rows in the dataset; ``failed`` is by failure code."""

    tasks: int
    samples: int
    ok: int
    failed: dict[str, int]
    planned_tasks: int
    pending_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The outcome of a verification.

    Attributes:
        path: the dataset.
        version: version of the manifest; 0 if there is no manifest.
        problems: what is wrong; each has its ``kind``, the file's ``name``, and ``what`` is wrong
            with it.
        notes: files that a running collector or a compaction will clean up; these are no problems.
            If no collector runs and the run is unfinished, the first note counts the shards that no
            manifest lists: newer manifests may have been removed.
        counts: numbers of tasks and rows.
    """

    path: str
    version: int
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]
    counts: VerifyCounts

    @property
    def clean(self) -> bool:
        """Whether there is no problem."""
        return not self.problems

    def _repr_html_(self) -> str:
        counts = html_facts(
            f"{self.path}: {'clean' if self.clean else f'{len(self.problems)} problems'}",
            dataclasses.asdict(self.counts),
        )
        rows = [(one.kind.value, one.name, one.what) for one in self.problems]
        return counts + (html_table("problems", ("kind", "file", "what"), rows) if rows else "")


def verify(path: Location) -> VerifyReport:
    """Check the current version of the dataset in ``path``, even while a collector is running."""
    fs = open_filesystem(path)
    problems: list[Problem] = []
    try:
        run = read_run(fs)
    except StoreError as error:
        run = None
        problems.append(Problem(kind=ProblemKind.RUN, name=RUN_FILE, what=str(error)))
    else:
        if run is None:
            what = f"{path} has no {RUN_FILE}: it is not a dataset"
            problems.append(Problem(kind=ProblemKind.RUN, name=RUN_FILE, what=what))
    was_running = run is not None and _is_collecting(fs)
    manifest, chain_problems = check_chain(fs, run)
    problems += chain_problems
    check = _Verification(fs, run)
    if run is not None:
        problems += check_run(run)
    if manifest is not None:
        problems += check_manifest(fs, manifest)
        check.check_shards(manifest)
    listed = manifest or Manifest(version=0, plan_hash="", epoch=0)
    unlisted, notes = _unlisted(fs, listed)
    is_running = was_running or (run is not None and _is_collecting(fs))
    newest = max(manifest_versions(fs), default=0)
    is_unfinished = run is not None and listed.num_tasks < run.num_tasks
    num_unlisted = len(unlisted)
    if is_running or is_unfinished or newest != listed.version:  # a later version may list them
        unlisted, notes = [], [*unlisted, *notes]
    if num_unlisted and is_unfinished and not is_running and newest == listed.version:
        notes.insert(0, _unlisted_of_unfinished(listed, num_unlisted))
    if run is not None and manifest is None and not chain_problems:
        problem = _without_manifest(run, is_running=is_running)
        (notes if is_running else problems).append(problem)
    return VerifyReport(
        path=str(path),
        version=listed.version,
        problems=(*problems, *check.finish(), *unlisted),
        notes=tuple(notes),
        counts=check.counts(),
    )


class _Verification:
    """Checks the shards of one manifest, pair by pair, and keeps the ids that must be unique."""

    def __init__(self, fs: Filesystem, run: RunRecord | None) -> None:
        self._fs = fs
        self._run = run
        self._problems: list[Problem] = []
        self._statuses: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        self._devices: dict[str, str] | None = {}
        self._keys: list[IdKeys] = []
        self._budgets = {table: UnpackedBudget() for table in TABLES}

    def check_shards(self, manifest: Manifest) -> None:
        replaced = manifest.replaced_names
        shards = {entry.name: entry for entry in manifest.shards if entry.name not in replaced}
        for name, times in Counter(entry.name for entry in manifest.shards).items():
            if times > 1:
                self._note(ProblemKind.TWICE, name, f"listed {times} times")
        for entry in shards.values():
            if entry.table not in TABLES:
                self._note(ProblemKind.MANIFEST, entry.name, "is in none of the dataset's folders")
        for entry in (entry for entry in shards.values() if entry.table == "devices"):
            self._check_device(entry, manifest)
        stems = dict.fromkeys(
            name.split("/", 1)[1]
            for name, entry in shards.items()
            if entry.table in ("kernels", "samples")
        )
        for stem in stems:
            self._check_pair(
                manifest, shards.get(f"kernels/{stem}"), shards.get(f"samples/{stem}"), stem
            )

    def finish(self) -> list[Problem]:
        """Return all problems; problems between shards come last."""
        twice = [task for task, times in self._tasks.items() if times > 1]
        if twice:
            self._note(ProblemKind.TWICE, "kernels", naming(twice, "more than one row", "task"))
        repeated = repeated_ids(join_keys(self._keys))
        if repeated:
            what = naming(repeated, "more than one row", "sample_id")
            self._note(ProblemKind.TWICE, "samples", what)
        if self._run is not None and len(self._tasks) > self._run.num_tasks:
            what = f"plans {self._run.num_tasks} tasks, but {len(self._tasks)} have results"
            self._note(ProblemKind.RUN, RUN_FILE, what)
        return self._problems

    def counts(self) -> VerifyCounts:
        statuses = dict(self._statuses.most_common())
        num_ok = statuses.pop(OK_STATUS, 0)
        planned = self._run.num_tasks if self._run else 0
        return VerifyCounts(
            tasks=len(self._tasks),
            samples=num_ok + sum(statuses.values()),
            ok=num_ok,
            failed=statuses,
            planned_tasks=planned,
            pending_tasks=max(0, planned - len(self._tasks)),
        )

    def _note(self, kind: ProblemKind, name: str, what: str) -> None:
        self._problems.append(Problem(kind=kind, name=name, what=what))

    def _check_device(self, entry: ShardEntry, manifest: Manifest) -> None:
        found = self._read(entry, manifest)
        if found is None:
            self._devices = None  # from here on samples cannot be checked against devices
            return
        self._problems += check_devices(found[0], entry.name)
        for row in found[0].select(["device_id", "device_class"]).to_pylist():
            if self._devices is None:
                return
            if row["device_id"] in self._devices:
                what = f"device {row['device_id']} has more than one row in the dataset"
                self._note(ProblemKind.TWICE, entry.name, what)
            self._devices[row["device_id"]] = row["device_class"]

    def _check_pair(
        self,
        manifest: Manifest,
        kernels_entry: ShardEntry | None,
        samples_entry: ShardEntry | None,
        stem: str,
    ) -> None:
        kernels = self._read(kernels_entry, manifest) if kernels_entry else None
        samples = self._read(samples_entry, manifest) if samples_entry else None
        if kernels_entry is None or samples_entry is None:
            here, absent = ("samples", "kernels") if samples_entry else ("kernels", "samples")
            self._note(ProblemKind.PAIR, f"{here}/{stem}", f"{absent}/{stem} is not listed")
        tasks = None
        if kernels is not None:
            table, footer = kernels
            tasks = self._check_kernel_rows(table, footer, f"kernels/{stem}")
        if samples is not None:
            table, footer = samples
            self._check_sample_rows(table, footer, f"samples/{stem}", tasks)
        if kernels and samples:
            first, second = kernels[1], samples[1]
            if (first.epoch, first.tasks) != (second.epoch, second.tasks):
                what = f"its footer differs from that of kernels/{stem}"
                self._note(ProblemKind.PAIR, f"samples/{stem}", what)

    def _check_kernel_rows(
        self, table: pa.Table, footer: Footer, name: str
    ) -> dict[str, tuple[str, str]]:
        columns = (table.column(c).to_pylist() for c in ("task_id", "kernel_id", "device_class"))
        rows = list(zip(*columns, strict=True))
        self._tasks.update(task for task, _, _ in rows)
        if sorted(task for task, _, _ in rows) != sorted(task for task, _ in footer.tasks):
            self._note(
                ProblemKind.FOOTER,
                name,
                "its rows do not belong to the tasks that its footer lists",
            )
        if self._run is not None:
            self._problems += check_kernels(table, name, self._run.plan_hashes)
        return {task: (kernel, device_class) for task, kernel, device_class in rows}

    def _check_sample_rows(
        self,
        table: pa.Table,
        footer: Footer,
        name: str,
        tasks: dict[str, tuple[str, str]] | None,
    ) -> None:
        self._statuses.update(value_counts(table.column("status")))
        counted = value_counts(table.column("task_id"))
        if set(counted) != {task for task, _ in footer.tasks}:
            self._note(
                ProblemKind.FOOTER,
                name,
                "its rows do not belong to the tasks that its footer lists",
            )
        try:
            self._keys.append(id_keys(table.column("sample_id")))
        except ValueError as error:
            self._note(ProblemKind.ID, name, f"sample_id: {error}")
        version = self._run.harness_version if self._run else None
        around = Surroundings(tasks=tasks, devices=self._devices, harness_version=version)
        self._problems += check_samples(table, name, around)

    def _read(self, entry: ShardEntry, manifest: Manifest) -> tuple[pa.Table, Footer] | None:
        """Read a shard in today's schema; note contradictions among its bytes, rows and footer."""
        try:
            data = self._fs.read_bytes(entry.name)
        except FileNotFoundError:
            what = f"listed in manifest version {manifest.version}, but there is no such file"
            self._note(ProblemKind.MISSING, entry.name, what)
            return None
        if len(data) != entry.bytes:
            what = f"has {len(data)} bytes, but the manifest says {entry.bytes}"
            self._note(ProblemKind.BYTES, entry.name, what)
        elif sha256_hex(data) != entry.sha256:
            self._note(ProblemKind.BYTES, entry.name, "its sha256 differs from the manifest's")
        try:
            table, footer = decode(data, entry.name)
        except ShardError as error:
            self._note(ProblemKind.DAMAGED, entry.name, str(error))
            return None
        try:
            self._budgets[entry.table].take(table, entry.name, len(data))
        except ShardError as error:
            self._note(ProblemKind.DAMAGED, entry.name, str(error))
            return None
        if table.num_rows != entry.rows:
            what = f"has {table.num_rows} rows, but the manifest says {entry.rows}"
            self._note(ProblemKind.FOOTER, entry.name, what)
        if len(footer.tasks) != entry.tasks:
            what = f"its footer has {len(footer.tasks)} tasks, but the manifest says {entry.tasks}"
            self._note(ProblemKind.FOOTER, entry.name, what)
        if footer.plan_hash != manifest.plan_hash or footer.epoch > manifest.epoch:
            what = f"its footer is of plan {footer.plan_hash}, epoch {footer.epoch}"
            self._note(ProblemKind.FOOTER, entry.name, what)
        return conform(table, TABLES[entry.table]), footer


def _without_manifest(run: RunRecord, *, is_running: bool) -> Problem:
    if is_running:
        what = "no results are published yet"
    elif run.merged_from:
        what = "an unfinished merge: run the same `llmperf dataset merge` again"
    else:
        what = "no manifest, so there is no dataset: run the same `llmperf collect` again"
    return Problem(kind=ProblemKind.MANIFEST, name=RUN_FILE, what=what)


def _unlisted_of_unfinished(manifest: Manifest, num_shards: int) -> Problem:
    """Return a note about unlisted shards: a killed run leaves a few, lost manifests leave many."""
    what = (
        f"warning: {num_shards} shards are listed by no manifest: a killed collector left them, or "
        "newer manifests were removed; the same `llmperf collect` lists what was finished"
    )
    name = manifest_name(manifest.version) if manifest.version else RUN_FILE
    return Problem(kind=ProblemKind.MANIFEST, name=name, what=what)


def _is_collecting(fs: Filesystem) -> bool:
    """Whether a collector holds the run lock; False if unknown (read-only folders)."""
    try:
        return fs.is_locked(RUN_LOCK)
    except StoreError:
        return False


def _unlisted(fs: Filesystem, manifest: Manifest) -> tuple[list[Problem], list[Problem]]:
    """Return files that the manifest does not list: orphans (problems), harmless ones (notes)."""
    orphans, notes = [], []
    unlisted = unlisted_shards(fs, manifest)
    needed = needed_files(fs, manifest, unlisted)
    for name in unlisted:
        if name in needed:
            what = "is a second name of a listed file (a link, or a folder mounted twice) and stays"
            notes.append(Problem(kind=ProblemKind.ORPHAN, name=name, what=what))
        elif name in manifest.replaced_names:
            what = "was compacted and is kept for its readers"
            notes.append(Problem(kind=ProblemKind.ORPHAN, name=name, what=what))
        else:
            what = (
                "no manifest lists it; the next `llmperf collect` publishes it or moves it to the "
                "trash"
            )
            orphans.append(Problem(kind=ProblemKind.ORPHAN, name=name, what=what))
    for name in temporary_files(fs):
        what = "left by a process that died; `llmperf collect` removes it at its end"
        notes.append(Problem(kind=ProblemKind.ORPHAN, name=name, what=what))
    return orphans, notes
