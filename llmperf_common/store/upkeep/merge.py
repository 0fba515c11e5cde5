"""Merge datasets: several runs, of one plan or several, become one new dataset.

Decides which rows are kept, and owns the merged ``run.json``. Of rows with equal sample ids, an ok
row is preferred to a failed row, then a row of an earlier source. A task is kept once, with its
kernels row, as long as it has a sample. ``merge_devices.py`` merges devices. A merge needs memory
for the largest shard, and 30 bytes per sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.failures import OK_STATUS
from llmperf_common.ids import content_id
from llmperf_common.schemas import KERNELS, SAMPLES, SCHEMA_VERSION
from llmperf_common.store.files.create_once import check_creates_once
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.location import Location, local_folder, open_filesystem
from llmperf_common.store.files.run_lock import alone
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry, manifest_versions
from llmperf_common.store.manifests.publish import publish
from llmperf_common.store.manifests.run import (
    RUN_FILE,
    RUN_LOCK,
    ForeignRunError,
    RunRecord,
    read_run,
)
from llmperf_common.store.tables.reader import Dataset, conform, open_dataset, read_columns
from llmperf_common.store.tables.sample_keys import first_of_each, id_keys, join_keys
from llmperf_common.store.tables.shard import (
    Footer,
    ShardError,
    ShardFile,
    encode_table,
    read_footer,
    write_shard,
)
from llmperf_common.store.upkeep.merge_devices import PeakDifference, merge_devices

AssignFamilies = Callable[[Sequence[tuple[str, str, str]]], Mapping[str, str]]
"""A function that takes (kernel_id, source, name) of all kernels and returns the family of each
kernel id."""

_EPOCH = 1
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """What a merge did. Samples and tasks are dropped if another source also has them."""

    plan_hash: str
    num_samples: int
    num_tasks: int
    num_dropped_samples: int
    num_dropped_tasks: int
    peak_differences: tuple[PeakDifference, ...] = ()
    """Peaks of devices for which the sources have different values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A source's kernels shard and its samples shard of the same name."""

    dataset: Dataset
    kernels: ShardEntry
    samples: ShardEntry


@dataclass(slots=True, kw_only=True)
class _Choice:
    """What is kept: ``rows`` of each pair of shards, and the pairs that hold rows of each task.

    The kernels row of a task comes from its first pair.
    """

    rows: list[Bools] = field(default_factory=list)
    pairs_of_task: dict[str, list[int]] = field(default_factory=dict)

    def tasks_by_first_pair(self) -> dict[int, list[str]]:
        """Return for each pair the tasks whose kernels row comes from that pair."""
        found: dict[int, list[str]] = {}
        for task, pairs in self.pairs_of_task.items():
            found.setdefault(pairs[0], []).append(task)
        return found


