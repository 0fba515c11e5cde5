"""From measurement tables and the corpus back to a dataset.

Owns the matching of kernels with their sources, by id and hash, and the new dataset's shards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data.measurements.exporting import ends_of_tasks
from benchmarks.data.measurements.tables import (
    DEVICES_FILE,
    FORMAT_VERSION,
    INDEX_FILE,
    KERNELS_FILE,
    RUN_FILE,
    SENTINEL_FILE,
    samples_file,
    with_derived,
)
from llmperf_common.ids import sha256_hex
from llmperf_common.records import SentinelReading
from llmperf_common.schemas import KERNELS
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.manifests.publish import publish
from llmperf_common.store.manifests.run import RUN_LOCK, ForeignRunError
from llmperf_common.store.tables.card import write_card
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.shard import Footer, ShardFile, encode_table, write_shard
from workers.corpus.read import read_kernels

_ROWS_A_SHARD = 20_000
_EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """The counts of a rebuild; ``missing`` has the number of kernels without source by suite."""

    num_tasks: int
    num_samples: int
    missing: dict[str, int]


def rebuild(tables: Path, corpora: Sequence[Path], out: str) -> RebuildReport:
    """Write the dataset that ``tables`` were made from, with sources found in ``corpora``.

    Args:
        tables: a folder that ``export_tables`` wrote.
        corpora: sources as ``llmperf corpus build`` takes them. Of archives and folders only the
            files whose names are in the tables are parsed, whatever folder they are in. A kernel
            that is in no corpus keeps a null source.
        out: a new or empty folder.

    Raises:
        StoreError: A table is missing or damaged, or ``out`` cannot be used.
        CorpusError: A corpus is missing or cannot be read.
    """
    files = _checked(tables)
    kernels = _table(files, KERNELS_FILE).to_pylist()
    fs = open_filesystem(out)
    with fs.lock(RUN_LOCK, exclusive=False, wait=True):  # collectors hold it while they write
        if {*fs.names(), *fs.folders()} != {RUN_LOCK}:
            raise ForeignRunError(f"{out} is not empty: choose a new or empty folder to rebuild in")
        sources = _sources(kernels, corpora)
        run = files[RUN_FILE]
        if not fs.put_if_absent(RUN_FILE, run):
            raise ForeignRunError(f"{out} was just taken by another process: choose a new folder")
        rows = {row["task_id"]: {**row, "source": sources.get(row["kernel_id"])} for row in kernels}
        plan_hash = json.loads(run)["plan_hash"]
        entries = [write_shard(fs, shard) for shard in _shards(files, rows, plan_hash)]
        publish(fs, entries, plan_hash=plan_hash, epoch=_EPOCH)
        write_card(fs, open_dataset(fs))
    missing = Counter(row["suite"] for row in rows.values() if row["source"] is None)
    return RebuildReport(
        num_tasks=len(rows), num_samples=_index(files)["samples"], missing=dict(missing)
    )


def _checked(folder: Path) -> dict[str, bytes]:
    """Return the bytes of ``tables.json`` and of every file that it names."""
    try:
        index_bytes = (folder / INDEX_FILE).read_bytes()
        index = json.loads(index_bytes)
        if index["format"] != FORMAT_VERSION:
            raise StoreError(
                f"{folder / INDEX_FILE} has format {index['format']}, this program reads {FORMAT_VERSION}: "
                "use the version of the repository that the tables came with"
            )
        files = {name: (folder / name).read_bytes() for name in index["files"]}
    except FileNotFoundError as error:
        raise StoreError(
            f"{error.filename} is missing: name a folder of measurement tables, whole"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{folder / INDEX_FILE} is damaged ({error}): get it again") from None
    for name, data in files.items():
        if sha256_hex(data) != index["files"][name]:
            raise StoreError(
                f"{folder / name} is not the file that {INDEX_FILE} names: get it again"
            )
    return {**files, INDEX_FILE: index_bytes}


def _index(files: dict[str, bytes]) -> dict[str, Any]:
    index: dict[str, Any] = json.loads(files[INDEX_FILE])
    return index


def _table(files: dict[str, bytes], name: str) -> pa.Table:
    return pq.read_table(pa.BufferReader(files[name]))


def _sources(kernels: Sequence[dict[str, Any]], corpora: Sequence[Path]) -> dict[str, str]:
    """Return kernel id to source, for the kernels whose source has the measured hash."""
    hashes = {row["kernel_id"]: row["source_sha256"] for row in kernels}
    found, _ = read_kernels(corpora, only={PurePosixPath(row["path"]).name for row in kernels})
    return {
        one.kernel_id: one.source for one in found if hashes.get(one.kernel_id) == one.source_sha256
    }


def _shards(
    files: dict[str, bytes], rows: dict[str, dict[str, Any]], plan_hash: str
) -> Iterator[ShardFile]:
    """Yield every shard of the dataset, with one file of samples in memory at a time."""
    devices = _table(files, DEVICES_FILE)
    footer = Footer(plan_hash=plan_hash, epoch=0, tasks=())
    for index, device in enumerate(devices.column("device_id").to_pylist()):
        data = encode_table(devices.slice(index, 1), footer)
        yield ShardFile(name=f"devices/{device}.parquet", data=data, rows=1, tasks=0)
    readings = [SentinelReading(**one) for one in _table(files, SENTINEL_FILE).to_pylist()]
    number = 0
    for part in _sample_tables(files):
        begin = 0
        for end in ends_of_tasks(part):
            if end - begin >= _ROWS_A_SHARD or end == part.num_rows:
                samples = part.slice(begin, end - begin)
                yield from _pair(f"rebuilt-{number:06d}", samples, rows, plan_hash, readings)
                begin, number, readings = end, number + 1, []


def _sample_tables(files: dict[str, bytes]) -> Iterator[pa.Table]:
    number, plan_seed = 0, _index(files)["plan_seed"]
    while samples_file(number) in files:
        yield with_derived(_table(files, samples_file(number)), plan_seed)
        number += 1


def _pair(
    stem: str,
    samples: pa.Table,
    rows: dict[str, dict[str, Any]],
    plan_hash: str,
    readings: Sequence[SentinelReading],
) -> tuple[ShardFile, ShardFile]:
    tasks = list(dict.fromkeys(samples.column("task_id").to_pylist()))
    kernels = pa.Table.from_pylist([rows[task] for task in tasks], schema=KERNELS)
    footer = Footer(
        plan_hash=plan_hash,
        epoch=_EPOCH,
        tasks=tuple((task, 0) for task in tasks),
        sentinel=tuple(readings),
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
