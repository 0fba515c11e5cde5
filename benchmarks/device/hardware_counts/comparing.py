"""How far counted work and hardware counters are apart.

Owns the assignment of counts to counters. An error is |counted - counter| ÷ counter; launches
where both are zero are left out. Floating-point operations are compared with the sum of
``fadd``, ``fmul`` and ``ffma`` (which counts twice), and in the same way for fp64. A division or a
root in the source becomes several such machine instructions. Therefore launches without
``special_ops`` have a line of their own.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.device.hardware_counts.ncu import COUNTERS

Row = Mapping[str, float]

COMPARED: Mapping[str, tuple[Callable[[Row], float], Callable[[Row], float]]] = {
    "fp operations": (
        lambda count: count["fp32_ops"] + count["fp64_ops"],
        lambda counter: (
            counter["fadd"] + counter["fmul"] + 2 * counter["ffma"]
            + counter["dadd"] + counter["dmul"] + 2 * counter["dfma"]
        ),
    ),
    "global load requests": (
        lambda count: count["global_load_requests"],
        lambda counter: counter["load_requests"],
    ),
    "global store requests": (
        lambda count: count["global_store_requests"],
        lambda counter: counter["store_requests"],
    ),
    "load sectors": (
        lambda count: count["global_load_sectors"],
        lambda counter: counter["load_sectors"],
    ),
    "store sectors": (
        lambda count: count["global_store_sectors"],
        lambda counter: counter["store_sectors"],
    ),
    "L2 sectors": (
        lambda count: count["global_load_sectors"] + count["global_store_sectors"],
        lambda counter: counter["l2_load_sectors"] + counter["l2_store_sectors"],
    ),
}  # fmt: skip
"""Functions that give each compared number from a launch's counts and from its counters."""
_KEPT = (
    "sample_id", "kernel_id", "name", "is_exact", "without_barriers", "special_ops", "group_bytes",
)  # fmt: skip
_FAR = 1.999
"""A count is "2x or more off" if counted / counter is at least this or at most its inverse. It is a
little less than 2 because of rounding errors."""


def compare(counters: Path, counts: Path, out: Path | None) -> str:
    """Return the summary as text, and write every compared launch to ``out``."""
    with counters.open(newline="") as stream:
        found = {row["sample_id"]: row for row in csv.DictReader(stream)}
    counted = {row["sample_id"]: row for row in pq.read_table(counts).to_pylist()}
    rows = []
    for sample_id, row in found.items():
        count = counted.get(sample_id)
        if is_without_counters(row) or count is None or count["reason"] is not None:
            continue
        counter = {name: float(row[name]) for name in COUNTERS}
        rows.append(_compared(row["device"], count, counter))
    if out is not None and rows:
        with out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    failed = sum(map(is_without_counters, found.values()))
    kernels = len({row["kernel_id"] for row in rows})
    lines = [f"{len(rows)} launches of {kernels} kernels compared; {failed} without counters"]
    for name in COMPARED:
        lines += _summary(name, rows)
    return "\n".join(lines)


def is_without_counters(row: Mapping[str, str]) -> bool:
    """Return whether ``ncu`` did not give all counters of a launch."""
    return bool(row["note"]) or not all(row[name] for name in COUNTERS)


def error_of(counted: float, counter: float) -> float | None:
    """Return |counted - counter| ÷ counter; None if both are 0, infinite if only the counter is."""
    if not counter:
        return None if not counted else math.inf
    return abs(counted - counter) / counter


def is_far(counted: float, counter: float) -> bool:
    """Return whether two numbers, not both zero, differ by a factor of two or more."""
    return not counted or not counter or not 1 / _FAR < counted / counter < _FAR


def _compared(device: str, count: dict[str, Any], counter: dict[str, float]) -> dict[str, Any]:
    row: dict[str, Any] = {"device": device, **{name: count[name] for name in _KEPT}}
    for name, (of_count, of_counter) in COMPARED.items():
        row[f"{name}, counted"] = of_count(count)
        row[f"{name}, counter"] = of_counter(counter)
    return row


def _summary(name: str, rows: list[dict[str, Any]]) -> list[str]:
    def line(label: str, chosen: list[dict[str, Any]]) -> str:
        pairs = [(row[f"{name}, counted"], row[f"{name}, counter"]) for row in chosen]
        errors = [one for pair in pairs if (one := error_of(*pair)) is not None]
        if not errors:
            return f"{name}{label}: none"
        far = sum(is_far(*pair) for pair in pairs if any(pair))
        within = sum(error <= 0.01 for error in errors)
        return (
            f"{name}{label}: {len(errors)} launches, median error {statistics.median(errors):.2%},"
            f" mean ratio of the middle half {_middle(pairs):.3f}, within 1 % {within / len(errors):.0%},"
            f" 2x or more off {far / len(errors):.1%}"
        )

    lines = [line("", rows)]
    if name == "fp operations":
        lines.append(line(" without special", [row for row in rows if not row["special_ops"]]))
    return lines


def _middle(pairs: list[tuple[float, float]]) -> float:
    ratios = sorted(counted / counter for counted, counter in pairs if counter)
    quarter = len(ratios) // 4
    return statistics.fmean(ratios[quarter : len(ratios) - quarter] or [math.nan])