def merge(
    sources: Sequence[Location], out: Location, *, assign_families: AssignFamilies
) -> MergeReport:
    """Merge the datasets in ``sources`` into a new one in ``out``, visible only when complete.

    Args:
        sources: datasets, in order of preference.
        out: a new or empty folder or S3 prefix.
        assign_families: recomputes ``family_id`` over the union (``families.assign_families``).

    Raises:
        ForeignRunError: ``out`` is not empty, and does not hold an unfinished merge of the same
            sources; or ``out`` is inside another dataset.
        CollectingError: Another process is at work on ``out``.
        StoreError: A source cannot be read, or has another harness version (version of the
            measuring code).
    """
    datasets = [open_dataset(path) for path in sources]
    _check_harness(sources, datasets)
    refuse_inside_a_dataset(sources, out)
    fs = open_filesystem(out)
    with alone(fs, "merge into"):
        begun = _begun(fs, out)
        check_creates_once(fs)
        pairs = [pair for dataset in datasets for pair in _pairs(dataset)]
        choice = _choose(pairs)
        run = _merged_run(datasets, num_tasks=len(choice.pairs_of_task))
        families = _families(datasets, assign_families)
        devices, peak_differences = merge_devices(datasets)
        if begun is not None:
            _check_same(begun, run, out)
        elif not fs.put_if_absent(RUN_FILE, run.to_json()):
            raise ForeignRunError(f"{out} was just taken by another process: choose a new folder")
        shards = _merged_shards(devices, pairs, choice, families, run)
        try:
            entries = [write_shard(fs, shard) for shard in shards]
        except ShardError as error:
            raise _other_merge(out) if begun is not None else error from None
        except (pa.ArrowException, KeyError) as error:
            raise StoreError(
                f"a source has a row that LLMPerf did not write ({type(error).__name__}: {error}): "
                f"run `llmperf dataset verify` on each source, and remove {fs.describe()}"
            ) from None
        manifest = publish(fs, entries, plan_hash=run.plan_hash, epoch=_EPOCH)
    assert isinstance(manifest, Manifest), "no other process publishes in a folder that we created"
    num_samples = sum(int(rows.sum()) for rows in choice.rows)
    return MergeReport(
        plan_hash=run.plan_hash,
        num_samples=num_samples,
        num_tasks=run.num_tasks,
        num_dropped_samples=sum(dataset.num_samples for dataset in datasets) - num_samples,
        num_dropped_tasks=sum(dataset.num_tasks for dataset in datasets) - run.num_tasks,
        peak_differences=peak_differences,
    )


def refuse_inside_a_dataset(sources: Sequence[Location], out: Location) -> None:
    """Raise ForeignRunError if ``out`` is inside a source or inside another dataset's folder."""
    folder = local_folder(out)
    if folder is not None:
        holding = [str(one) for one in folder.resolve().parents if _is_dataset(one)]
    else:
        prefixes = [str(one).rstrip("/") for one in sources]
        holding = [one for one in prefixes if str(out).rstrip("/").startswith(f"{one}/")]
    if holding:
        raise ForeignRunError(
            f"{out} is inside the dataset {holding[0]}: choose a folder outside of it"
        )


def _is_dataset(folder: Path) -> bool:
    """Whether a folder holds a dataset, even a damaged one (not only some ``run.json``)."""
    if not (folder / RUN_FILE).is_file():
        return False
    fs = open_filesystem(folder)
    with contextlib.suppress(StoreError, OSError):
        return read_run(fs) is not None
    with contextlib.suppress(StoreError, OSError):
        return bool(manifest_versions(fs))
    return False


def _begun(fs: Filesystem, out: Location) -> RunRecord | None:
    """Return the run of an unfinished merge into ``out``; None if the folder is empty.

    Raises:
        ForeignRunError: The folder holds anything else.
    """
    if {*fs.names(), *fs.folders()} == {RUN_LOCK}:
        return None
    run = None
    with contextlib.suppress(StoreError):  # the run.json does not belong to a dataset
        run = read_run(fs)
    if run is None or not run.merged_from or manifest_versions(fs):
        raise ForeignRunError(f"{out} is not empty: choose a new or empty folder to merge into")
    return run


def _check_same(begun: RunRecord, run: RunRecord, out: Location) -> None:
    """Raise ForeignRunError unless both merges have equal sources, and so write equal shards."""
    if replace(begun, created_at="") != replace(run, created_at=""):
        raise _other_merge(out)


def _other_merge(out: Location) -> ForeignRunError:
    return ForeignRunError(
        f"{out} holds an unfinished merge of other sources, or of the same sources before they "
        "changed: choose a new folder, or remove this one"
    )


def _check_harness(sources: Sequence[Location], datasets: Sequence[Dataset]) -> None:
    if not datasets:
        raise StoreError("nothing to merge: give at least one dataset folder")
    versions = [dataset.run.harness_version for dataset in datasets]
    for path, version in zip(sources, versions, strict=True):
        if version != versions[0]:
            raise StoreError(
                f"{path} was measured by version {version} of the measuring code "
                f"(harness_version), but {sources[0]} by version {versions[0]}. Their times differ "
                "in meaning and cannot be in one dataset: collect the dataset of the lower version "
                "again"
            )


