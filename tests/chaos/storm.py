"""A storm on a cluster: real Ray nodes, a real Redis, seeded faults in all of them until the run has ended.

``python -m tests.chaos.storm --faults 100 --kernels 2000 --seed 0``

Owns the faults and when they come. What was committed before a fault must be there unchanged after it, and in the end every
row of a quiet run must be there once. A driver that was killed is started again, as an operator would; Redis comes back by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from llmperf_common.store.filesystem import PosixFilesystem
from llmperf_common.store.manifest import latest_manifest
from llmperf_common.store.reader import open_dataset
from tests.chaos.kills import ChaosReport, committed, compare, final_checks
from tests.chaos.unkind import Unkind
from tests.integration.collecting import Collect, kill, replay_file, write_kernels
from tests.integration.ray_cluster import nodes_started
from tests.integration.redis_server import RedisServer

LEASE_TTL_S = 4
OPTIONS = (
    "--samples-per-kernel", "3",
    "--set", "timing.spin_up_ms=0",
    "--set", "ledger.claim_ahead=2",
    "--set", f"ledger.lease_ttl_s={LEASE_TTL_S}",
    "--set", "store.commit_interval_s=0",
    "--set", "store.publish_interval_s=0.1",
    "--set", "cluster.restart_delay_s=0.1",
    "--set", "cluster.scan_interval_s=1",
    "--set", "cluster.max_restarts=1000",
)  # fmt: skip
_NODE = {"num_gpus": 2}
_MOST_STARTS_MORE = 20


@dataclass
class World:
    """Everything that a fault may hit."""

    cluster: Any
    server: RedisServer
    command: Collect
    chance: random.Random
    unkind: Unkind
    report: ChaosReport = field(default_factory=ChaosReport)
    driver: subprocess.Popen[str] | None = None
    told: list[str] = field(default_factory=list)
    """What the drivers said."""

    def start_driver(self) -> None:
        """Submit the command, again or for the first time."""
        self.report.starts += 1
        log = self.command.out.parent / f"driver-{self.report.starts}.log"
        with log.open("w") as file:
            self.driver = subprocess.Popen(
                self.command.arguments(),
                stdout=file,
                stderr=file,
                text=True,
                env={**os.environ, **self.command.environment},
            )

    def processes(self, word: str) -> list[psutil.Process]:
        """Return the processes of this test with ``word`` in their command line."""
        found = []
        for one in psutil.Process().children(recursive=True):
            try:
                if word in " ".join(one.cmdline()):
                    found.append(one)
            except psutil.Error:
                continue
        return found

    def pick(self, word: str) -> psutil.Process | None:
        """Return one of them."""
        found = self.processes(word)
        return self.chance.choice(found) if found else None


def kill_actor(world: World) -> bool:
    """SIGKILL an actor; its children must go with it."""
    victim = world.pick("ray::_SeatedActor")
    if victim is None:
        return False
    kill(victim.pid)
    return True


def kill_child(world: World) -> bool:
    """SIGKILL a child that times, compiles or analyses."""
    kinds = ("workers.run_child", "workers.compile_child", "workers.analysis_child")
    found = [one for kind in kinds for one in world.processes(kind)]
    victim = world.chance.choice(found) if found else None
    if victim is None:
        return False
    kill(victim.pid)
    return True


def kill_node(world: World) -> bool:
    """Take a node away without a word; another one comes."""
    nodes = sorted(world.cluster.worker_nodes, key=lambda node: str(node.node_id))
    if not nodes:
        return False
    world.cluster.remove_node(world.chance.choice(nodes), allow_graceful=False)
    world.cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20, **_NODE)
    return True


def kill_driver(world: World) -> bool:
    """SIGKILL the driver."""
    assert world.driver is not None, "it was started"
    if world.driver.poll() is not None:
        return False
    kill(world.driver.pid)
    world.driver.wait()
    return True


def kill_server(world: World) -> bool:
    """SIGKILL Redis; it comes back after a moment, with what its append-only file has, or with nothing."""
    world.server.kill()
    time.sleep(world.chance.random() * 2)
    world.server.start()
    return True


def flush_server(world: World) -> bool:
    """Wipe Redis under everybody's feet."""
    return world.server.flush()


def pause_server(world: World) -> bool:
    """Nobody reaches Redis for a while, as in a partition."""
    world.server.signal(signal.SIGSTOP)
    time.sleep(1 + world.chance.random() * 3)
    world.server.signal(signal.SIGCONT)
    return True


def suspend_actor(world: World) -> bool:
    """An actor sleeps until its leases went to others, and wakes up with its results."""
    victim = world.pick("ray::_SeatedActor")
    if victim is None:
        return False
    try:
        victim.suspend()
        time.sleep(LEASE_TTL_S * 1.5)
        victim.resume()
    except psutil.Error:
        return False
    return True


def cut_off(world: World) -> bool:
    """One actor does not reach Redis until its leases went to others, while its neighbours do."""
    victim = world.pick("ray::_SeatedActor")
    if victim is None:
        return False
    world.unkind.inflict(victim.pid, "cut", world.server.port, seconds=LEASE_TTL_S * 1.5)
    return True


