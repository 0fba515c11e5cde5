"""Where a second GPU's children lose device time, by cause.

``python -m benchmarks.cluster.turns_by_cause MANY ONE [--lock-s 0.3] [--csv FILE]``

The arguments are two dataset folders of ``llmperf collect --cluster`` over the same corpus, on
several GPUs of a host and on one. The program reads only the events and compares the tasks that
were timed in both runs. For each group of tasks it prints the number of tasks, the seconds in turns
of both runs, and the difference in three parts: launch configs, buffers, and the rest of a turn.

The groups are tasks without a fault or hang in either run, split by whether a child process of
another GPU died beside them, and the other tasks. "Beside" means that a turn of the task overlaps
the last ``--lock-s`` seconds of a turn of a task with a fault or hang, because NVIDIA's driver then
holds a lock that all GPUs share. (The events do not say which of a task's turns had the fault.)
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLUMNS = ("group", "tasks", "many_turns_s", "one_turns_s", "configs_s", "buffers_s", "rest_s")
_DEATHS = frozenset({"device_fault", "hang"})


@dataclass(frozen=True, kw_only=True)
class Task:
    """One timed task: the GPU, its turns on the host's monotonic clock, and their parts in s."""

    gpu: str
    turns: tuple[tuple[float, float], ...]
    configs_s: float
    buffers_s: float
    has_death: bool

    @property
    def turns_s(self) -> float:
        """Seconds in which the task had the GPU."""
        return sum(ended_s - began_s for began_s, ended_s in self.turns)


def read_tasks(folder: Path) -> dict[str, Task]:
    """Return a dataset's timed and finished tasks by task id, read from its events."""
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for path in sorted((folder / "events").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            if event["event"] in ("timed", "finished"):
                found[event["task_id"]][event["event"]] = event
    return {
        task_id: _task(both["timed"], both["finished"])
        for task_id, both in found.items()
        if len(both) == 2
    }


def _task(timed: dict[str, Any], finished: dict[str, Any]) -> Task:
    return Task(
        gpu=timed.get("seat") or timed["worker_id"],
        turns=tuple((began_s, ended_s) for began_s, ended_s in timed["turns"]),
        configs_s=sum(wall_s for _, wall_s, _ in timed["decades"].values()),
        buffers_s=timed["buffers_s"],
        has_death=not _DEATHS.isdisjoint(finished["failed"]),
    )


def rows_of(
    many: dict[str, Task], one: dict[str, Task], *, lock_s: float
) -> list[tuple[object, ...]]:
    """Return a row for each group of tasks that both runs timed."""
    deadly = [task for task in many.values() if task.has_death]
    deaths = [(task.gpu, ended_s) for task in deadly for _, ended_s in task.turns]

    def group(task_id: str) -> str:
        task = many[task_id]
        if task.has_death or one[task_id].has_death:
            return "with a fault or hang"
        is_beside = any(
            gpu != task.gpu and ended_s - lock_s <= end_s and began_s <= ended_s
            for began_s, end_s in task.turns
            for gpu, ended_s in deaths
        )
        return "beside a death on another GPU" if is_beside else "others"

    groups: dict[str, list[tuple[Task, Task]]] = defaultdict(list)
    for task_id in many.keys() & one.keys():
        groups[group(task_id)].append((many[task_id], one[task_id]))
    groups["all"] = [pair for pairs in groups.values() for pair in pairs]
    return [(name, *_sums(pairs)) for name, pairs in sorted(groups.items())]


def _sums(pairs: Sequence[tuple[Task, Task]]) -> tuple[object, ...]:
    many_s, one_s = (sum(task.turns_s for task in run) for run in zip(*pairs, strict=True))
    configs_s = sum(a.configs_s - b.configs_s for a, b in pairs)
    buffers_s = sum(a.buffers_s - b.buffers_s for a, b in pairs)
    parts = (many_s, one_s, configs_s, buffers_s, many_s - one_s - configs_s - buffers_s)
    return (len(pairs), *(round(part, 2) for part in parts))


def main() -> int:
    """Read, compare, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("many", type=Path)
    parser.add_argument("one", type=Path)
    parser.add_argument("--lock-s", type=float, default=0.3)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    many, one = read_tasks(given.many), read_tasks(given.one)
    if not many.keys() & one.keys():
        print("no task was timed in both runs", file=sys.stderr)
        return 3
    rows = rows_of(many, one, lock_s=given.lock_s)
    for row in [COLUMNS, *rows]:
        print(*row, sep="\t")
    if given.csv is not None:
        with given.csv.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([COLUMNS, *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
