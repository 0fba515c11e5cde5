"""A dataset's tables for publication, without sources and without values that can be derived.

Owns the names of the files, the columns that are left out, their derivation, and the cutting of
texts that quote a kernel's source. ``exporting.py`` and ``rebuilding.py`` own the reading and
writing of whole folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from llmperf_common.schemas import KERNELS, SAMPLES
from llmperf_common.store.tables.reader import conform
from llmperf_common.store.tables.rows import statistics_of
from llmperf_common.store.upkeep.row_checks import sample_ids_of
from workers.plan.launch_plan import input_seed, seed_of

INDEX_FILE = "tables.json"
RUN_FILE = "run.json"
KERNELS_FILE, DEVICES_FILE, SENTINEL_FILE = (
    "kernels.parquet",
    "devices.parquet",
    "sentinel.parquet",
)
SENTINEL = pa.schema(
    [
        pa.field("device_id", pa.string(), nullable=False),
        pa.field("at_us", pa.int64(), nullable=False),
        pa.field("median_ns", pa.float64(), nullable=False),
    ]
)
FORMAT_VERSION = 1

_QUOTED_ACCESS = re.compile(r"(furthest at line \d+):.*", re.DOTALL)
_QUOTED_OUTPUT = re.compile(r"(build_error|stderr ends):.*", re.DOTALL)

Make = Callable[[pa.Table, int], pa.Array]
"""Derives a column from the samples, with all columns before it, and the plan's seed."""


def samples_file(number: int) -> str:
    """Return the name of the ``number``-th file of samples."""
    return f"samples-{number:02d}.parquet"


def _ids(samples: pa.Table, _: int) -> pa.Array:
    return pa.array(sample_ids_of(samples), pa.string())


def _seeds(samples: pa.Table, plan_seed: int) -> pa.Array:
    """Derive the seeds of launch configs from kernel and global size; 0 for a row without NDRange.

    Version 1 of the measuring code (``harness_version``) derived the seed from the sample's id.
    """
    columns = ("sample_id", "kernel_id", "global_size", "harness_version")
    seeds = [
        0
        if not size
        else seed_of([plan_seed, name])
        if version == 1
        else input_seed(plan_seed, kernel, size)
        for name, kernel, size, version in zip(
            *(samples.column(one).to_pylist() for one in columns), strict=True
        )
    ]
    return pa.array(seeds, pa.int64())


def _statistic(name: str) -> Make:
    def make(samples: pa.Table, _: int) -> pa.Array:
        readings = samples.column("time_ns").to_pylist()
        return pa.array(
            [statistics_of(times)[name] if times else None for times in readings], pa.float64()
        )

    return make


DERIVED: dict[str, Make] = {
    "sample_id": _ids,
    "seed": _seeds,
    "min_ns": _statistic("min_ns"),
    "iqr_ns": _statistic("iqr_ns"),
    "mean_ns": _statistic("mean_ns"),
}
"""Columns of ``samples`` that can be derived from others, in the order of their derivation."""


@dataclass(frozen=True, slots=True)
class PlainSamples:
    """Samples in their published form.

    Attributes:
        table: the samples without the columns of ``DERIVED`` whose values can all be derived.
        num_cut: number of failure texts that were cut because they quoted a source.
    """

    table: pa.Table
    num_cut: int


def without_derived(samples: pa.Table, plan_seed: int) -> PlainSamples:
    """Return the samples to publish; a column whose values cannot be derived is kept."""
    kept = samples.combine_chunks()
    for name, make in DERIVED.items():
        if make(samples, plan_seed).equals(kept.column(name).combine_chunks()):
            kept = kept.drop_columns([name])
    texts = kept.column("failure_detail").to_pylist()
    short = [first_line(text) for text in texts]
    column = kept.schema.get_field_index("failure_detail")
    table = kept.set_column(column, SAMPLES.field("failure_detail"), pa.array(short, pa.string()))
    reasons = [unquoted(text) for text in table.column("work_reason").to_pylist()]
    place = table.schema.get_field_index("work_reason")
    table = table.set_column(place, SAMPLES.field("work_reason"), pa.array(reasons, pa.string()))
    return PlainSamples(table, sum(a != b for a, b in zip(texts, short, strict=True)))


def with_derived(table: pa.Table, plan_seed: int) -> pa.Table:
    """Return published samples with all columns of a dataset; newer columns are null."""
    for name, make in DERIVED.items():
        if name not in table.column_names:
            table = table.append_column(name, make(table, plan_seed))
    return conform(table, SAMPLES)


def without_sources(kernels: pa.Table) -> pa.Table:
    """Return the kernels to publish, without sources, compiler logs and quoted accesses."""
    rows = [_without_source(row) for row in kernels.to_pylist()]
    schema = KERNELS.remove(KERNELS.get_field_index("source"))
    return pa.Table.from_pylist(rows, schema=schema)


def _without_source(row: dict[str, Any]) -> dict[str, Any]:
    build = row["build"] and {**row["build"], "log": None}
    analysis = [{**one, "reason": unquoted(one["reason"])} for one in row["analysis"]]
    failure = unquoted(row["analysis_failure"])
    return {**row, "build": build, "analysis": analysis, "analysis_failure": failure}


def first_line(text: str | None) -> str | None:
    """Return the first line, which has the compiler's message; the source's lines follow it."""
    return text.split("\n", 1)[0] if text else text


def unquoted(text: str | None) -> str | None:
    """Return a text of the analysis without the code that it quotes.

    >>> unquoted("an upper bound, no exact form; furthest at line 6: a[i * n]")
    'an upper bound, no exact form; furthest at line 6'
    """
    short = first_line(text)
    return short and _QUOTED_OUTPUT.sub(r"\1", _QUOTED_ACCESS.sub(r"\1", short))
