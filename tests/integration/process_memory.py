"""How much memory the processes of a run hold while its tasks go by, and whether that grows."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

_CHILD_PREFIX = "workers."


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One process at one moment; ``num_tasks`` had finished by then."""

    num_tasks: int
    rss_bytes: int
    num_descriptors: int


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A run's readings by (role, pid); roles are ``collector`` and the children's modules."""

    readings: dict[tuple[str, int], list[Reading]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def of(self, role: str) -> dict[int, list[Reading]]:
        """Readings by process of one role."""
        return {pid: found for (one, pid), found in self.readings.items() if one == role}

    def lived_long(self, *, num_tasks: int) -> Iterator[tuple[str, int, list[Reading]]]:
        """Yield the processes that saw at least so many tasks go by."""
        for (role, pid), found in self.readings.items():
            if found[-1].num_tasks - found[0].num_tasks >= num_tasks:
                yield role, pid, found


def watch(process: subprocess.Popen[str], events: Path, *, every_s: float, into: Watched) -> None:
    """Take readings of a run's process tree until it ends; ``events``: its folder of event files."""
    parent = psutil.Process(process.pid)
    counter = _TaskCounter(events)
    while process.poll() is None:
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
                )
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
            if reading.num_descriptors:  # else it is just ending
                into.readings[role, one.pid].append(reading)
        time.sleep(every_s)


def bytes_a_task(readings: Sequence[Reading], *, warm_up: int) -> float:
    """Return the slope of a straight line through the readings after ``warm_up`` tasks.

    Readings after the last task are left out: then the collector counts the whole dataset, once.

    >>> found = [Reading(num_tasks=n, rss_bytes=100 + 2 * n, num_descriptors=3) for n in range(50)]
    >>> round(bytes_a_task(found, warm_up=10), 6)
    2.0
    """
    first, last = readings[0].num_tasks + warm_up, readings[-1].num_tasks
    late = [one for one in readings if first <= one.num_tasks < last]
    tasks = np.array([one.num_tasks for one in late], dtype=float)
    rss = np.array([one.rss_bytes for one in late], dtype=float)
    return float(np.polyfit(tasks, rss, 1)[0])


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
