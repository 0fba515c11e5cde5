"""Shards: immutable Parquet files whose footers identify their contents.

Owns encoding, the footer and reading a shard back. One commit writes a *pair*,
``kernels/STEM.parquet`` and ``samples/STEM.parquet``. A device's record is a file of its own,
``devices/DEVICE_ID.parquet``.
"""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.files.foreign_json import parse_json, whole_number
from llmperf_common.files.parquet_memory import check_memory
from llmperf_common.records import Device, SentinelReading, TaskResult
from llmperf_common.schemas import SCHEMA_VERSION
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.tables.rows import devices_table, kernels_table, samples_table
from llmperf_common.store.tables.table_problems import table_problems

_FOOTER_KEY = b"llmperf"


class ShardError(StoreError):
    """A shard is damaged; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The facts that a shard holds about itself; a lost ledger can be rebuilt from them alone.

    ``tasks`` pairs each task id with the fencing token under which it was written.
    """

    plan_hash: str
    epoch: int
    tasks: tuple[tuple[str, int], ...]
    sentinel: tuple[SentinelReading, ...] = ()

    def to_json(self) -> bytes:
        """Return the footer's bytes."""
        return json.dumps(
            {
                "schema_version": SCHEMA_VERSION,
                "plan_hash": self.plan_hash,
                "epoch": self.epoch,
                "tasks": [list(pair) for pair in self.tasks],
                "sentinel": [[s.device_id, s.at_us, s.median_ns] for s in self.sentinel],
            },
            separators=(",", ":"),
        ).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFile:
    """A shard in memory: its name, its bytes, and its entry in a manifest."""

    name: str
    data: bytes
    rows: int
    tasks: int

    @property
    def entry(self) -> ShardEntry:
        """The shard as a manifest lists it."""
        return ShardEntry.of(self.name, self.data, rows=self.rows, tasks=self.tasks)


def encode_table(table: pa.Table, footer: Footer) -> bytes:
    """Return ``table`` as Parquet with ``footer`` in its key-value metadata."""
    metadata = dict(table.schema.metadata or {}) | {_FOOTER_KEY: footer.to_json()}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getvalue()


def encode_results(
    stem: str,
    results: Sequence[TaskResult],
    tokens: Sequence[int],
    *,
    plan_hash: str,
    epoch: int,
) -> tuple[ShardFile, ShardFile]:
    """Return the pair of shards (kernels, samples) of finished tasks.

    Args:
        stem: unique name without folder and ending.
        results: the tasks' results.
        tokens: fencing tokens of these tasks, in the same order.
        plan_hash: plan hash of the run.
        epoch: epoch of the ledger that granted the tokens.
    """
    footer = Footer(
        plan_hash=plan_hash,
        epoch=epoch,
        tasks=tuple((r.task_id, token) for r, token in zip(results, tokens, strict=True)),
        sentinel=tuple(reading for result in results for reading in result.sentinel),
    )
    tables = {"kernels": kernels_table(results), "samples": samples_table(results)}
    kernels, samples = (
        ShardFile(
            name=f"{folder}/{stem}.parquet",
            data=encode_table(table, footer),
            rows=table.num_rows,
            tasks=len(results),
        )
        for folder, table in tables.items()
    )
    return kernels, samples


def encode_device(device: Device, *, plan_hash: str) -> ShardFile:
    """Return the shard that holds one device's record."""
    footer = Footer(plan_hash=plan_hash, epoch=0, tasks=())
    return ShardFile(
        name=f"devices/{device.device_id}.parquet",
        data=encode_table(devices_table([device]), footer),
        rows=1,
        tasks=0,
    )


def device_from_table(table: pa.Table, row: int = 0) -> Device:
    """Return the record in a row of a devices table; columns that its version lacks are None."""
    values = table.slice(row, 1).to_pylist()[0]
    names = [field.name for field in dataclasses.fields(Device)]
    return Device(
        **{name: values.get(name) for name in names if name != "max_work_item_sizes"},
        max_work_item_sizes=tuple(values["max_work_item_sizes"]),
    )


def decode(data: bytes, name: str) -> tuple[pa.Table, Footer]:
    """Read a shard completely from bytes. Raises ShardError naming ``name``."""
    try:
        check_memory(pa.py_buffer(data))
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            table = file.read()  # unlike pq.read_table, it accepts a column that is there twice
        footer = _footer(table.schema.metadata, name)
        # Arrow decodes a column's name only on access, so a damaged name raises an error here.
        problems = table_problems(name.split("/", 1)[0], table.schema, table)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise ShardError(f"{name} is damaged: {type(error).__name__}: {error}") from None
    if problems:
        raise ShardError(f"{name}: {'; '.join(problems)}")
    return table, footer


def read_footer(data: bytes, name: str) -> Footer:
    """Read only the footer of a shard. Raises ShardError."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(data)).metadata
        return _footer(metadata, name)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, OverflowError) as error:
        raise ShardError(f"{name} is damaged: {type(error).__name__}: {error}") from None


def _footer(metadata: Mapping[bytes, bytes] | None, name: str) -> Footer:
    raw = (metadata or {}).get(_FOOTER_KEY)
    if raw is None:
        raise ShardError(
            f"{name} has no footer of LLMPerf, so another program wrote it: restore the file from "
            "a backup, or copy the dataset from its source again"
        )
    document = parse_json(raw)
    return Footer(
        plan_hash=document["plan_hash"],
        epoch=whole_number(document["epoch"]),
        tasks=tuple((str(task), whole_number(token)) for task, token in document["tasks"]),
        sentinel=tuple(
            SentinelReading(device_id=device, at_us=at, median_ns=median)
            for device, at, median in document.get("sentinel", ())
        ),
    )


Encoder = Callable[..., tuple[ShardFile, ShardFile]]
"""The type of ``encode_results``; the tests' simulator of crashes passes a caching version."""


def write_shard(fs: Filesystem, shard: ShardFile) -> ShardEntry:
    """Create the shard durably and read it back.

    Raises:
        StoreError: A file of this name has other bytes, or the bytes read back differ.
    """
    fs.put_if_absent(shard.name, shard.data)
    if fs.read_bytes(shard.name) != shard.data:
        raise ShardError(
            f"{fs.describe(shard.name)} does not read back as it was written: check the disk or "
            "the store, then run the same command again"
        )
    return shard.entry
