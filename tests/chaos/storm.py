"""A storm on a cluster: real Ray nodes, a real Redis, seeded faults in all of them until the run has ended.

``python -m tests.chaos.storm --faults 100 --kernels 2000 --seed 0``

Owns when faults come, what an operator does meanwhile, and the comparison. What was committed before a fault must be there
unchanged after it, and in the end every row of a quiet run must be there once. A driver that was killed is started again, as an
operator would; Redis comes back by itself. The seed alone says which faults are tried in which order; whom they hit depends on who lives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from llmperf.exits import Exit
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.tables.reader import open_dataset
from tests.chaos.faults import FAULTS, UNKIND, drawn_from
from tests.chaos.kills import ChaosReport, committed, compare, final_checks
from tests.chaos.unkind import NO_COMPILER, Unkind, find_compiler
from tests.chaos.world import NODE, OPTIONS, World
from tests.support.collecting import Collect, replay_file, write_kernels
from tests.support.servers.ray_cluster import nodes_started
from tests.support.servers.redis_server import RedisServer

_MOST_STARTS_MORE = 20
_SECOND_END_S = 240.0
"""How long a driver may take to end after another has found all done: its actors begin when Ray gives them the GPUs."""


def run_storm(
    folder: Path, *, num_faults: int, num_kernels: int, seed: int, aof: bool
) -> tuple[ChaosReport, Path]:
    """Collect ``num_kernels`` tasks through ``num_faults`` faults; returns what happened and the dataset."""
    corpus = write_kernels(folder / "kernels", [f"k{n:05d}" for n in range(num_kernels)])
    slow = [{"kernel": "*", "action": "slow", "seconds": 0.002}]
    device = replay_file(folder / "replay.json", behaviours=slow)
    started_s = time.monotonic()
    compiler = find_compiler()
    unkind = Unkind(compiler, folder / "unkind", folder) if compiler else None
    with contextlib.ExitStack() as stack:
        if unkind is not None:
            stack.enter_context(unkind.around())
        server = RedisServer(folder / "redis", aof=aof)
        stack.callback(server.kill)
        cluster = stack.enter_context(nodes_started(NODE, NODE))
        options = ("--cluster", "--ledger", server.url, *OPTIONS)
        command = Collect(
            corpus, folder / "data", device, options, {"RAY_ADDRESS": cluster.address}
        )
        world = World(cluster, server, command, random.Random(f"whom {seed}"), unkind)
        stack.callback(world.end_drivers)
        _weather(world, num_faults, seed=seed, tasks_between=num_kernels / (num_faults + 1))
    final_checks(folder / "data", world.report)
    world.report.seconds = time.monotonic() - started_s
    return world.report, folder / "data"


def _weather(world: World, num_faults: int, *, seed: int, tasks_between: float) -> None:
    seen: dict[str, tuple[float, ...] | None] = {}
    order = random.Random(seed)
    kinds = drawn_from(has_compiler=world.unkind is not None)
    world.report.left_out = () if world.unkind is not None else UNKIND
    world.start_driver()
    left = num_faults
    while left:
        due = round((num_faults - left + 1) * tasks_between)
        if not _await_tasks(world, due):
            break  # all is done before its time: the report counts the faults
        if not world.living_drivers() and not world.has_finished():
            _start_again(world)
        seen |= committed(world.command.out)
        fault = order.choice(kinds)
        if fault.inflict(world):
            world.report.kills[fault.name] += 1
            left -= 1
        compare(seen, committed(world.command.out), world.report)
    while not world.has_finished():
        if not world.living_drivers():
            _start_again(world)
        time.sleep(0.2)
    _await_others(world)
    world.report.ends.update(one.returncode for one in world.drivers)
    compare(seen, committed(world.command.out), world.report)


def _await_tasks(world: World, num_tasks: int) -> bool:
    """Wait until so many tasks are published; False if the run has ended before."""
    while _num_published(world.command.out) < num_tasks:
        if world.has_finished():
            return False
        if not world.living_drivers():
            _start_again(world)
        time.sleep(0.2)
    return True


def _await_others(world: World) -> None:
    """One driver has found all done: a second one finds that, too, or says that it never got a GPU."""
    for driver in world.living_drivers():
        log = world.log_of(world.drivers.index(driver) + 1)
        try:
            code = driver.wait(_SECOND_END_S)
        except subprocess.TimeoutExpired:
            driver.kill()
            code = driver.wait()
        if code not in (Exit.DONE, Exit.NO_DEVICE):
            told = log.read_text()[-1000:]
            world.report.problems.append(f"after all was done a driver ended with {code}: {told}")


def _num_published(data: Path) -> int:
    manifest = latest_manifest(PosixFilesystem(data))
    return manifest.num_tasks if manifest else 0


def _start_again(world: World) -> None:
    """An operator's answer where the last driver has ended badly."""
    meant = ("kill_driver", "kill_node", "second_driver")
    limit = sum(world.report.kills[name] for name in meant) + _MOST_STARTS_MORE
    if world.report.starts > limit:
        told = world.log_of(world.report.starts).read_text()
        raise AssertionError(f"the driver ends by itself again and again: {told}")
    time.sleep(1)
    world.start_driver()


