"""Where the wall time of a finished ``llmperf collect`` went, from its events.

``python -m benchmarks.collecting.where_time_goes DIR [--skip-s 5] [--csv FILE] [--tasks FILE]``

A turn is the time in which one run child (a process that launches kernels) has the device. The
program examines the time from the first turn to the last. It prints the share of this time in which
no run child had the device, because no kernel was compiled or loaded in time or the collector was
busy. Then it prints for the turns, by decade of the median: the configs, the wall time per config,
and the share of the wall time in which a timed launch ran (warm-ups, warm and cold readings; fills,
flushes and checks are not launches). The events must be of one collector, because the clocks of
several hosts differ.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def events_of(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the events of one kind of a dataset folder."""
    for path in sorted((folder / "events").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] == kind:
                yield event


def tasks_of(folder: Path) -> Iterator[tuple[float, int]]:
    """Yield for each finished task, in order, its seconds on the device and its rows."""
    seconds: dict[str, float] = defaultdict(float)
    for event in events_of(folder, "timed"):
        seconds[event["task_id"]] += sum(ended_s - began_s for began_s, ended_s in event["turns"])
    for event in events_of(folder, "finished"):
        yield (
            round(seconds.get(event["task_id"], 0.0), 6),
            event["ok"] + sum(event["failed"].values()),
        )


def idle_share(turns: Sequence[tuple[float, float]]) -> float:
    """Return the share of the time from the first begin to the last end that is in no turn.

    >>> idle_share([(0.0, 1.0), (2.0, 4.0)])
    0.25
    """
    covered_s, reached_s = 0.0, turns[0][0]
    for began_s, ended_s in sorted(turns):
        covered_s += max(0.0, ended_s - max(began_s, reached_s))
        reached_s = max(reached_s, ended_s)
    whole_s = reached_s - min(began_s for began_s, _ in turns)
    return 1 - covered_s / whole_s if whole_s else 0.0


def main() -> int:
    """Read, sum up, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="dataset folder of the run")
    parser.add_argument(
        "--skip-s", type=float, default=0.0, help="leave out this many seconds at the start"
    )
    parser.add_argument("--csv", type=Path, help="file for the table by decade")
    parser.add_argument(
        "--tasks", type=Path, help="file for the device seconds and rows of each task"
    )
    given = parser.parse_args()
    events = list(events_of(given.folder, "timed"))
    if not events:
        print(f"{given.folder}/events has no timed task", file=sys.stderr)
        return 3
    start_s = min(began_s for event in events for began_s, _ in event["turns"]) + given.skip_s
    events = [event for event in events if event["turns"][0][0] >= start_s]
    turns = [(began_s, ended_s) for event in events for began_s, ended_s in event["turns"]]
    whole_s = max(ended_s for _, ended_s in turns) - min(began_s for began_s, _ in turns)
    in_turns_s = sum(ended_s - began_s for began_s, ended_s in turns)
    decades: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = defaultdict(lambda: np.zeros(3))
    for event in events:
        for decade, share in event["decades"].items():
            decades[decade] += share
    num_configs, config_s, launched_s = sum(decades.values(), np.zeros(3))
    print(
        f"{len(events)} tasks, {num_configs:.0f} launched configs in {whole_s:.1f} s ({num_configs / whole_s:.0f}/s)"
    )
    print(f"device idle: {100 * idle_share(turns):.1f} % of the time")
    print(
        f"in turns, outside configs (clocks, freeing, sentinel): {100 * (in_turns_s - config_s) / whole_s:.1f} %"
    )
    print(f"timed launches ran: {100 * launched_s / whole_s:.1f} %")
    loading = [event["loaded_s"] - event["sent_s"] for event in events]
    waiting = [max(0.0, event["turns"][-1][0] - event["loaded_s"]) for event in events]
    for what, spans in (("loading", loading), ("waiting for the turn", waiting)):
        print(
            f"{what}: median {1e3 * np.median(spans):.1f} ms, "
            f"p90 {1e3 * np.quantile(spans, 0.9):.1f} ms a task"
        )
    table = [
        (decade, int(count), wall_s, 1e3 * wall_s / count, launched / wall_s if wall_s else 0.0)
        for decade, (count, wall_s, launched) in sorted(decades.items())
    ]
    print("median ns    configs    wall s   ms/config  launches' share")
    for decade, count, wall_s, each_ms, share in table:
        print(f"{decade:>9} {count:10d} {wall_s:9.2f} {each_ms:11.3f} {share:16.3f}")
    if given.csv:
        with given.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("median_decade_ns", "configs", "wall_s", "ms_per_config", "launch_share")
            )
            writer.writerows(table)
    if given.tasks:
        with given.tasks.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("task_s", "rows"), *tasks_of(given.folder)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
