"""The tables of the finished stages: ``results.csv``, ``agreement.csv`` and ``medians.csv``."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.collecting.collectors.agreement import Agreement, agreements
from benchmarks.collecting.collectors.comparison import PLAIN_AGAIN, Comparison
from benchmarks.collecting.collectors.log import read_log, rows_of
from benchmarks.collecting.collectors.ours import Collected
from benchmarks.collecting.collectors.rates import Rate, Stretch, TimedRow, class_rates, shares_s
from benchmarks.collecting.collectors.slicing import analysed_share
from benchmarks.collecting.run_offsets import write_medians

BARS = {
    ("a", "whole"): 150.0,
    ("b", "whole"): 10.0,
    ("c", "below_100_us"): 1.5,
    ("c", "common"): 1.1,
}
"""The ratio ours / part that must be reached, by part and subset."""


def rates(comparison: Comparison) -> list[Rate]:
    """Return the rates of all parts that have run, LLMPerf's first."""
    found = [
        _collected_rate(name, comparison)
        for name in ("screen", "ours", "repeat")
        if name in comparison.stages
    ]
    if "ours" not in comparison.stages:
        return found
    for part in ("a", "b", "c", PLAIN_AGAIN):
        run = comparison.part_run(part)
        if run is None or run.problem:
            continue
        lines = read_log(comparison.log_path(part))
        rows = rows_of(lines)
        whole = Rate(
            part=part,
            subset="whole",
            kernels=len({row["kernel_id"] for row in rows}),
            configs=len(rows),
            ok=len(_ok(rows)),
            wall_s=run.wall_s - _sum(rows, "input_s"),
            work_s=0.0,
            failures=_failures(rows),
            deaths=run.deaths,
            is_cut=run.is_cut,
            input_s=_sum(rows, "input_s"),
        )
        found += _part_rates(comparison, whole, lines, rows)
    return found


def agreement_rows(comparison: Comparison) -> list[Agreement]:
    """Return how LLMPerf agrees with every other part, and with its own second run."""
    if "ours" not in comparison.stages:
        return []
    ours = _medians(comparison.ours.rows)
    refilled = frozenset(
        launch.sample_id
        for job in comparison.work.jobs
        if job.needs_refill
        for launch in job.launches
    )
    found: list[Agreement] = []
    for name in ("screen", "repeat"):
        if name in comparison.stages:
            again = _medians(comparison.collected(name).rows)
            found += agreements(f"ours and {name}", ours, again)
    for part in ("c", "b", "a"):
        rows = rows_of(read_log(comparison.log_path(part)))
        found += agreements(f"ours and {part}", ours, _medians(rows), refilled=refilled)
        if "repeat" in comparison.stages:
            again = _medians(comparison.collected("repeat").rows)
            found += agreements(f"repeat and {part}", again, _medians(rows), refilled=refilled)
        if part == "b":
            means = {row["sample_id"]: row["mean_ns"] for row in _ok(rows)}
            found += agreements("ours and b (mean)", ours, means, refilled=refilled)
    if PLAIN_AGAIN in comparison.stages:
        plain, plain_again = (_plain_medians(comparison, part) for part in ("c", PLAIN_AGAIN))
        found += agreements("c and c again", plain, plain_again, refilled=refilled)
        found += agreements("ours and c again", ours, plain_again, refilled=refilled)
    return found


def write_run_medians(path: Path, comparison: Comparison) -> None:
    """Write ``medians.csv``: medians in ns of the runs of ours and (c), for ``run_offsets``."""
    order = ("screen", "ours", "c", "repeat", PLAIN_AGAIN)
    runs: dict[str, dict[str, float]] = {}
    for number, name in enumerate(order):
        if name in ("c", PLAIN_AGAIN) and name in comparison.stages:
            runs[f"{number:02}_plain"] = _plain_medians(comparison, name)
        elif name in comparison.stages:
            runs[f"{number:02}_ours"] = _medians(comparison.collected(name).rows)
    kernels = {row["sample_id"]: row["kernel_id"] for row in comparison.ours.rows}
    write_medians(path, runs, kernels)


def _plain_medians(comparison: Comparison, part: str) -> dict[str, float]:
    return _medians(rows_of(read_log(comparison.log_path(part))))


def write_results(path: Path, found: Sequence[Rate], comparison: Comparison) -> None:
    """Write ``results.csv``: each rate, the ratio ours / rate, and facts of the run."""
    (device,) = comparison.ours.dataset.devices().to_pylist()
    facts = {
        "analysed_before": f"{analysed_share(comparison.kept):.3f}",
        "device_class": device["device_class"],
        "driver": device["driver"],
    }
    rows = []
    for one in found:
        wall, work = _ratios(one, found)
        values = dataclasses.asdict(one) | {
            "ok_per_wall_s": one.ok_per_wall_s,
            "ok_per_work_s": one.ok_per_work_s,
            "ratio_wall": wall,
            "ratio_work": work,
        }
        rows.append({name: _text(value) for name, value in values.items()} | facts)
    _write(path, rows)


def write_agreement(path: Path, found: Sequence[Agreement]) -> None:
    """Write ``agreement.csv``."""
    _write(path, [{k: _text(v) for k, v in dataclasses.asdict(one).items()} for one in found])