_MEASURED = frozenset(
    [
        "time_ns",
        "median_ns",
        "min_ns",
        "iqr_ns",
        "mean_ns",
        "first_ns",
        "cold_ns",
        "sm_clock_mhz",
        "temperature_c",
        "throttled",
        "created_at",
        "device_id",
        "worker_id",
        "task_attempt",
    ]
)
"""Columns that two runs need not share: times, the device's state, and who measured when. Of ``build`` the seconds, too."""


def rows_of(data: Path) -> Counter[tuple[str, str, str]]:
    """Return what a quiet run must have, too: (table, status, the row without what is measured), as often as it is there."""
    dataset = open_dataset(data)
    found: Counter[tuple[str, str, str]] = Counter()
    for table, read in (("samples", dataset.samples), ("kernels", dataset.kernels)):
        for row in read().to_pylist():
            kept = {name: value for name, value in row.items() if name not in _MEASURED}
            if kept.get("build"):
                kept["build"] = {**kept["build"], "seconds": None}
            found[table, str(row.get("status", "")), json.dumps(kept, sort_keys=True)] += 1
    return found


def differences(quiet: Path, data: Path) -> list[str]:
    """Return what differs from a quiet run, by table and status, with one example."""
    expected, found = rows_of(quiet), rows_of(data)
    if expected == found:
        return []
    missing, added = expected - found, found - expected
    by_kind = [
        dict(Counter(f"{table} {status}".strip() for table, status, _ in rows.elements()))
        for rows in (added, missing)
    ]
    example = next(iter(added or missing))[2]
    return [
        f"the rows differ from those of a quiet run: {by_kind[0]} in place of {by_kind[1]}, as {example[:600]}"
    ]


def quiet_run(folder: Path) -> Collect:
    """Return the same collection in another folder, on one machine and without faults."""
    return Collect(
        folder / "kernels",
        folder / "quiet",
        replay_file(folder / "quiet.json"),
        tuple(OPTIONS[:4]),
    )


def main() -> int:
    """Run, compare with a quiet run, print; 1 if anything was lost, doubled or changed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--kernels", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-aof", action="store_true", help="a Redis that keeps nothing on disk")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report, data = run_storm(
            folder,
            num_faults=given.faults,
            num_kernels=given.kernels,
            seed=given.seed,
            aof=not given.no_aof,
        )
        quiet = quiet_run(folder).run(timeout_s=3600)
        if quiet.returncode != 0:
            report.problems.append(f"the quiet run ended with {quiet.returncode}: {quiet.stderr}")
        else:
            report.problems += differences(folder / "quiet", data)
    faults = ", ".join(f"{name} {count}" for name, count in sorted(report.kills.items()))
    ends = ", ".join(f"exit {code}: {count}" for code, count in sorted(report.ends.items()))
    sys.stdout.write(
        f"faults {report.kills.total()} ({faults}), drivers {report.starts} ({ends}), tasks {report.tasks}, "
        f"samples {report.samples}, {report.seconds:.0f} s, problems {len(report.problems)}\n"
    )
    if report.left_out:
        kinds = f"{len(report.left_out)} of {len(FAULTS)} kinds of fault"
        sys.stdout.write(f"LEFT OUT {kinds}, {NO_COMPILER}: {', '.join(report.left_out)}\n")
    for problem in report.problems:
        sys.stdout.write(f"PROBLEM {problem}\n")
    return 1 if report.problems or report.kills.total() < given.faults else 0


if __name__ == "__main__":
    sys.exit(main())