def _merged_run(datasets: Sequence[Dataset], *, num_tasks: int) -> RunRecord:
    runs = [dataset.run for dataset in datasets]
    plan_hashes = tuple(dict.fromkeys(plan for run in runs for plan in run.plan_hashes))
    classes = tuple(dict.fromkeys(item for run in runs for item in run.device_classes))
    return replace(
        runs[0],
        plan_hash=content_id("merge", sorted(plan_hashes)),
        corpus_sha256=_common([run.corpus_sha256 for run in runs]),
        config_hash=_common([run.config_hash for run in runs]),
        config=runs[0].config if all(run.config == runs[0].config for run in runs) else {},
        device_classes=classes,
        num_tasks=num_tasks,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        schema_version=SCHEMA_VERSION,
        merged_from=plan_hashes,
    )


def _common(values: Sequence[str]) -> str:
    """Return the value if all are equal, else a hash of all values."""
    different = sorted(set(values))
    return different[0] if len(different) == 1 else content_id("merge", different)


def _pairs(dataset: Dataset) -> Iterator[_Pair]:
    samples = {entry.name.split("/", 1)[1]: entry for entry in dataset.shards("samples")}
    for entry in dataset.shards("kernels"):
        stem = entry.name.split("/", 1)[1]
        if stem not in samples:
            raise StoreError(
                f"{dataset.fs.describe(entry.name)} has no samples shard of the same name: "
                f"run `llmperf dataset verify {dataset.fs.describe()}`"
            )
        yield _Pair(dataset=dataset, kernels=entry, samples=samples[stem])


def _choose(pairs: Sequence[_Pair]) -> _Choice:
    """Return which samples of every pair are kept."""
    keys, ranks, task_ids, is_empty = [], [], [], []
    for pair in pairs:
        table = _read(pair, pair.samples, ["sample_id", "status", "task_id", "global_size"])
        try:
            keys.append(id_keys(table.column("sample_id")))
        except ValueError as error:
            fs = pair.dataset.fs
            raise StoreError(
                f"{fs.describe(pair.samples.name)}: {error}: run `llmperf dataset verify "
                f"{fs.describe()}`"
            ) from None
        ranks.append(pc.not_equal(table.column("status"), OK_STATUS).to_numpy().astype(np.int8))
        task_ids.append(table.column("task_id").combine_chunks().dictionary_encode())
        sizes = pc.list_value_length(table.column("global_size"))
        is_empty.append(pc.equal(sizes, 0).to_numpy())
    kept = first_of_each(join_keys(keys), np.concatenate([np.empty(0, np.int8), *ranks]))
    ends = np.cumsum([len(tasks) for tasks in task_ids])
    rows = np.split(kept, ends[:-1]) if task_ids else []
    _drop_superseded(rows, task_ids, is_empty)
    choice = _Choice(rows=rows)
    for number, tasks in enumerate(task_ids):
        for task in tasks.filter(pa.array(rows[number])).unique().to_pylist():
            choice.pairs_of_task.setdefault(task, []).append(number)
    return choice


def _drop_superseded(
    rows: Sequence[Bools], task_ids: Sequence[pa.DictionaryArray], is_empty: Sequence[Bools]
) -> None:
    """Drop the row without launch config of a task if another source has this task with configs."""
    got_further: set[str] = set()
    for kept, tasks, empty in zip(rows, task_ids, is_empty, strict=True):
        got_further.update(tasks.filter(pa.array(kept & ~empty)).unique().to_pylist())
    for kept, tasks, empty in zip(rows, task_ids, is_empty, strict=True):
        for index in np.flatnonzero(kept & empty):
            if tasks[int(index)].as_py() in got_further:
                kept[index] = False


