"""How much memory and processor time the processes of a run use, and whether memory grows by task.

``python -m benchmarks.collecting.process_memory --out FILE.csv [--every-s 2] -- collect --corpus …
--out DIR …``

Runs ``llmperf`` with the words after ``--`` and repeatedly writes the memory, the processor time
and the number of open descriptors of each of its processes. A role is the collector or one kind of
child process. For each role the program prints the number of processes, the maximum memory of one
process, the processor time of all (in total and per task), and the growth per task of the processes
that lived during at least a hundred tasks. It also prints the number of children that were zombies
in two consecutive readings. The processor time of a process after its last reading is missing, so
take readings often.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

_CHILD_PREFIX = "workers."
_TASKS_TO_JUDGE = 100
_WARM_UP_TASKS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One process at one time; ``num_tasks`` is the number of tasks finished by then."""

    num_tasks: int
    rss_bytes: int
    num_descriptors: int
    processor_s: float = 0.0
    """User and system time of the process since its start."""


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A run's readings by (role, pid); roles are ``collector`` and the children's modules."""

    readings: dict[tuple[str, int], list[Reading]] = field(
        default_factory=lambda: defaultdict(list)
    )
    lasting_zombies: set[int] = field(default_factory=set)
    """Processes that were zombies in two consecutive readings."""

    def of(self, role: str) -> dict[int, list[Reading]]:
        """Return the readings of one role by process."""
        return {pid: found for (one, pid), found in self.readings.items() if one == role}

    def lived_long(self, *, num_tasks: int) -> Iterator[tuple[str, int, list[Reading]]]:
        """Yield the processes that lived during at least ``num_tasks`` tasks."""
        for (role, pid), found in self.readings.items():
            if found[-1].num_tasks - found[0].num_tasks >= num_tasks:
                yield role, pid, found


def watch(process: subprocess.Popen[str], events: Path, *, every_s: float, into: Watched) -> None:
    """Take readings of a run's processes until it ends; ``events`` is its folder of events."""
    parent = psutil.Process(process.pid)
    counter = _TaskCounter(events)
    before: set[int] = set()
    while process.poll() is None:
        zombies: set[int] = set()
        num_tasks = counter.count()
        try:
            tree = [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for one in tree:
            try:
                role = "collector" if one.pid == process.pid else _role(one.cmdline())
                reading = Reading(
                    num_tasks=num_tasks,
                    rss_bytes=one.memory_info().rss,
                    num_descriptors=one.num_fds(),
                    processor_s=sum(one.cpu_times()[:2]),
                )
            except psutil.ZombieProcess:
                zombies.add(one.pid)
                continue
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            if reading.num_descriptors:  # otherwise the process is just ending
                into.readings[role, one.pid].append(reading)
        into.lasting_zombies.update(zombies & before)
        before = zombies
        time.sleep(every_s)


def bytes_a_task(readings: Sequence[Reading], *, warm_up: int) -> float:
    """Return the growth per task after ``warm_up`` tasks, in bytes.

    It is the median slope between two readings (Theil and Sen). A leak shows in nearly every pair
    of readings. An allocator that takes or returns some pages once shows in fewer than half of the
    pairs. The result is NaN, which is below no bound, if no task finished between two readings.

    >>> found = [Reading(num_tasks=n, rss_bytes=100 + 2 * n, num_descriptors=3) for n in range(50)]
    >>> bytes_a_task(found, warm_up=10)
    2.0
    """
    late = steady(readings, warm_up=warm_up)
    tasks = np.array([one.num_tasks for one in late], dtype=float)
    rss = np.array([one.rss_bytes for one in late], dtype=float)
    first, second = np.triu_indices(len(late), k=1)
    apart = tasks[second] > tasks[first]
    slopes = (rss[second] - rss[first])[apart] / (tasks[second] - tasks[first])[apart]
    return float(np.median(slopes)) if slopes.size else float("nan")


def descriptors_gained(readings: Sequence[Reading], *, warm_up: int) -> float:
    """Return by how much the median of descriptors grew from the first to the second half.

    >>> found = [Reading(num_tasks=n, rss_bytes=1, num_descriptors=4 + n // 10) for n in range(100)]
    >>> descriptors_gained(found, warm_up=10)
    4.0
    """
    counts = [one.num_descriptors for one in steady(readings, warm_up=warm_up)]
    half = len(counts) // 2
    return float(np.median(counts[half:]) - np.median(counts[:half]))


def steady(readings: Sequence[Reading], *, warm_up: int) -> list[Reading]:
    """Return the readings without a process's first tasks and the time after its last task."""
    first, last = readings[0].num_tasks + warm_up, readings[-1].num_tasks
    return [one for one in readings if first <= one.num_tasks < last]


def _role(command: Sequence[str]) -> str:
    return next((word for word in command if word.startswith(_CHILD_PREFIX)), "other")


class _TaskCounter:
    """Counts finished tasks in a growing event file, each line once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._count = 0

    def count(self) -> int:
        for path in self._folder.glob("*"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                text = file.read()
                self._offsets[path] = file.tell()
            self._count += text.count(b'"event": "finished"')
        return self._count


def main() -> int:
    """Run the command, watch it, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--every-s", type=float, default=2.0)
    parser.add_argument("words", nargs="+", help="the arguments of llmperf")
    given = parser.parse_args()
    data = Path(given.words[given.words.index("--out") + 1])
    entry = "from llmperf.cli.main import run; run()"
    watched = Watched()
    with subprocess.Popen([sys.executable, "-c", entry, *given.words], text=True) as process:
        watch(process, data / "events", every_s=given.every_s, into=watched)
    with given.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("role", "pid", "num_tasks", "rss_bytes", "num_descriptors", "processor_s"))
        for (role, pid), found in sorted(watched.readings.items()):
            writer.writerows(
                (
                    role,
                    pid,
                    one.num_tasks,
                    one.rss_bytes,
                    one.num_descriptors,
                    round(one.processor_s, 2),
                )
                for one in found
            )
    _print(watched)
    return process.returncode


def _print(watched: Watched) -> None:
    num_tasks = max((found[-1].num_tasks for found in watched.readings.values()), default=0)
    for role in sorted({role for role, _ in watched.readings}):
        found = watched.of(role)
        most = max(one.rss_bytes for readings in found.values() for one in readings)
        spent_s = sum(readings[-1].processor_s for readings in found.values())
        print(
            f"{role}: {len(found)} processes, at most {most / 2**20:.0f} MiB each, "
            f"{spent_s:.1f} s of processor time, {spent_s / max(1, num_tasks):.2f} s a task"
        )
    for role, pid, readings in watched.lived_long(num_tasks=_TASKS_TO_JUDGE):
        late = steady(readings, warm_up=_WARM_UP_TASKS)
        if len({one.num_tasks for one in late}) < 2:
            continue
        slope = bytes_a_task(readings, warm_up=_WARM_UP_TASKS)
        gained = descriptors_gained(readings, warm_up=_WARM_UP_TASKS)
        first, last = late[0].rss_bytes / 2**20, late[-1].rss_bytes / 2**20
        print(
            f"{role} {pid}: {readings[-1].num_tasks - readings[0].num_tasks} tasks, {first:.0f} to {last:.0f} MiB, "
            f"{slope / 1024:.2f} KiB a task, {gained:+g} descriptors"
        )
    print(f"lasting zombies: {len(watched.lasting_zombies)}")


if __name__ == "__main__":
    sys.exit(main())
