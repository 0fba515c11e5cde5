"""The share of a dataset's kernels that do nothing with their inputs, by counted work.

``python -m benchmarks.data.activity_share DATASET WORK``

DATASET is a dataset's folder. WORK is the folder of the Parquet files of
``benchmarks.data.count_work`` (``sample_id`` and the columns of ``Work``). Only kernels with a
counted ok launch are examined. The program prints by suite how many kernels are active, have few
active work-items, or do nothing (``llmperf_common/features/activity.py``). It also prints for how
many kernels more than nine tenths of the work-items of the median launch make no store.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from llmperf_common.features.activity import FEW_SHARE, activity_of_kernel
from llmperf_common.features.work import WORK_NAMES, Work


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("work", type=Path)
    given = parser.parse_args()
    samples = _read(given.dataset / "samples", ["sample_id", "global_size", "checks"])
    facts = {row["sample_id"]: row for row in samples.to_pylist()}
    kernels = _read(given.dataset / "kernels", ["kernel_id", "suite"])
    suites = dict(zip(*(column.to_pylist() for column in kernels.columns), strict=True))
    launches: dict[str, list[tuple[int, Work | None, bool | None]]] = defaultdict(list)
    for row in _read(given.work, None).to_pylist():
        fact = facts[row["sample_id"]]
        writes = (fact["checks"] or {}).get("writes_output")
        launches[row["kernel_id"]].append((math.prod(fact["global_size"]), _work(row), writes))
    for suite, counts in sorted(_counted(launches, suites).items()):
        total = counts.pop("kernels")
        shares = ", ".join(
            f"{name} {num} ({num / total:.1%})" for name, num in sorted(counts.items())
        )
        sys.stdout.write(f"{suite}: {total} kernels: {shares}\n")
    return 0


def _counted(
    launches: dict[str, list[tuple[int, Work | None, bool | None]]], suites: dict[str, str]
) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for kernel, of_kernel in launches.items():
        shares = [work.active_items / items for items, work, _ in of_kernel if work is not None]
        if not shares:
            continue
        counts = found[suites[kernel]]
        counts["kernels"] += 1
        counts[str(activity_of_kernel(of_kernel))] += 1
        counts["over nine tenths idle"] += statistics.median(shares) < FEW_SHARE
    return found


def _work(row: dict[str, Any]) -> Work | None:
    known = {name: row[name] for name in WORK_NAMES if name in row}
    return None if known[WORK_NAMES[0]] is None else Work(**known)


def _read(folder: Path, columns: list[str] | None) -> pa.Table:
    return pa.concat_tables(
        pq.read_table(path, columns=columns) for path in sorted(folder.glob("*.parquet"))
    )


if __name__ == "__main__":
    sys.exit(main())