def summary(
    found: Sequence[Rate], agreed: Sequence[Agreement], comparison: Comparison
) -> Iterator[str]:
    """Yield the lines of a compact table."""
    reasons = Counter(row["reason"] for row in comparison.excluded())
    left = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common()) or "none"
    yield f"{len(comparison.kept.kernels)} kernels, left out: {left}; analysed before: {analysed_share(comparison.kept):.0%}"
    yield f"{'part':7} {'subset':13} {'kernels':>7} {'configs':>7} {'ok':>7} {'wall s':>8} {'work s':>8} {'ok/wall':>8} {'ok/work':>8} {'ours/it':>8} {'(work)':>8} {'bar':>6}  failures"
    for one in found:
        wall, work = _ratios(one, found)
        bar = BARS.get((one.part, one.subset))
        notes = [
            one.failures,
            f"deaths {one.deaths}" if one.deaths else "",
            "CUT" if one.is_cut else "",
        ]
        yield (
            f"{one.part:7} {one.subset:13} {one.kernels:7} {one.configs:7} {one.ok:7} {_short(one.wall_s)}"
            f" {_short(one.work_s)} {_short(one.ok_per_wall_s)} {_short(one.ok_per_work_s)} {_short(wall)}"
            f" {_short(work)} {bar or '':>6}  {'; '.join(note for note in notes if note)}"
        )
    yield f"{'pair':18} {'subset':25} {'n':>6} {'MAPE':>7} {'median':>7} {'p90':>7} {'signed':>7}  (%)"
    for row in agreed:
        yield (
            f"{row.pair:18} {row.subset:25} {row.num_configs:6} {row.mape_percent:7.2f}"
            f" {row.median_ape_percent:7.2f} {row.p90_ape_percent:7.2f} {row.signed_percent:+7.2f}"
        )


def _part_rates(
    comparison: Comparison,
    whole: Rate,
    lines: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
) -> list[Rate]:
    if whole.part == "a":
        return [dataclasses.replace(whole, work_s=whole.wall_s or 0.0)]
    if whole.part == "b":
        own = dataclasses.replace(
            whole,
            subset="own clock",
            wall_s=None,
            work_s=_sum(rows, "own_s"),
            note="compile, benchmark and framework time as kernel_tuner counts them, behind its warm-up",
        )
        return [dataclasses.replace(whole, work_s=_sum(rows, "call_s")), own]
    stretches = _stretches(lines)
    whole = dataclasses.replace(whole, work_s=sum(one.seconds for one in stretches))
    if whole.part == PLAIN_AGAIN:
        return [whole]
    ours = comparison.ours
    medians = {row["sample_id"]: row["median_ns"] for row in _ok(ours.rows)}
    kernels = {row["sample_id"]: row["kernel_id"] for row in ours.rows}
    common = [row["sample_id"] for row in _ok(rows) if row["sample_id"] in medians]
    mine = class_rates("ours", shares_s([ours.stretch]), medians, kernels, common=common)
    theirs = class_rates("c", shares_s(stretches), medians, kernels, common=common)
    return [whole, *(one for pair in zip(mine, theirs, strict=True) for one in pair)]


def _collected_rate(name: str, comparison: Comparison) -> Rate:
    collected = comparison.ours if name == "ours" else comparison.collected(name)
    return Rate(
        part=name,
        subset="whole",
        kernels=len({row["kernel_id"] for row in collected.rows}),
        configs=len(collected.rows),
        ok=len(_ok(collected.rows)),
        wall_s=comparison.stages[name]["wall_s"],
        work_s=collected.work_s,
        failures=_failures(collected.rows),
        is_cut=_is_cut(collected, comparison, name),
    )


def _is_cut(collected: Collected, comparison: Comparison, name: str) -> bool:
    return (
        comparison.stages[name]["exit_code"] != 0
        or collected.dataset.num_tasks < collected.dataset.run.num_tasks
    )


def _stretches(lines: Sequence[Mapping[str, Any]]) -> list[Stretch]:
    """Return the stretch of each process of a part, from the time at which it was ready."""
    starts = [index for index, line in enumerate(lines) if "ready" in line]
    found = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        rows = tuple(
            TimedRow(kernel_id=line["kernel_id"], sample_id=line["sample_id"], end_s=line["at_s"])
            for line in lines[start:end]
            if "sample_id" in line
        )
        found.append(Stretch(start_s=lines[start]["at_s"], rows=rows))
    return found


def _ratios(one: Rate, found: Sequence[Rate]) -> tuple[float | None, float | None]:
    """Return LLMPerf's rate / this rate by wall and work time, of the same subset if it has one."""
    mine = [rate for rate in found if rate.part == "ours"]
    same = [rate for rate in mine if rate.subset == one.subset] or mine[:1]
    if not same or one.part in ("ours", "screen", "repeat"):
        return None, None
    (ours, *_) = same
    return _divided(ours.ok_per_wall_s, one.ok_per_wall_s), _divided(
        ours.ok_per_work_s, one.ok_per_work_s
    )


def _divided(over: float | None, under: float | None) -> float | None:
    return over / under if over and under else None


def _ok(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["status"] == "ok"]


def _medians(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the medians of the configs whose launches were timed one by one."""
    return {
        row["sample_id"]: row["median_ns"]
        for row in _ok(rows)
        if row.get("launches_per_reading", 1) == 1
    }


def _failures(rows: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter(row["status"] for row in rows if row["status"] != "ok")
    return " ".join(f"{status}:{count}" for status, count in counts.most_common())


def _sum(rows: Iterable[Mapping[str, Any]], key: str) -> float:
    return float(sum(row.get(key, 0.0) for row in rows))


def _text(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value


def _short(value: float | None) -> str:
    return f"{'' if value is None else f'{value:.2f}':>8}"


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]) if rows else ["nothing"])
        writer.writeheader()
        writer.writerows(rows)
