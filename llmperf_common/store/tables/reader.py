"""Read a dataset: one manifest version, complete and constant even while other processes write.

Owns the way from a folder to tables in today's schema. Reads only shards that the manifest lists,
never all files of a folder. Does not check the rows' contents (``verify.py`` does).
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from llmperf_common.failures import OK_STATUS
from llmperf_common.files.parquet_memory import check_memory
from llmperf_common.files.visible import shortened
from llmperf_common.ids import sha256_hex
from llmperf_common.notebook import html_facts
from llmperf_common.records import SentinelReading
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.files.location import Location, open_filesystem
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ShardEntry,
    latest_manifest,
    manifest_name,
)
from llmperf_common.store.manifests.run import RUN_FILE, RunRecord, read_run
from llmperf_common.store.tables.shard import ShardError, read_footer
from llmperf_common.store.tables.table_problems import table_problems
from llmperf_common.store.tables.unpacked_budget import UnpackedBudget

if TYPE_CHECKING:
    from llmperf_common.store.tables.stats import DatasetStats


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Dataset:
    """One version of a dataset; every method reads only the shards that ``manifest`` lists.

    Attributes:
        fs: the dataset's folder or bucket.
        run: the record of its run: plan, corpus, device classes, config.
        manifest: the shards of this version.
    """

    fs: Filesystem
    run: RunRecord
    manifest: Manifest

    def samples(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the samples, one row for each launch config; ``columns`` limits what is read."""
        return self._whole("samples", columns)

    def of_kernel(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the ok samples of kernels called ``name``, sorted by device class and work-items.

        Args:
            name: a kernel's name, as in the source.
            columns: the columns to return; None: all.

        Raises:
            StoreError: The dataset has no such kernel; the message names similar ones.
            KeyError: A column does not belong to the samples.
        """
        return _samples_of_kernel(self, name, project("samples", columns).names)

    def kernels(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the kernels, one row for each task."""
        return self._whole("kernels", columns)

    def devices(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the devices, one row for each device."""
        return self._whole("devices", columns)

    def iter_samples(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the samples shard by shard: memory is bounded by the largest shard."""
        return self.iter_table("samples", columns)

    def iter_table(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield one table (samples, kernels or devices) shard by shard, in today's schema.

        Raises:
            ShardError: A shard is missing, damaged or of another schema, or the shards would take
                too much memory; the message names the shard.
            KeyError: A column does not belong to that table.
        """
        wanted = project(table, columns)
        budget = UnpackedBudget()
        for entry in self.shards(table):
            data = self.shard_bytes(entry)
            found = read_columns(data, entry.name, wanted.names)
            budget.take(found, entry.name, len(data))
            yield conform(found, wanted)

    def sentinel(self) -> list[SentinelReading]:
        """Return the sentinel kernel's readings of the whole run, in order of time."""
        readings = [
            reading
            for entry in self.shards("samples")
            for reading in read_footer(self.shard_bytes(entry), entry.name).sentinel
        ]
        return sorted(readings, key=lambda reading: (reading.at_us, reading.device_id))

    def shards(self, table: str) -> tuple[ShardEntry, ...]:
        """Return the shards of one table, without those that a compacted shard replaces."""
        replaced = self.manifest.replaced_names
        return tuple(e for e in self.manifest.of_table(table) if e.name not in replaced)

    def shard_bytes(self, entry: ShardEntry) -> bytes:
        """Return a shard's bytes, checked against the manifest. Raises ShardError."""
        where = self.fs.describe(entry.name)
        try:
            data = self.fs.read_bytes(entry.name)
        except FileNotFoundError:
            raise ShardError(
                f"{where} is listed in {manifest_name(self.manifest.version)} but missing: if the "
                "dataset was compacted meanwhile, open it again; otherwise restore this file from "
                f"a backup, or run `llmperf dataset repair {self.fs.describe()}` to have the "
                "file's tasks done again"
            ) from None
        if len(data) != entry.bytes or sha256_hex(data) != entry.sha256:
            raise ShardError(
                f"{where} is damaged: its bytes do not match "
                f"{manifest_name(self.manifest.version)}: restore it from a backup, or run "
                f"`llmperf dataset repair {self.fs.describe()}` to set it aside and have its tasks "
                "done again (`llmperf dataset verify` lists everything that is wrong)"
            )
        return data

    @property
    def num_samples(self) -> int:
        """The number of samples, by the manifest."""
        return sum(entry.rows for entry in self.shards("samples"))

    @property
    def num_tasks(self) -> int:
        """The number of tasks with a committed result, by the manifest."""
        return sum(entry.tasks for entry in self.shards("kernels"))

    def status_counts(self) -> dict[str, int]:
        """Return the number of samples by status ("ok" or a failure code), the largest first."""
        counts: Counter[str] = Counter()
        for table in self.iter_samples(["status"]):
            counts.update(value_counts(table.column("status")))
        return dict(counts.most_common())

    def stats(self) -> DatasetStats:
        """Return counts by status, regime, strategy, class and suite, and launch times."""
        from llmperf_common.store.tables.stats import dataset_stats  # noqa: PLC0415  (a cycle)

        return dataset_stats(self)

    def __repr__(self) -> str:
        return (
            f"<Dataset {self.fs.describe()}: {self.num_samples:,} samples of "
            f"{self.num_tasks:,} tasks, "
            f"version {self.manifest.version}>"
        )

    def _repr_html_(self) -> str:
        return html_facts(
            f"dataset {self.fs.describe()}",
            {
                "version": self.manifest.version,
                "tasks": f"{self.num_tasks:,} of {self.run.num_tasks:,}",
                "samples": self.num_samples,
                "device classes": ", ".join(one.name for one in self.run.device_classes),
                "begun": self.run.created_at,
                "plan": self.run.plan_hash,
            },
        )

    def _whole(self, table: str, columns: Sequence[str] | None) -> pa.Table:
        tables = list(self.iter_table(table, columns))
        return pa.concat_tables(tables) if tables else project(table, columns).empty_table()


def open_dataset(where: Location | Filesystem) -> Dataset:
    """Open the current version of the dataset in a folder or at ``s3://bucket/prefix``.

    Versions that a running collector publishes later are not visible: open the dataset again to see
    them.

    Raises:
        StoreError: There is no dataset, or its ``run.json`` or manifest is damaged.
        TypeError: ``where`` is neither a text nor a path nor a file system.
    """
    if not isinstance(where, Location) and not hasattr(where, "read_bytes"):
        raise TypeError(f"a dataset is named by a text or a path, not {type(where).__name__}")
    fs = open_filesystem(where) if isinstance(where, Location) else where
    run = read_run(fs)
    if run is None:
        raise StoreError(
            f"{fs.describe()} is not a dataset (it has no {RUN_FILE}): "
            "give the folder that `llmperf collect --out` wrote"
        )
    manifest = latest_manifest(fs)
    if manifest is None and run.merged_from:
        raise StoreError(
            f"{fs.describe()} is an unfinished merge: run the same `llmperf dataset merge` "
            "again, which resumes it"
        )
    if manifest is None:
        raise StoreError(
            f"{fs.describe()} has no results yet (no manifest): run `llmperf collect --out "
            f"{fs.describe()}` again, or wait a few seconds if it is running"
        )
    return Dataset(fs=fs, run=run, manifest=manifest)


def project(table: str, columns: Sequence[str] | None) -> pa.Schema:
    """Return today's schema of ``table``, or only ``columns`` of it in the order given.

    Raises:
        KeyError: A column does not belong to that table.
    """
    schema = TABLES[table]
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def _samples_of_kernel(dataset: Dataset, name: str, columns: Sequence[str]) -> pa.Table:
    """Return ``columns`` of the ok samples of the kernels called ``name``, for ``of_kernel``."""
    kernels = dataset.kernels(["name", "kernel_id"])
    names = kernels.column("name").to_pylist()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3) or sorted(set(names))[:3]
        raise StoreError(
            f"{dataset.fs.describe()} has no kernel {shortened(name)!r}: name another, such as "
            f"{', '.join(map(shortened, near))}"
        )
    wanted = kernels.filter(pc.equal(kernels.column("name"), name)).column("kernel_id")
    needed = dict.fromkeys([*columns, "kernel_id", "status", "device_class", "global_size"])
    found = pa.concat_tables(
        part.filter(
            pc.and_(
                pc.is_in(part.column("kernel_id"), value_set=wanted.combine_chunks()),
                pc.equal(part.column("status"), OK_STATUS),
            )
        )
        for part in dataset.iter_samples(list(needed))
    )
    keys = [
        (row["device_class"], math.prod(row["global_size"]), row["global_size"])
        for row in found.select(["device_class", "global_size"]).to_pylist()
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return found.take(pa.array(order, pa.int64())).select(list(columns))


def read_columns(data: bytes, name: str, columns: Sequence[str]) -> pa.Table:
    """Read those of ``columns`` that a shard has. Raises ShardError, naming the shard."""
    try:
        check_memory(pa.py_buffer(data), columns)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            found = file.schema_arrow
            table = file.read([column for column in columns if column in found.names])
        problems = table_problems(name.split("/", 1)[0], found, table)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardError(f"{name} is damaged: {type(error).__name__}: {error}") from None
    if problems:
        raise ShardError(
            f"{name}: {'; '.join(problems)}: restore the file from a backup, or run `llmperf dataset "
            "repair` to set it aside and have its tasks done again"
        )
    return table


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ``table`` in ``schema``; columns that an earlier version lacks become null."""
    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def value_counts(column: pa.ChunkedArray | pa.Array) -> dict[str, int]:
    """Return how often each value of a text column occurs; nulls are left out."""
    counted = pc.value_counts(column.drop_null())
    return dict(
        zip(
            counted.field("values").to_pylist(),
            counted.field("counts").to_pylist(),
            strict=True,
        )
    )
