"""What the ledger and the commits of a cluster cost its actors, from one actor to many.

``python -m benchmarks.cluster.cluster_scale --recorded FILE [--actors 1,4,16,64,256] [--seconds 60]
[--out PREFIX]``

Simulated actors (``simulated_actors.py``) share a real redis-server on this host and a real folder.
A task occupies an actor's GPU for as long as a recorded task (CSV or Parquet with the columns
task_s, rows; ``where_time_goes --tasks`` writes it). For each number of actors the program prints
and writes:

* the share of an actor's time that its loop spends in ledger calls, in publishing and in total;
* the share that its writer thread spends on shards;
* the latency of each script as the client sees it;
* the server's processor time, memory, mean time of a script, and the calls of 1 ms or more;
* the share of this host's processors that the simulator uses, and how late its steps start.

The last lines are the cost of encoding results, which in a real cluster the actors' own hosts do,
and the cost of a manifest, which grows with its list of shards.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import numpy as np
import redis  # noqa: TID251

from benchmarks.cluster.simulated_actors import NUM_TASKS, PLAN_HASH, Spent, Tasks, run_actors
from benchmarks.data.raw_rows import read_rows
from cluster.ledger.redis import RedisLocation, _source
from llmperf_common.ledger.attach import attach
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest, manifest_name
from llmperf_common.store.manifests.publish import StaleEpoch, publish
from llmperf_common.store.tables.shard import encode_device, encode_results, write_shard
from tests.support.factories.dataset_factory import make_device
from tests.support.servers.redis_server import RedisServer

SCRIPTS = (
    "claim",
    "extend",
    "commit",
    "elect",
    "unpublished",
    "mark_published",
    "counts",
    "report",
)
_CLIENT_NAMES = {"renew": "extend", "release": "extend"}
_TASKS_A_SHARD = 27
_SLOW_US, _SLOWLOG_LENGTH = 1000, 40_000


def read_recorded(path: Path) -> list[tuple[float, int]]:
    """Read device seconds and rows of recorded tasks."""
    return [(float(row["task_s"]), int(row["rows"])) for row in read_rows(path)]


def measure(
    num_actors: int, *, recorded: list[tuple[float, int]], seconds: float, processes: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Run ``num_actors`` actors; return figures of the whole run and of each kind of call."""
    with tempfile.TemporaryDirectory(dir=_work(), prefix="cluster-scale-") as folder:
        server = RedisServer(Path(folder) / "redis")
        try:
            return _measured(
                server, Path(folder) / "data", num_actors, recorded, seconds, processes
            )
        finally:
            server.kill()


