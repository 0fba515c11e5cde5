"""Quality of a finished ``llmperf collect`` on a GPU: rates, failures, drift, agreement of runs.

``python -m benchmarks.collecting.collect_quality DIR [--against OTHER] [--csv FILE] [--within-csv
FILE]``

Prints for one run:

* ok samples per second over the whole run and by minute, and the share of samples from 10 us on;
* failure codes, and the share of planned configs that faulted;
* kernels with an ok sample (of the kernels that the vendor's compiler accepted and whose arguments
  are supported);
* censored configs by regime and reason, the sentinel's drift, and throttled samples;
* by decade of the median: the spread of a sample's readings, and the ratio of first and cold
  launches to warm launches.

With ``--against`` it compares the samples that are ok in both runs. It prints by decade how far the
medians differ (in per cent of the first run's median), and the noise of the first run's readings.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.collecting.collectors.agreement import agreements
from llmperf_common.store.tables.reader import Dataset, open_dataset

_NOT_THE_KERNELS = {"build_error", "build_timeout", "compiler_crash", "unsupported"}


def main() -> int:
    """Read, sum up, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--against", type=Path, help="another run of the same configs")
    parser.add_argument("--csv", type=Path, help="file for the agreement by decade")
    parser.add_argument(
        "--within-csv", type=Path, help="file for the table within a run, by decade"
    )
    given = parser.parse_args()
    dataset = open_dataset(given.folder)
    columns = ["sample_id", "kernel_id", "status", "failure_detail", "regime", "median_ns", "iqr_ns", "first_ns", "cold_ns", "created_at", "throttled", "global_size"]  # fmt: skip
    rows = dataset.samples(columns).to_pylist()
    if not any(row["status"] == "ok" for row in rows):
        print(f"{given.folder} has no ok sample", file=sys.stderr)
        return 3
    _print_rates(given.folder, rows)
    _print_failures(rows)
    _print_drift(dataset, rows)
    _print_within(rows, given.within_csv)
    if given.against is not None:
        other = open_dataset(given.against).samples(["sample_id", "status", "median_ns"])
        _print_agreement(rows, other.to_pylist(), given.csv)
    return 0