def fill_disk(world: World) -> bool:
    """No room left for a while: for one actor, for all, or for what Redis appends."""
    actors = [one.pid for one in world.processes("ray::_SeatedActor")]
    whom = world.chance.choice([*[[pid] for pid in actors], actors])
    if world.server.has_aof and world.chance.random() < 1 / 4:
        whom = [world.server.pid]
    seconds = 1 + 3 * world.chance.random()
    for pid in whom:
        world.unkind.inflict(pid, "full", seconds=seconds)
    return bool(whom)


def slow_disk(world: World) -> bool:
    """What is made durable takes its time, for all actors."""
    actors = world.processes("ray::_SeatedActor")
    for one in actors:
        world.unkind.inflict(one.pid, "slow", 0.7, seconds=LEASE_TTL_S)
    return bool(actors)


def set_clock(world: World) -> bool:
    """One actor's clock is a day off from now on, or that of Redis's host for a while, which is the leases'."""
    victim = world.chance.choice([world.pick("ray::_SeatedActor"), None])
    sign = world.chance.choice(["", "-"])
    if victim is None:
        world.unkind.inflict(world.server.pid, "skew", f"{sign}60", seconds=2)
    else:
        world.unkind.inflict(victim.pid, "skew", f"{sign}86400")
    return True


FAULTS: tuple[tuple[Callable[[World], bool], int], ...] = (
    (kill_actor, 6),
    (kill_child, 6),
    (kill_node, 2),
    (kill_driver, 2),
    (kill_server, 3),
    (flush_server, 3),
    (pause_server, 2),
    (suspend_actor, 2),
    (cut_off, 3),
    (fill_disk, 3),
    (slow_disk, 2),
    (set_clock, 3),
)


def run_storm(
    folder: Path, *, num_faults: int, num_kernels: int, seed: int, aof: bool
) -> tuple[ChaosReport, Path]:
    """Collect ``num_kernels`` tasks through ``num_faults`` faults; returns what happened and the dataset."""
    corpus = write_kernels(folder / "kernels", [f"k{n:05d}" for n in range(num_kernels)])
    slow = [{"kernel": "*", "action": "slow", "seconds": 0.002}]
    device = replay_file(folder / "replay.json", behaviours=slow)
    started_s = time.monotonic()
    unkind = Unkind(folder / "unkind", folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(unkind.around())
        server = RedisServer(folder / "redis", aof=aof)
        stack.callback(server.kill)
        cluster = stack.enter_context(nodes_started(_NODE, _NODE))
        options = ("--cluster", "--ledger", server.url, *OPTIONS)
        command = Collect(
            corpus, folder / "data", device, options, {"RAY_ADDRESS": cluster.address}
        )
        world = World(cluster, server, command, random.Random(seed), unkind)
        _weather(world, num_faults, tasks_between=num_kernels / (num_faults + 1))
    final_checks(folder / "data", world.report)
    world.report.seconds = time.monotonic() - started_s
    return world.report, folder / "data"


def _weather(world: World, num_faults: int, *, tasks_between: float) -> None:
    seen: dict[str, tuple[float, ...] | None] = {}
    world.start_driver()
    kinds = [fault for fault, weight in FAULTS for _ in range(weight)]
    left = num_faults
    while left:
        due = round((num_faults - left + 1) * tasks_between)
        if not _await_tasks(world, due):
            break  # all is done before its time: the report counts the faults
        assert world.driver is not None, "it was started"
        if world.driver.poll() is not None:
            _start_again(world)
        seen |= committed(world.command.out)
        fault = world.chance.choice(kinds)
        if fault(world):
            world.report.kills[fault.__name__] += 1
            left -= 1
        compare(seen, committed(world.command.out), world.report)
    assert world.driver is not None, "it was started"
    while world.driver.wait() != 0:
        _start_again(world)
    compare(seen, committed(world.command.out), world.report)


def _await_tasks(world: World, num_tasks: int) -> bool:
    """Wait until so many tasks are published; False if the run has ended before."""
    assert world.driver is not None, "it was started"
    while _num_published(world.command.out) < num_tasks:
        if world.driver.poll() == 0:
            return False
        if world.driver.poll() is not None:
            _start_again(world)
        time.sleep(0.2)
    return True


def _num_published(data: Path) -> int:
    manifest = latest_manifest(PosixFilesystem(data))
    return manifest.num_tasks if manifest else 0


def _start_again(world: World) -> None:
    """An operator's answer to a driver that has ended badly."""
    assert world.driver is not None, "it was started"
    limit = world.report.kills["kill_driver"] + world.report.kills["kill_node"] + _MOST_STARTS_MORE
    if world.report.starts > limit:
        log = world.command.out.parent / f"driver-{world.report.starts}.log"
        raise AssertionError(f"the driver ends by itself again and again: {log.read_text()}")
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
    sys.stdout.write(
        f"faults {report.kills.total()} ({faults}), drivers {report.starts}, tasks {report.tasks}, "
        f"samples {report.samples}, {report.seconds:.0f} s, problems {len(report.problems)}\n"
    )
    for problem in report.problems:
        sys.stdout.write(f"PROBLEM {problem}\n")
    return 1 if report.problems or report.kills.total() < given.faults else 0


if __name__ == "__main__":
    sys.exit(main())
