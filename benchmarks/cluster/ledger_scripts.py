"""How long the Redis ledger's scripts take with many other leases and many unpublished shards.

``python -m benchmarks.cluster.ledger_scripts [--leases 0,1000,10000,40000] [--pairs 100,1000,10000]
[--out FILE.csv]``

One client uses a real redis-server on this host. Each figure is from 30 calls (5 for the list of
shards, because a long list takes many calls). At first all leases (rights to work on a task) are
held. Then all end at once, as after an outage, and workers of the same and of another device class
claim tasks.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cluster.ledger.redis import RedisLedger, RedisLocation
from llmperf_common.ledger.protocol import Holder
from llmperf_common.store.manifests.manifest import ShardEntry
from tests.support.servers.redis_server import RedisServer

_TASKS = range(10_000_000)
_OTHERS = range(_TASKS.stop, 2 * _TASKS.stop)
_TTL_S = 600.0
_HOLDER = Holder(host="host", boot_id="0" * 36, pid=1, start_ticks=1)
Row = tuple[str, int, float, float]


def timed(what: str, beside: int, call: Callable[[], object], *, times: int = 30) -> Row:
    """Return the median and maximum milliseconds of some calls, and print them."""
    took_ms = []
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        took_ms.append(1e3 * (time.perf_counter() - began_s))
    row = (what, beside, round(float(np.median(took_ms)), 2), round(max(took_ms), 2))
    print(f"{row[0]:55} {beside:6}  median {row[2]:8.2f} ms, most {row[3]:8.2f} ms", flush=True)
    return row


def ledger_of(server: RedisServer, name: str) -> RedisLedger:
    """Return a new ledger."""
    ledger_location = RedisLocation(server.client(), dataset=name)
    ledger = ledger_location.create(epoch=1, plan_hash="p", shards=[], done=[])
    assert isinstance(ledger, RedisLedger)
    return ledger


def beside_leases(server: RedisServer, num_leases: int) -> list[Row]:
    """Time the calls whose cost depends on leases."""
    ledger = ledger_of(server, f"leases-{num_leases}")

    def claim(tasks: range, limit: int) -> object:
        return ledger.claim(holder=_HOLDER, tasks=tasks, limit=limit, ttl_s=_TTL_S)

    held = []
    while len(held) < num_leases:
        held += ledger.claim(holder=_HOLDER, tasks=_TASKS, limit=1000, ttl_s=_TTL_S)
    rows = [
        timed("claim 5 tasks, beside live leases", num_leases, lambda: claim(_TASKS, 5)),
        timed("counts, beside live leases", num_leases, lambda: ledger.counts(_TASKS)),
    ]
    for first in range(0, num_leases, 1000):
        ledger.release(held[first : first + 1000])
    rows += [
        timed("claim 5 tasks, beside ended leases of another class", num_leases, lambda: claim(_OTHERS, 5)),
        timed("claim 5 tasks, beside ended leases of their class", num_leases, lambda: claim(_TASKS, 5)),
    ]  # fmt: skip
    ledger.close()
    return rows


def beside_shards(server: RedisServer, num_pairs: int) -> list[Row]:
    """Time the calls whose cost depends on unpublished shards."""
    ledger = ledger_of(server, f"pairs-{num_pairs}")
    names = []
    for number in range(num_pairs):
        leases = ledger.claim(holder=_HOLDER, tasks=_TASKS, limit=1, ttl_s=_TTL_S)
        pair = [
            ShardEntry(
                name=f"{table}/e000001-host-1234-{number:012x}.parquet",
                rows=1_780,
                bytes=150_000,
                sha256="a" * 64,
                tasks=27,
            )
            for table in ("kernels", "samples")
        ]
        ledger.commit(shards=pair, leases=leases)
        names += [one.name for one in pair]
    rows = [
        timed("the shards not yet published, pairs", num_pairs, ledger.unpublished, times=5),
        timed("mark them published, pairs", num_pairs, lambda: ledger.mark_published(names), times=1),
    ]  # fmt: skip
    ledger.close()
    return rows


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--leases", default="0,1000,10000,40000")
    parser.add_argument("--pairs", default="100,1000,10000")
    parser.add_argument("--out", type=Path, metavar="FILE.csv")
    given = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        try:
            for num_leases in map(int, given.leases.split(",")):
                rows += beside_leases(server, num_leases)
            for num_pairs in map(int, given.pairs.split(",")):
                rows += beside_shards(server, num_pairs)
        finally:
            server.kill()
    print(f"load {os.getloadavg()[0]:.1f}")
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("call", "beside", "median_ms", "max_ms"), *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
