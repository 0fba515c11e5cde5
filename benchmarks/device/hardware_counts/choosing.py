"""Which launches are compared, and their counts on the CPU device.

Owns the draw of kernels and launches. The kernels are random kernels with an ok time on the
dataset's GPU. The memory analysis must have validated all extents of a kernel, because other
kernels may reach beyond their buffers, and a fault ends the process. Two sorts of kernels are left
out: kernels that print (their PTX needs OpenCL's runtime) and kernels with a vector by value (such
a kernel read the vector's address and faulted under CUDA).

The launches of a kernel are random ok launches that the memory analysis planned. They last at most
``MOST_NS`` and their buffers have at most ``MOST_BYTES`` together, because ``ncu`` repeats a launch
for each group of counters and restores the buffers in between.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.collecting.collectors.jobs import Job, Work, launch_from_row, read_work, write_work
from benchmarks.device.hardware_counts.kernels import bare_kernel
from llmperf_common.failures import Failure
from llmperf_common.features.work import WORK_KINDS
from llmperf_common.features.work import Work as Counts
from llmperf_common.records import ArgumentKind, Kernel, Strategy
from llmperf_common.store.tables.launch_rows import LAUNCH_COLUMNS
from workers.discovery.find import NoDevice, choose
from workers.source.front_end import read_kernels
from workers.work.children import count_all

MOST_NS = 20e6
MOST_BYTES = 64 * 2**20
_KERNEL_COLUMNS = ["kernel_id", "name", "source", "build", "analysis"]


def choose_launches(dataset: Path, out: Path, kernels: int, configs: int, seed: int) -> str:
    """Write the jobs of random kernels with ``configs`` launches each."""
    generator = random.Random(seed)  # noqa: S311  (a sample, no secret)
    launches: dict[str, list[dict[str, Any]]] = defaultdict(list)
    columns = ["sample_id", "kernel_id", "status", "median_ns", "input_strategy", *LAUNCH_COLUMNS]
    for row in _rows(dataset / "samples", columns):
        stays_inside = row["input_strategy"] == Strategy.MEMORY_ANALYSIS
        if row["status"] == "ok" and row["median_ns"] <= MOST_NS and stays_inside:
            launches[row["kernel_id"]].append(row)
    found = {
        row["kernel_id"]: row
        for row in _rows(dataset / "kernels", _KERNEL_COLUMNS)
        if row["source"] is not None
        and len(launches[row["kernel_id"]]) >= configs
        and all(extent["validated"] for extent in row["analysis"])
    }
    order = sorted(found)
    generator.shuffle(order)
    jobs: list[Job] = []
    for identifier in order:
        job = _job(found[identifier], launches[identifier], configs, generator)
        if job is not None:
            jobs.append(job)
        if len(jobs) == kernels:
            break
    write_work(
        out,
        Work(
            device_ref={},
            timing={},
            timer_step_ns=None,
            last_level_cache_bytes=0,
            jobs=tuple(jobs),
        ),
    )
    return f"{out}: {len(jobs)} kernels, {sum(len(one.launches) for one in jobs)} launches"


def count_launches(jobs: Path, out: Path) -> str:
    """Count the work of each launch and write one row for each.

    A row has ``sample_id``, ``kernel_id``, ``name``, the counts, and in ``reason`` why there are
    none.
    """
    ref = choose("cpu")
    if isinstance(ref, NoDevice):
        raise SystemExit(ref.message())
    wanted = ((_parsed(job), job.launches) for job in read_work(jobs).jobs)
    rows = [
        {
            "kernel_id": one.kernel.kernel_id,
            "name": one.kernel.name,
            **_count_row(config.sample_id, outcome),
        }
        for one in count_all(wanted, ref, num_children=os.cpu_count() or 1)
        for config, outcome in zip(one.configs, one.outcomes, strict=True)
    ]
    types = {"float": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
    schema = pa.schema(
        [
            *(pa.field(name, pa.string()) for name in ("sample_id", "kernel_id", "name")),
            *(pa.field(name, types[kind]) for name, kind in WORK_KINDS.items()),
            pa.field("reason", pa.string()),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), out)
    return f"{out}: {sum(one['reason'] is None for one in rows)} of {len(rows)} launches counted"


def _count_row(sample_id: str, outcome: Counts | Failure) -> dict[str, Any]:
    if isinstance(outcome, Failure):
        return {"sample_id": sample_id, "reason": outcome.detail[:200]}
    return {"sample_id": sample_id, "reason": None, **dataclasses.asdict(outcome)}


def _job(
    row: dict[str, Any], launches: list[dict[str, Any]], configs: int, generator: random.Random
) -> Job | None:
    kernel = _read(row["source"], row["name"], (row["build"] or {}).get("options") or "")
    if kernel is None or kernel.signature is None:
        return None
    arguments = kernel.signature.arguments
    has_vector = any(one.kind is ArgumentKind.SCALAR and one.vector_width > 1 for one in arguments)
    if "printf" in row["source"] or has_vector:
        return None
    sizes = {one.position: one.element_bytes for one in arguments}
    usable = []
    for one in sorted(launches, key=lambda row: row["sample_id"]):
        launch = launch_from_row(one)
        held = sum((given.elements or 0) * sizes[given.position] for given in launch.args)
        if held <= MOST_BYTES:
            usable.append(launch)
    if len(usable) < configs:
        return None
    return Job(
        kernel_id=row["kernel_id"],
        name=row["name"],
        source=row["source"],
        build_options=kernel.build_options,
        arguments=kernel.signature.arguments,
        launches=tuple(generator.sample(usable, configs)),
    )


def _parsed(job: Job) -> Kernel:
    kernel = _read(job.source, job.name, job.build_options)
    if kernel is None:
        raise ValueError(f"{job.name}: its source does not parse")
    return dataclasses.replace(kernel, kernel_id=job.kernel_id)


def _read(source: str, name: str, options: str) -> Kernel | None:
    found = read_kernels(source, options)
    if isinstance(found, Failure):
        return None
    read = next((one for one in found if one.name == name), None)
    if read is None or read.signature is None:
        return None
    return bare_kernel(name=name, source=source, build_options=options, signature=read.signature)


def _rows(folder: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=columns):
            yield from batch.to_pylist()