def _families(datasets: Sequence[Dataset], assign_families: AssignFamilies) -> dict[str, str]:
    """Return the family of every kernel id, over the union of all sources.

    A kernel without source cannot be compared: it stays in its old family, or in the family into
    which its old family was merged.
    """
    known: dict[str, tuple[str, str, str]] = {}
    unknown: dict[str, str] = {}
    for dataset in datasets:
        for table in dataset.iter_table("kernels", ["kernel_id", "source", "name", "family_id"]):
            for row in table.to_pylist():
                kernel = row["kernel_id"]
                if row["source"]:
                    known[kernel] = (kernel, row["source"], row["name"])
                else:
                    unknown.setdefault(kernel, row["family_id"])
    families = dict(assign_families(list(known.values())))
    for kernel, family in unknown.items():
        families.setdefault(kernel, families.get(family, family))
    return families


def _device_shards(devices: Mapping[str, pa.Table], run: RunRecord) -> Iterator[ShardFile]:
    """Yield one shard for each device."""
    footer = Footer(plan_hash=run.plan_hash, epoch=0, tasks=())
    for device, table in devices.items():
        data = encode_table(table, footer)
        yield ShardFile(name=f"devices/{device}.parquet", data=data, rows=1, tasks=0)


def _merged_shards(
    devices: Mapping[str, pa.Table],
    pairs: Sequence[_Pair],
    choice: _Choice,
    families: Mapping[str, str],
    run: RunRecord,
) -> Iterator[ShardFile]:
    """Yield every shard of the merged dataset; one pair is in memory at a time."""
    yield from _device_shards(devices, run)
    for number, (first_pair, tasks) in enumerate(sorted(choice.tasks_by_first_pair().items())):
        yield from _merged_pair(
            f"merged-{number:06d}", first_pair, tasks, pairs, choice, families, run
        )


def _merged_pair(
    stem: str,
    first_pair: int,
    tasks: Sequence[str],
    pairs: Sequence[_Pair],
    choice: _Choice,
    families: Mapping[str, str],
    run: RunRecord,
) -> tuple[ShardFile, ShardFile]:
    """Return the shards of ``tasks``: kernels of ``first_pair``, samples of all their pairs."""
    pair = pairs[first_pair]
    wanted = pa.array(tasks, pa.string())
    kernels = _read(pair, pair.kernels, KERNELS.names)
    kernels = kernels.filter(pc.is_in(kernels.column("task_id"), wanted))
    if kernels.num_rows != len(tasks):
        fs = pair.dataset.fs
        raise StoreError(
            f"{fs.describe(pair.kernels.name)} does not have one row for each task: run "
            f"`llmperf dataset verify {fs.describe()}`"
        )
    column = KERNELS.get_field_index("family_id")
    family_ids = [families[kernel] for kernel in kernels.column("kernel_id").to_pylist()]
    kernels = kernels.set_column(column, KERNELS.field(column), pa.array(family_ids, pa.string()))
    parts = []
    for number in sorted({number for task in tasks for number in choice.pairs_of_task[task]}):
        table = _read(pairs[number], pairs[number].samples, SAMPLES.names)
        table = table.filter(pa.array(choice.rows[number]))
        parts.append(table.filter(pc.is_in(table.column("task_id"), wanted)))
    samples = pa.concat_tables(parts)
    source = read_footer(pair.dataset.shard_bytes(pair.samples), pair.samples.name)
    footer = Footer(
        plan_hash=run.plan_hash,
        epoch=_EPOCH,
        tasks=tuple((task, 0) for task in kernels.column("task_id").to_pylist()),
        sentinel=source.sentinel,
    )
    first, second = (
        ShardFile(
            name=f"{folder}/{stem}.parquet",
            data=encode_table(table, footer),
            rows=table.num_rows,
            tasks=len(tasks),
        )
        for folder, table in (("kernels", kernels), ("samples", samples))
    )
    return first, second


def _read(pair: _Pair, entry: ShardEntry, columns: Sequence[str]) -> pa.Table:
    schema = KERNELS if entry.table == "kernels" else SAMPLES
    table = read_columns(pair.dataset.shard_bytes(entry), entry.name, columns)
    return conform(table, pa.schema([schema.field(name) for name in columns]))