def _measured(
    server: RedisServer,
    folder: Path,
    num_actors: int,
    recorded: list[tuple[float, int]],
    seconds: float,
    processes: int,
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    fs = PosixFilesystem(folder)
    device = write_shard(fs, encode_device(make_device(device_class="h200"), plan_hash=PLAN_HASH))
    ledger_location = RedisLocation(server.client(), dataset=PLAN_HASH)
    ledger = attach(fs, ledger_location, plan_hash=PLAN_HASH, index_of=int, who="benchmark")
    client = server.client()
    client.config_set("slowlog-log-slower-than", _SLOW_US)
    client.config_set("slowlog-max-len", _SLOWLOG_LENGTH)
    before_bytes, cpu_before = int(client.info("memory")["used_memory"]), _server_cpu_s(client)
    client.config_resetstat()
    began_s = time.monotonic()
    shares = [range(first, num_actors, processes) for first in range(min(processes, num_actors))]
    work = partial(
        run_actors,
        url=server.url,
        folder=folder,
        device=device,
        recorded=recorded,
        seconds=seconds,
    )
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("spawn")) as pool:
        spent = list(pool.map(work, shares))
    wall_s = time.monotonic() - began_s
    server_cpu_s = _server_cpu_s(client) - cpu_before
    scripts = client.info("commandstats")["cmdstat_evalsha"]
    slow_s = _slow_calls_s(client)
    client.slowlog_reset()
    committed = [task for one in spent for task in one.committed]
    manifest = latest_manifest(fs)
    assert manifest is not None, "something was published"
    num_done = ledger.counts(range(NUM_TASKS)).done
    assert len(committed) == len(set(committed)) == num_done == manifest.num_tasks, (
        "a task was lost or doubled"
    )
    calls = _by_call(spent)
    actor_s = num_actors * seconds
    ledger_s = sum(sum(found) for what, found in calls.items() if what.startswith("ledger"))
    publish_s = sum(sum(found) for what, found in calls.items() if what.startswith("manifest"))
    shard_s = sum(sum(found) for what, found in calls.items() if what.startswith("shard"))
    late_s = np.concatenate([one.late_s for one in spent])
    grown = int(client.info("memory")["used_memory"]) - before_bytes
    whole = {
        "actors": num_actors,
        "seconds": seconds,
        "tasks": num_done,
        "rows": sum(one.num_rows for one in spent),
        "shard_pairs": len(manifest.of_table("kernels")),
        "ledger_percent": 100 * ledger_s / actor_s,
        "publish_percent": 100 * publish_s / actor_s,
        "loop_percent": 100 * sum(one.steps_s for one in spent) / actor_s,
        "writer_percent": 100 * shard_s / actor_s,
        "server_cpu_percent": 100 * server_cpu_s / wall_s,
        "server_grown_mib": grown / 2**20,
        "server_calls": int(scripts["calls"]),
        "server_mean_ms": float(scripts["usec_per_call"]) / 1e3,
        "simulator_cpu_percent_of_host": 100
        * sum(one.cpu_s for one in spent)
        / (seconds * (os.cpu_count() or 1)),
        "late_p50_ms": 1e3 * float(np.median(late_s)),
        "late_p99_ms": 1e3 * float(np.quantile(late_s, 0.99)),
        "load": os.getloadavg()[0],
    }
    rows = [
        {"actors": num_actors, "side": side, "call": what, **_quantiles(found)}
        for side, table in (("client", calls), ("server, 1 ms or more", slow_s))
        for what, found in sorted(table.items())
    ]
    return whole, rows


def _by_call(spent: Sequence[Spent]) -> dict[str, list[float]]:
    merged: dict[str, list[float]] = defaultdict(list)
    for one in spent:
        for what, found in one.calls_s.items():
            kind, _, name = what.partition(" ")
            merged[f"{kind} {_CLIENT_NAMES.get(name, name)}"] += found
    return merged


def _quantiles(found_s: Sequence[float]) -> dict[str, float]:
    found_ms = 1e3 * np.asarray(found_s)
    p50, p99 = np.quantile(found_ms, [0.5, 0.99])
    return {
        "calls": len(found_ms),
        "p50_ms": round(float(p50), 3),
        "p99_ms": round(float(p99), 3),
        "max_ms": round(float(found_ms.max()), 3),
        "sum_s": round(float(found_ms.sum()) / 1e3, 3),
    }


def _server_cpu_s(client: redis.Redis) -> float:
    told = client.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def _slow_calls_s(client: redis.Redis) -> dict[str, list[float]]:
    """Return by script how long the server took for each call that it logged as slow."""
    names = {sha1(_source(name).encode()).hexdigest(): name for name in SCRIPTS}  # noqa: S324
    found: dict[str, list[float]] = defaultdict(list)
    for entry in client.slowlog_get(_SLOWLOG_LENGTH):
        words = entry["command"].split(b" ", 2)
        if words[0].upper() == b"EVALSHA":
            found[f"ledger {names[words[1].decode()]}"].append(entry["duration"] / 1e6)
    return found


