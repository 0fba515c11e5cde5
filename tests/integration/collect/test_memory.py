"""Memory stays flat: over a thousand tasks on the replay device, fewer on a CPU device, four thousand parsed sources."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from benchmarks.collecting.process_memory import (
    Reading,
    Watched,
    bytes_a_task,
    descriptors_gained,
    steady,
    watch,
)
from tests.support.collecting import KERNELS, Collect, replay_file, write_kernels
from workers.discovery.find import NoDevice, choose

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

KIB, MIB = 2**10, 2**20
NUM_REPLAY_TASKS = 1500
NUM_SETTLING_TASKS = 500
"""The collector's allocator takes its last pages at the third or fourth commit: half a second each, some hundred tasks."""
NUM_CPU_TASKS = 60
FEWEST = (
    "--samples-per-kernel", "2",
    "--set", "timing.spin_up_ms=0",
    "--set", "timing.sample_budget_ms=1",
    "--set", "plan.max_work_items=4096",
    "--set", "plan.max_groups_per_unit=21",
    "--set", "plan.local_sizes=few",
    "--set", "store.commit_interval_s=0.5",
    "--set", "store.publish_interval_s=0.5",
)  # fmt: skip


def watched(folder: Path, num_tasks: int, device: str) -> Watched:
    corpus = write_kernels(folder / "kernels", [f"k{number:03d}" for number in range(num_tasks)])
    process = Collect(corpus, folder / "data", device, FEWEST).start()
    found = Watched()
    watch(process, folder / "data" / "events", every_s=0.05, into=found)
    _, err = process.communicate()
    assert process.returncode == 0, err
    return found


def settling_bytes(readings: list[Reading]) -> int:
    """Return how much a process grew from its hundredth task to the end of the warm-up: a few steps, and no more."""
    first = readings[0].num_tasks
    early = [
        one.rss_bytes for one in readings if 100 <= one.num_tasks - first <= NUM_SETTLING_TASKS
    ]
    return max(early) - early[0]


def tell(found: Watched, warm_up: int, least: int) -> Iterator[str]:
    """Yield a line for each process that lived long: kept in the test's output as the record."""
    for role, pid, readings in found.lived_long(num_tasks=least):
        slope = bytes_a_task(readings, warm_up=warm_up)
        peak = max(one.rss_bytes for one in readings) / MIB
        descriptors = {one.num_descriptors for one in steady(readings, warm_up=warm_up)}
        yield (
            f"{role} {pid}: {slope / KIB:.2f} KiB a task, peak {peak:.0f} MiB, "
            f"{min(descriptors)}-{max(descriptors)} descriptors"
        )


def test_memory_is_flat_over_1000_tasks_on_the_replay_device(tmp_path: Path) -> None:
    found = watched(tmp_path, NUM_REPLAY_TASKS, replay_file(tmp_path / "r.json"))
    warm_up = NUM_SETTLING_TASKS
    print(*tell(found, warm_up, 1200), sep="\n")
    seen = set()
    for role, _, readings in found.lived_long(num_tasks=1200):
        seen.add(role)
        assert bytes_a_task(readings, warm_up=warm_up) < 4 * KIB, role
        assert settling_bytes(readings) < 16 * MIB, role
        assert descriptors_gained(readings, warm_up=100) <= 1, f"{role} leaks descriptors"
    assert {"collector", "workers.measure.run_child", "workers.execution.compile_child"} <= seen


@pytest.mark.nightly  # minutes: each of its tasks is built
def test_memory_is_flat_on_a_cpu_device(tmp_path: Path) -> None:
    chosen = choose("cpu")
    if isinstance(chosen, NoDevice):
        pytest.skip(
            f"no CPU OpenCL device: its children's memory is NOT tested: {chosen.message()}"
        )
    # Every task is committed by itself: what the first commit takes once, 2 to 3 MiB, lies in the warm-up on any machine.
    found = watched(tmp_path, NUM_CPU_TASKS, "cpu")
    print(*tell(found, 10, 40), sep="\n")
    roles = {role: readings for role, _, readings in found.lived_long(num_tasks=40)}
    assert bytes_a_task(roles["collector"], warm_up=10) < 32 * KIB
    # PoCL keeps something of every program that it has built: measured 17 KiB.
    assert bytes_a_task(roles["workers.execution.compile_child"], warm_up=10) < 128 * KIB
    # Run children live for one task here: later ones are no larger than earlier ones.
    peaks = [
        max(one.rss_bytes for one in rs) for rs in found.of("workers.measure.run_child").values()
    ]
    assert len(peaks) >= NUM_CPU_TASKS
    half = len(peaks) // 2
    assert sum(peaks[half:]) / (len(peaks) - half) < 1.1 * sum(peaks[:half]) / half


@pytest.mark.nightly
def test_a_parse_child_is_flat_over_4000_sources() -> None:
    """One child reads our kernels again and again: what it keeps does not depend on how often."""
    jobs = [
        json.dumps({"source": path.read_text(encoding="utf-8"), "build_options": ""})
        for path in sorted(KERNELS.glob("*.cl"))
    ]
    readings = list(parse_child_readings(jobs, num_sources=4000))
    # It grows from 77 to 105 MiB over its first 1,500 sources, which is each of ours read 19 times.
    slope = bytes_a_task(readings, warm_up=1600)
    print(
        f"parse child: {slope / KIB:.2f} KiB a source, {readings[-1].rss_bytes / MIB:.0f} MiB at the end"
    )
    assert slope < 4 * KIB  # fragmentation: 1.5 measured


def parse_child_readings(jobs: list[str], *, num_sources: int) -> Iterator[Reading]:
    """Yield the size of one parse child after every twenty sources."""
    command = [sys.executable, "-m", "workers.source.parse_child", str(os.getpid())]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        process = psutil.Process(child.pid)
        for number, job in enumerate(itertools.islice(itertools.cycle(jobs), num_sources)):
            child.stdin.write(job + "\n")
            child.stdin.flush()
            assert "kernels" in json.loads(child.stdout.readline())
            if number % 20 == 0:
                yield Reading(
                    num_tasks=number,
                    rss_bytes=process.memory_info().rss,
                    num_descriptors=process.num_fds(),
                )
        child.stdin.close()
