"""Count the work of a dataset's launches on the CPU device, for datasets without work columns.

``python -m benchmarks.data.count_work DATASET --out DIR [--kernels 300] [--children 2]
[--at-least-ns 10000]``

DATASET is a folder with sources, such as ``runs/h200`` (docs/how-to/rebuild-a-dataset.md). Of its
kernels with ok samples, the program counts those of the public suites and ``--kernels`` random
others. It counts all their ok launch configs that take at least ``--at-least-ns``, and
``--shorter`` random shorter configs of each kernel. DIR gets Parquet files with one row for each
sample: ``sample_id``, ``kernel_id``, the columns of ``Work``, and a ``reason`` if these are null.
Ctrl-C keeps what was counted. A later call counts the kernels that DIR does not have.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.failures import Failure
from llmperf_common.features.work import WORK_KINDS, WORK_NAMES, Work
from llmperf_common.records import Kernel, LaunchConfig
from llmperf_common.store.tables.launch_rows import LAUNCH_COLUMNS, launch_from_row
from workers.discovery.find import NoDevice, choose
from workers.source.front_end import read_kernels
from workers.work.children import COUNT_TIMEOUT_S, count_all

_CONFIG_COLUMNS = ["sample_id", "kernel_id", *LAUNCH_COLUMNS, "status", "median_ns"]
_SUITES = ("shoc", "rodinia")
_KERNELS_A_PART = 100
_KERNEL_COLUMNS = ["kernel_id", "name", "source", "source_sha256", "family_id", "suite", "path", "build"]  # fmt: skip


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a folder")
    parser.add_argument("--kernels", type=int, default=0, help="number of random kernels; 0: all")
    parser.add_argument(
        "--at-least-ns", type=float, default=0.0, help="count all launches from this time on"
    )
    parser.add_argument(
        "--shorter", type=int, default=0, help="number of shorter launches of each kernel"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--split", type=Path, help="a run's split.json: count first what it does not train on"
    )
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout-s", type=float, default=COUNT_TIMEOUT_S)
    arguments = parser.parse_args()
    ref = choose("cpu")
    if isinstance(ref, NoDevice):
        sys.stderr.write(ref.message() + "\n")
        return 4
    arguments.out.mkdir(parents=True, exist_ok=True)
    known = _counted(arguments.out)
    jobs = _jobs(arguments, known)
    rows: list[dict[str, Any]] = []
    total = _Total()
    is_interrupted = False
    try:
        for one in count_all(
            jobs, ref, num_children=arguments.children, timeout_s=arguments.timeout_s
        ):
            for config, outcome in zip(one.configs, one.outcomes, strict=True):
                rows.append(_row(one.kernel, config, outcome))
            total.num_kernels += 1
            if total.num_kernels % _KERNELS_A_PART == 0:
                _write(arguments.out, rows, total)
                rows = []
                sys.stderr.write(f"{total.num_kernels} kernels\n")
    except KeyboardInterrupt:
        is_interrupted = True
    _write(arguments.out, rows, total)
    sys.stdout.write(_summary(total))
    return 130 if is_interrupted else 0


@dataclasses.dataclass(slots=True, kw_only=True)
class _Total:
    num_kernels: int = 0
    num_rows: int = 0
    reasons: Counter[str] = dataclasses.field(default_factory=Counter)


def _write(folder: Path, rows: list[dict[str, Any]], total: _Total) -> None:
    if not rows:
        return
    total.num_rows += len(rows)
    total.reasons.update(one["reason"].split(":")[0][:60] for one in rows if one["reason"])
    number = len(list(folder.glob("*.parquet")))
    pq.write_table(pa.Table.from_pylist(rows, schema=_schema()), folder / f".{number}")
    (folder / f".{number}").rename(folder / f"work-{number:06d}.parquet")


def _counted(folder: Path) -> set[str]:
    """Return the kernels whose counts ``folder`` has."""
    return {row["kernel_id"] for row in _read(folder, ["kernel_id"])}


def _jobs(
    arguments: argparse.Namespace, known: set[str]
) -> Iterator[tuple[Kernel, list[LaunchConfig]]]:
    """Yield kernels with a source, each with its ok configs; first the suites, then others."""
    dataset = arguments.dataset
    configs: dict[str, list[LaunchConfig]] = defaultdict(list)
    shorter: dict[str, list[LaunchConfig]] = defaultdict(list)
    for row in _read(dataset / "samples", _CONFIG_COLUMNS):
        if row["status"] == "ok":
            is_long = row["median_ns"] >= arguments.at_least_ns
            (configs if is_long else shorter)[row["kernel_id"]].append(launch_from_row(row))
    generator = random.Random(arguments.seed)  # noqa: S311  (a sample, no secret)
    for identifier, some in shorter.items():
        chosen = generator.sample(some, min(arguments.shorter, len(some)))
        if chosen:
            configs[identifier] += chosen
    found = {
        row["kernel_id"]: row
        for row in _read(dataset / "kernels", _KERNEL_COLUMNS)
        if row["source"] is not None and row["kernel_id"] in configs
    }
    order = sorted(found)
    random.Random(arguments.seed).shuffle(order)  # noqa: S311  (a sample, no secret)
    public = [one for one in order if found[one]["suite"] in _SUITES]
    others = [one for one in order if found[one]["suite"] not in _SUITES]
    if arguments.split is not None:
        parts = json.loads(arguments.split.read_text(encoding="utf-8"))["parts"]
        trained_on = set(parts["train"])
        others.sort(key=lambda one: found[one]["family_id"] in trained_on)  # keeps their order
    for identifier in [*public, *others[: arguments.kernels or None]]:
        if identifier in known:
            continue
        kernel = _kernel(found[identifier])
        if kernel is not None:
            yield kernel, configs[identifier]


def _read(folder: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=columns):
            yield from batch.to_pylist()


def _kernel(row: dict[str, Any]) -> Kernel | None:
    options = (row["build"] or {}).get("options") or ""
    found = read_kernels(row["source"], options)
    if isinstance(found, Failure):
        return None
    read = next((one for one in found if one.name == row["name"]), None)
    if read is None or read.signature is None:
        return None
    return Kernel(
        kernel_id=row["kernel_id"],
        name=row["name"],
        source=row["source"],
        source_sha256=row["source_sha256"],
        path=row["path"] or "",
        suite=row["suite"] or "",
        family_id=row["family_id"],
        build_options=options,
        signature=read.signature,
        failure=None,
    )


def _row(kernel: Kernel, config: LaunchConfig, outcome: Work | Failure) -> dict[str, Any]:
    values = dataclasses.asdict(outcome) if isinstance(outcome, Work) else {}
    reason = None if isinstance(outcome, Work) else outcome.detail[:200]
    return {
        "sample_id": config.sample_id,
        "kernel_id": kernel.kernel_id,
        **{name: values.get(name) for name in WORK_NAMES},
        "reason": reason,
    }


def _schema() -> pa.Schema:
    types = {"float": pa.float64(), "int": pa.int64(), "bool": pa.bool_()}
    of_work = [pa.field(name, types[kind]) for name, kind in WORK_KINDS.items()]
    ids = [pa.field("sample_id", pa.string()), pa.field("kernel_id", pa.string())]
    return pa.schema([*ids, *of_work, pa.field("reason", pa.string())])


def _summary(total: _Total) -> str:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    counted = total.num_rows - sum(total.reasons.values())
    lines = [
        f"{counted} of {total.num_rows} launches of {total.num_kernels} kernels counted,"
        f" {seconds / max(1, total.num_kernels):.2f} CPU-seconds a kernel",
        *(f"  {number:6d} {reason}" for reason, number in total.reasons.most_common(12)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
