"""How much faster several GPUs collected than one GPU.

``python -m benchmarks.cluster.gpu_scaling MANY ONE [--csv FILE]``

The arguments are dataset folders of ``llmperf collect --cluster`` over the same corpus. The last
run is the reference. The program reads only the events. For each run it prints the GPUs, the ok
samples, the seconds from the first claim to the last finished task, the ok samples per second, and
their ratio to those of the last run. For each GPU it prints the tasks, the ok samples, and the sum
of the GPU's turns (``turns_s``). A turn is the time in which one child process has the GPU; if the
child dies, its turn overlaps the next one. ``idle_at_end_s`` is the time from the end of the GPU's
last task to the end of the run.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = ("run", "gpu", "gpus", "tasks", "ok", "span_s", "ok_per_s", "ratio", "turns_s", "idle_at_end_s")  # fmt: skip


@dataclass(kw_only=True)
class Gpu:
    """What one card did; ``last_s`` is the end of its last task, in s since 1970."""

    num_tasks: int = 0
    num_ok: int = 0
    turns_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """The tasks and times of one run, read from the events of its dataset."""

    name: str
    first_s: float
    gpus: dict[str, Gpu] = field(default_factory=dict)

    @property
    def num_ok(self) -> int:
        """Ok samples of all cards."""
        return sum(one.num_ok for one in self.gpus.values())

    @property
    def span_s(self) -> float:
        """Seconds from the first claim to the last finished task."""
        return max(one.last_s for one in self.gpus.values()) - self.first_s

    @property
    def ok_per_s(self) -> float:
        """Ok samples per second, over the whole span."""
        return self.num_ok / self.span_s


def read_run(folder: Path) -> Run:
    """Read a dataset's events. Raises ValueError if no task of the dataset was finished."""
    events = [
        json.loads(line)
        for path in sorted((folder / "events").glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    gpus: dict[str, Gpu] = defaultdict(Gpu)
    for event in events:
        gpu = gpus[_gpu_of(event)]
        if event["event"] == "finished":
            gpu.num_tasks += 1
            gpu.num_ok += event["ok"]
            gpu.last_s = max(gpu.last_s, event["at_s"])
        elif event["event"] == "timed":
            gpu.turns_s += sum(ended_s - began_s for began_s, ended_s in event["turns"])
    at_work = {name: gpu for name, gpu in sorted(gpus.items()) if gpu.num_tasks}
    if not at_work:
        raise ValueError(f"{folder}/events: no task was finished")
    first_s = min(event["at_s"] for event in events if event["event"] == "claimed")
    return Run(name=folder.name, first_s=first_s, gpus=at_work)


def _gpu_of(event: dict[str, Any]) -> str:
    return str(event.get("seat") or event.get("worker_id") or "")


def rows_of(runs: list[Run]) -> list[tuple[object, ...]]:
    """Return a row for each run, followed by one row for each of the run's cards."""
    rows: list[tuple[object, ...]] = []
    for run in runs:
        ratio = run.ok_per_s / runs[-1].ok_per_s
        end_s = run.first_s + run.span_s
        tasks = sum(one.num_tasks for one in run.gpus.values())
        turns_s = sum(one.turns_s for one in run.gpus.values())
        rows.append((run.name, "all", len(run.gpus), tasks, run.num_ok, round(run.span_s, 2), round(run.ok_per_s, 1), round(ratio, 3), round(turns_s, 2), ""))  # fmt: skip
        rows += [
            (run.name, name, 1, one.num_tasks, one.num_ok, round(run.span_s, 2), round(one.num_ok / run.span_s, 1), "", round(one.turns_s, 2), round(end_s - one.last_s, 2))
            for name, one in run.gpus.items()
        ]  # fmt: skip
    return rows


def main() -> int:
    """Read, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    try:
        rows = rows_of([read_run(folder) for folder in given.folders])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 3
    for row in [COLUMNS, *rows]:
        print(*row)
    if given.csv is not None:
        with given.csv.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([COLUMNS, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