def encoding(recorded: Sequence[tuple[float, int]], num_shards: int = 12) -> tuple[float, float]:
    """Return the seconds of encoding a usual pair of shards, and of timing the tasks in it."""
    tasks = Tasks()
    dice = random.Random(0)  # noqa: S311
    took_s, device_s = [], []
    for _ in range(num_shards):
        some = dice.sample(recorded, _TASKS_A_SHARD)
        results = [tasks.result(index, rows) for index, (_, rows) in enumerate(some)]
        began_s = time.thread_time()
        encode_results("stem", results, range(len(results)), plan_hash=PLAN_HASH, epoch=1)
        took_s.append(time.thread_time() - began_s)
        device_s.append(sum(length for length, _ in some))
    return float(np.median(took_s)), float(np.mean(device_s))


def publishing(num_pairs: int) -> tuple[float, float]:
    """Return seconds and MiB of publishing one more commit, with ``num_pairs`` pairs listed."""
    with tempfile.TemporaryDirectory(dir=_work(), prefix="publishing-") as folder:
        fs = PosixFilesystem(Path(folder))
        some = [_pair(number) for number in range(num_pairs + 3)]
        listed = [entry for two in some[:num_pairs] for entry in two]
        last = publish(fs, listed, plan_hash=PLAN_HASH, epoch=1)
        took_s = []
        for two in some[num_pairs:]:
            began_s = time.monotonic()
            last = publish(fs, two, plan_hash=PLAN_HASH, epoch=1)  # kept, as by a publisher
            took_s.append(time.monotonic() - began_s)
        assert not isinstance(last, StaleEpoch), "no other process publishes here"
        size = len(fs.read_bytes(manifest_name(last.version)))
    return float(np.median(took_s)), size / 2**20


def _pair(number: int) -> list[ShardEntry]:
    stem = f"e000001-simulated-{number % 256}-{number:012x}.parquet"
    return [
        ShardEntry(name=f"{table}/{stem}", rows=rows, bytes=150_000, sha256="0" * 64, tasks=27)
        for table, rows in (("kernels", 27), ("samples", 1_780))
    ]


def _work() -> Path:
    """Return a folder on a real disk, because an fsync in a temporary folder may cost nothing."""
    folder = Path.cwd() / "runs"
    folder.mkdir(exist_ok=True)
    return folder


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recorded", type=Path, required=True, metavar="FILE")
    parser.add_argument("--actors", default="1,4,16,64,256")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=2, help="processes that simulate actors")
    parser.add_argument("--out", metavar="PREFIX", help="write PREFIX.csv and PREFIX-calls.csv")
    given = parser.parse_args()
    recorded = read_recorded(given.recorded)
    wholes, calls = [], []
    for num_actors in map(int, given.actors.split(",")):
        whole, rows = measure(
            num_actors, recorded=recorded, seconds=given.seconds, processes=given.processes
        )
        wholes.append(whole)
        calls += rows
        print("  ".join(f"{name} {value:.4g}" for name, value in whole.items()), flush=True)
        for row in rows:
            print(
                f"  {row['side']} {row['call']:24} {row['calls']:7} calls  p50 {row['p50_ms']:8.3f}  "
                f"p99 {row['p99_ms']:8.3f}  max {row['max_ms']:8.3f} ms",
                flush=True,
            )
    cost_s, each_s = encoding(recorded)
    print(f"encoding a pair of {_TASKS_A_SHARD} tasks: {1e3 * cost_s:.1f} ms of processor,")
    print(f"in its own thread, {100 * cost_s / each_s:.2f} % of the {each_s:.1f} s it took to time")
    for num_pairs in (1_000, 10_000, 100_000):
        took_s, size_mib = publishing(num_pairs)
        print(
            f"publishing beside {num_pairs} pairs of shards: {1e3 * took_s:.0f} ms, {size_mib:.1f} MiB"
        )
    if given.out:
        for suffix, table in ((".csv", wholes), ("-calls.csv", calls)):
            with Path(given.out + suffix).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, table[0])
                writer.writeheader()
                writer.writerows(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