def _print_rates(folder: Path, rows: list[dict[str, Any]]) -> None:
    ok = [row for row in rows if row["status"] == "ok"]
    at_s = np.array([row["created_at"].timestamp() for row in rows])
    events = [
        json.loads(line)
        for path in (folder / "events").glob("*.jsonl")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    began_s = min(one["at_s"] for one in events if one["event"] == "claimed")
    ok_s = np.array([row["created_at"].timestamp() for row in ok]) - began_s
    span_s = at_s.max() - began_s
    print(
        f"{len(ok)} ok of {len(rows)} rows in {span_s:.1f} s from the first claim to the last row: {len(ok) / span_s:.0f}/s"
    )
    edges = np.append(np.arange(0, span_s, 60), span_s)
    counts, _ = np.histogram(ok_s, bins=edges)
    rates = counts / np.diff(edges)
    print("ok/s by minute:", ", ".join(f"{rate:.0f}" for rate in rates))
    medians = np.array([row["median_ns"] for row in ok])
    print(f"from 10 us on: {np.mean(medians >= 1e4):.1%}; percentiles 10/25/50/75/90/99 (us):",
          ", ".join(f"{one / 1e3:.1f}" for one in np.percentile(medians, [10, 25, 50, 75, 90, 99])))  # fmt: skip


def _print_failures(rows: list[dict[str, Any]]) -> None:
    codes = Counter(row["status"] for row in rows)
    print("rows:", dict(codes.most_common()))
    details = Counter(
        (row["status"], (row["failure_detail"] or "")[:48]) for row in rows if row["status"] != "ok"
    )
    for (code, detail), count in details.most_common(12):
        print(f"  {count:6} {code}: {detail}")
    by_kernel: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        by_kernel[row["kernel_id"]].add(row["status"])
    accepted = [seen for seen in by_kernel.values() if not seen <= _NOT_THE_KERNELS]
    with_ok = sum("ok" in seen for seen in accepted)
    print(
        f"kernels: {len(by_kernel)}, accepted and supported {len(accepted)}, with ok samples {with_ok} ({with_ok / max(1, len(accepted)):.1%})"
    )
    planned = sum(bool(row["global_size"]) for row in rows)
    died = codes["device_fault"] + codes["hang"]
    print(f"configs that faulted or hung: {died} of {planned} ({died / max(1, planned):.2%})")
    for regime in ("idle_sm", "under_utilised", "fully_utilised"):
        of_it = [row for row in rows if row["regime"] == regime]
        censored = sum(row["status"] == "over_time_budget" for row in of_it)
        out_of = sum(
            "not reached" in (row["failure_detail"] or "")
            for row in of_it
            if row["status"] == "over_time_budget"
        )
        print(
            f"  {regime}: {len(of_it)} planned, {censored / max(1, len(of_it)):.1%} over_time_budget ({out_of / max(1, len(of_it)):.1%} by the task's budget)"
        )


def _print_drift(dataset: Dataset, rows: list[dict[str, Any]]) -> None:
    readings = sorted(dataset.sentinel(), key=lambda one: one.at_us)
    if readings:
        ns = np.array([one.median_ns for one in readings])
        third = max(1, len(ns) // 3)
        drift = np.median(ns[-third:]) / np.median(ns[:third]) - 1
        print(
            f"sentinel: {len(ns)} readings, median {np.median(ns) / 1e3:.2f} us, p5-p95 {np.percentile(ns, 5) / 1e3:.2f}-{np.percentile(ns, 95) / 1e3:.2f}, last third ÷ first third {drift:+.2%}"
        )
    known = [row["throttled"] for row in rows if row["throttled"] is not None]
    print(f"throttled: {sum(known)} of {len(known)} samples that NVML was read for")


def _print_within(rows: list[dict[str, Any]], path: Path | None) -> None:
    """Print the spread of readings, and first and cold against warm times, by decade."""
    by_decade: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] == "ok" and row["median_ns"] > 0:
            by_decade[math.floor(math.log10(row["median_ns"]))].append(row)
    table = []
    for decade, of_it in sorted(by_decade.items()):
        warm = np.array([row["median_ns"] for row in of_it])
        first = np.array([row["first_ns"] for row in of_it]) / warm
        cold = np.array(
            [np.median(row["cold_ns"]) / row["median_ns"] for row in of_it if row["cold_ns"]]
        )
        spread = np.median([row["iqr_ns"] / row["median_ns"] for row in of_it if row["iqr_ns"] is not None] or [math.nan])  # fmt: skip
        both = [np.quantile(one, share) if one.size else math.nan for one in (first, cold) for share in (0.5, 0.9)]  # fmt: skip
        table.append((f"1e{decade}", len(of_it), *(round(float(one), 4) for one in (spread, *both))))  # fmt: skip
    names = ("median_decade_ns", "configs", "iqr_by_median", "first_by_warm", "first_by_warm_p90", "cold_by_warm", "cold_by_warm_p90")  # fmt: skip
    print(" ".join(names))
    for line in table:
        print(" ".join(map(str, line)))
    if path is not None:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *table])


def _print_agreement(
    rows: list[dict[str, Any]], others: list[dict[str, Any]], path: Path | None
) -> None:
    first = {row["sample_id"]: row["median_ns"] for row in rows if row["status"] == "ok"}
    second = {row["sample_id"]: row["median_ns"] for row in others if row["status"] == "ok"}
    found = agreements("run and run", first, second)
    for one in found:
        print(
            f"{one.subset:24} {one.num_configs:7} configs: MAPE {one.mape_percent:5.2f} %, median APE {one.median_ape_percent:5.2f} %, p90 {one.p90_ape_percent:5.2f} %, signed {one.signed_percent:+.2f} %"
        )
    spread = {row["sample_id"]: row["iqr_ns"] / row["median_ns"] for row in rows if row["status"] == "ok" and row["iqr_ns"] is not None}  # fmt: skip
    print(f"within a run, interquartile range ÷ median: {np.median(list(spread.values())):.2%}")
    if path is not None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("subset", "configs", "mape_percent", "median_ape_percent", "p90_ape_percent", "signed_percent")
            )  # fmt: skip
            writer.writerows(
                (one.subset, one.num_configs, round(one.mape_percent, 4), round(one.median_ape_percent, 4), round(one.p90_ape_percent, 4), round(one.signed_percent, 4))
                for one in found
            )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
