"""One chaos run: collect, kill a process after every N-th committed shard, start again, compare.

Owns the loop of kills and the comparison. The collector is the real command on a real device; nothing in it
knows that it is being killed.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.files.location import Location, open_filesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import Collect, descendants, is_running, kill

VICTIMS = ("parent", "run_child", "compile_child", "analysis_child")


@dataclass
class ChaosReport:
    """What happened. ``problems`` must be empty."""

    kills: Counter[str] = field(default_factory=Counter)
    left_out: tuple[str, ...] = ()
    """Kinds of fault that this machine cannot do."""
    starts: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    """How often a driver ended with which exit status."""
    samples: int = 0
    tasks: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def run_chaos(command: Collect, *, num_kills: int, every_shards: int, seed: int) -> ChaosReport:
    """Run ``command`` to its end through ``num_kills`` SIGKILLs.

    Args:
        command: the collect; its dataset must have more than ``num_kills * every_shards`` commits.
        num_kills: kills in all, victims in turn.
        every_shards: committed shards between two kills.
        seed: of the moment after the shard at which the signal is sent.
    """
    report = ChaosReport()
    started_s = time.monotonic()
    chance = random.Random(seed)
    seen: dict[str, tuple[float, ...] | None] = {}
    process = _start(command, report)
    for victim in itertools.islice(itertools.cycle(VICTIMS), num_kills):
        process = _await_shards(command, process, every_shards, report)
        time.sleep(chance.random() * 0.2)
        seen |= committed(command.out)
        orphans = descendants(process.pid)
        if not _kill(process, victim):
            continue
        report.kills[victim] += 1
        if victim == "parent":
            process.communicate()
            _expect_gone(orphans, report)
            process = _start(command, report)
        compare(seen, committed(command.out), report)
    process = _finish(command, process, report)
    compare(seen, committed(command.out), report)
    final_checks(command.out, report)
    report.seconds = time.monotonic() - started_s
    return report


def committed(out: Location) -> dict[str, tuple[float, ...] | None]:
    """Return (sample id -> readings) of everything that a manifest lists now."""
    if latest_manifest(open_filesystem(out)) is None:
        return {}
    return readings_of(open_dataset(out).samples(["sample_id", "time_ns"]))


def readings_of(samples: pa.Table) -> dict[str, tuple[float, ...] | None]:
    """Return (sample id -> readings) of a table of samples."""
    rows = samples.select(["sample_id", "time_ns"]).to_pylist()
    return {row["sample_id"]: tuple(row["time_ns"]) if row["time_ns"] else None for row in rows}


def _start(command: Collect, report: ChaosReport) -> subprocess.Popen[str]:
    report.starts += 1
    return command.start()


def _await_shards(
    command: Collect, process: subprocess.Popen[str], num_shards: int, report: ChaosReport
) -> subprocess.Popen[str]:
    """Wait for so many more published shards; start again if the collector ends before."""
    goal = _num_shards(command.out) + num_shards
    while _num_shards(command.out) < goal:
        if process.poll() is not None:
            out, err = process.communicate()
            if process.returncode != 0:
                report.problems.append(f"a collector ended with {process.returncode}: {out}{err}")
            if _num_shards(command.out) < goal:
                return process  # complete: nothing more will come
        time.sleep(0.02)
    return process


def _num_shards(out: Path) -> int:
    manifest = latest_manifest(PosixFilesystem(out))
    return len(manifest.of_table("samples")) if manifest else 0


def _kill(process: subprocess.Popen[str], victim: str) -> bool:
    if process.poll() is not None:
        return False
    if victim == "parent":
        kill(process.pid)
        return True
    targets = list(_children_named(process.pid, victim))
    for pid in targets:
        kill(pid)
    return bool(targets)


def _children_named(pid: int, name: str) -> Iterator[int]:
    for child in descendants(pid):
        try:
            if name in Path(f"/proc/{child}/cmdline").read_text(errors="replace"):
                yield child
        except OSError:
            continue


def _expect_gone(pids: list[int], report: ChaosReport) -> None:
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            alive = [pid for pid in pids if is_running(pid)]
            report.problems.append(f"orphans after SIGKILL of the parent: {alive}")
            return
        time.sleep(0.02)


def compare(
    before: dict[str, tuple[float, ...] | None],
    after: dict[str, tuple[float, ...] | None],
    report: ChaosReport,
) -> None:
    lost = [sample for sample in before if sample not in after]
    changed = [s for s, readings in before.items() if s in after and after[s] != readings]
    if lost:
        report.problems.append(f"{len(lost)} committed samples lost, first {lost[0]}")
    if changed:
        report.problems.append(f"{len(changed)} committed samples changed, first {changed[0]}")


def _finish(
    command: Collect, process: subprocess.Popen[str], report: ChaosReport
) -> subprocess.Popen[str]:
    _, err = process.communicate()
    if process.returncode != 0:
        report.problems.append(f"the last collector ended with {process.returncode}: {err}")
    if "pending 0" not in err:
        report.problems.append(f"the last collector left work: {err}")
    return process


def final_checks(out: Path, report: ChaosReport) -> None:
    checked = verify(out)
    report.problems += [f"verify: {p.kind}: {p.name}: {p.what}" for p in checked.problems]
    manifest = latest_manifest(PosixFilesystem(out))
    assert manifest is not None, "a finished run has a manifest"
    on_disk = {
        f"{table}/{p.name}"
        for table in ("samples", "kernels", "devices")
        for p in (out / table).glob("*.parquet")
    }
    if on_disk != set(manifest.shard_names):
        report.problems.append(
            f"glob and manifest differ: {sorted(on_disk ^ set(manifest.shard_names))[:3]}"
        )
    tasks = open_dataset(out).kernels(["task_id"]).column("task_id").to_pylist()
    if len(tasks) != len(set(tasks)):
        report.problems.append("a task is there twice")
    report.tasks = len(tasks)
    report.samples = open_dataset(out).num_samples
