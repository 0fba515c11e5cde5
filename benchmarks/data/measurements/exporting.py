"""From a dataset to measurement tables.

Owns the folder: its files, their sizes, and the content of ``tables.json``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data.measurements.tables import (
    DEVICES_FILE,
    FORMAT_VERSION,
    INDEX_FILE,
    KERNELS_FILE,
    RUN_FILE,
    SENTINEL,
    SENTINEL_FILE,
    samples_file,
    without_derived,
    without_sources,
)
from llmperf_common.ids import sha256_hex
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.tables.reader import Dataset

ROWS_A_FILE = 80_000
"""Rows of one file, about 3 MiB, because large files make a repository slow."""
_LEVEL = 19


def export_tables(
    dataset: Dataset, out: Path, *, plan_seed: int = 0, rows_a_file: int = ROWS_A_FILE
) -> dict[str, Any]:
    """Write the measurement tables of a dataset into a new folder.

    Args:
        dataset: the dataset to publish.
        out: a folder that does not exist yet.
        plan_seed: ``plan.seed`` of the collection. With another value the seeds of all inputs are
            stored, because they cannot be derived.
        rows_a_file: samples of one file; the last task of a file may exceed the number.

    Returns:
        The content of ``tables.json``.

    Raises:
        StoreError: ``out`` exists or cannot be written, or a shard is damaged.
    """
    try:
        out.mkdir(parents=True)
    except FileExistsError:
        raise StoreError(f"{out} exists: name a new folder, or remove it first") from None
    except OSError as error:
        raise StoreError(f"{out}: {error.strerror}: name a folder that can be written") from None
    samples = dataset.samples().sort_by([("task_id", "ascending"), ("created_at", "ascending")])
    num_cut, files = 0, {}
    for number, part in enumerate(_parts(samples, rows_a_file)):
        plain = without_derived(part, plan_seed)
        num_cut += plain.num_cut
        files[samples_file(number)] = _parquet(plain.table)
    kernels = dataset.kernels().sort_by("task_id")
    files[KERNELS_FILE] = _parquet(without_sources(kernels))
    files[DEVICES_FILE] = _parquet(dataset.devices())
    readings = [[one.device_id, one.at_us, one.median_ns] for one in dataset.sentinel()]
    columns = (
        dict(zip(SENTINEL.names, zip(*readings, strict=True), strict=True)) if readings else {}
    )
    files[SENTINEL_FILE] = _parquet(
        pa.table({name: list(columns.get(name, ())) for name in SENTINEL.names}, schema=SENTINEL)
    )
    files[RUN_FILE] = dataset.run.to_json()
    index = {
        "format": FORMAT_VERSION,
        "plan_seed": plan_seed,
        "tasks": kernels.num_rows,
        "samples": samples.num_rows,
        "texts_cut": num_cut,
        "files": {name: sha256_hex(data) for name, data in files.items()},
    }
    for name, data in files.items():
        (out / name).write_bytes(data)
    (out / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return index


def _parts(samples: pa.Table, rows_a_file: int) -> Iterator[pa.Table]:
    """Yield the samples in order, in parts that never divide a task."""
    begin = 0
    for end in ends_of_tasks(samples):
        if end - begin >= rows_a_file or end == samples.num_rows:
            yield samples.slice(begin, end - begin).combine_chunks()
            begin = end


def ends_of_tasks(samples: pa.Table) -> list[int]:
    """Return the index after the last row of each task, for samples sorted by task."""
    codes = samples.column("task_id").combine_chunks().dictionary_encode().indices.to_numpy()
    ends: list[int] = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    return [*ends, len(codes)] if len(codes) else []


def _parquet(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", compression_level=_LEVEL)
    return buffer.getvalue()
