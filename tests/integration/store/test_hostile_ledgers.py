"""A SQLite ledger with values that no ledger writes is built anew; one that collectors wrote stays."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.ledger.protocol import Committed, Holder, Ledger
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import COMMIT_AT_ONCE, Collect, replay_file, write_kernels
from tests.support.contracts.ledger_contract import claim, shard_pair

PLAN_HASH = "p" * 16
HERE = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
FOREIGN = {
    "cursor below its range": "UPDATE cursors SET next = -5",
    "cursor beyond all tasks": "UPDATE cursors SET next = 1000000000000",
    "cursor past an unfinished task": "UPDATE cursors SET next = next + 1",
    "cursor that is a text": "UPDATE cursors SET next = 'abc'",
    "ranges that overlap": "INSERT INTO cursors VALUES (2, 4)",
    "negative cursor": "INSERT OR REPLACE INTO cursors VALUES (-3, -3)",
    "finished task that is negative": "INSERT INTO done VALUES (-1, 'kernels/x.parquet')",
    "shard of a task that is a number": "UPDATE done SET shard = x'00'",
    "attempts": "UPDATE attempts SET count = 'abc'",
    "publisher's end": "INSERT OR REPLACE INTO publisher VALUES (0, 'abc', 'h', 'b', 1, 1)",
    "publisher's process": "INSERT OR REPLACE INTO publisher VALUES (0, 5, 'h', 'b', 'p', 'q')",
    "longest TTL that is a text": "UPDATE meta SET value = 'abc' WHERE key = 'longest_ttl_s'",
    "longest TTL of ages": "UPDATE meta SET value = 1e300 WHERE key = 'longest_ttl_s'",
    "endless TTL": "UPDATE meta SET value = 9e999 WHERE key = 'longest_ttl_s'",
    "next token": "UPDATE meta SET value = 'abc' WHERE key = 'next_token'",
    "huge token": "UPDATE meta SET value = 9223372036854775807 WHERE key = 'next_token'",
    "lease of ages": "UPDATE leases SET expires_s = 1e200",
    "endless lease": "UPDATE leases SET expires_s = 9e999",
    "lease's end that is a text": "UPDATE leases SET expires_s = 'abc'",
    "lease's process": "UPDATE leases SET pid = 'abc'",
    "lease's host that is no text": "UPDATE leases SET host = CAST(x'ff' AS TEXT)",
    "shard's name": "UPDATE shards SET name = '../../../../etc/passwd' WHERE name = (SELECT MIN(name) FROM shards WHERE name LIKE 'kernels/%')",
    "shard's name that is no text": "UPDATE shards SET name = CAST(x'ff' AS TEXT) WHERE name = (SELECT MIN(name) FROM shards WHERE name LIKE 'kernels/%')",
    "shard's rows": "UPDATE shards SET row_count = 'abc'",
    "shard's tasks": "UPDATE shards SET task_count = -1",
    "shard's state": "UPDATE shards SET published = 7",
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> SqliteLocation:
    folder = tmp_path / "ledger"
    folder.mkdir()
    return SqliteLocation(folder)


@pytest.fixture
def used(place: SqliteLocation) -> SqliteLocation:
    """A ledger with finished, leased, released and unclaimed tasks, a publisher and a check of names."""
    ledger = place.create(epoch=1, plan_hash=PLAN_HASH, shards=shard_pair("0"), done=[(3, "kernels/0.parquet")])  # fmt: skip
    leases = claim(ledger, HERE, 6)
    assert ledger.commit(shards=shard_pair("1"), leases=leases[:2]) == Committed()
    ledger.release(leases[2:4])
    ledger.renew(leases[4:5], ttl_s=3600)
    assert ledger.elect_publisher(holder=HERE, ttl_s=60)
    ledger.check_names(["kernels/0.parquet"], checker="c", number=1, after=0)
    ledger.close()
    return place


def reopened(place: SqliteLocation) -> Ledger | None:
    found = place.open(1, PLAN_HASH)
    if found is not None:
        found.close()
    return found


def test_a_ledger_that_was_used_is_opened_again(used: SqliteLocation) -> None:
    assert reopened(used) is not None


@pytest.mark.parametrize("sql", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_ledger_with_values_of_no_ledger_counts_as_damaged(
    used: SqliteLocation, sql: str
) -> None:
    with contextlib.closing(sqlite3.connect(used.folder / "ledger-000001.sqlite")) as db:
        assert db.execute(sql).rowcount > 0
        db.commit()
    assert reopened(used) is None


def test_many_ranges_that_overlap_take_no_time(used: SqliteLocation) -> None:
    """Each would be counted to its end: 0.9 MB took 49 s."""
    number = 40_000
    with contextlib.closing(sqlite3.connect(used.folder / "ledger-000001.sqlite")) as db:
        db.execute("DELETE FROM cursors")
        tasks = ((task, "kernels/0.parquet") for task in range(number))
        db.executemany("INSERT OR REPLACE INTO done VALUES (?, ?)", tasks)
        db.executemany("INSERT INTO cursors VALUES (?, ?)", ((n, number) for n in range(9_000)))
        db.commit()
    began_s = time.process_time()
    assert reopened(used) is None
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT OR REPLACE INTO cursors VALUES (0, 1000000000000)",
        "INSERT OR REPLACE INTO cursors VALUES (0, 2)",
        "UPDATE meta SET value = 'abc' WHERE key = 'next_token'",
    ],
)
def test_a_run_with_such_a_ledger_does_all_its_tasks(tmp_path: Path, sql: str) -> None:
    corpus = write_kernels(tmp_path / "corpus", [f"k{index}" for index in range(4)])
    device = replay_file(tmp_path / "replay.json")
    command = Collect(corpus, tmp_path / "data", device, (*COMMIT_AT_ONCE, "--max-time", "0.001s"))
    assert command.run_here().returncode == 0
    assert num_done(command.out) < 4
    (path,) = (command.out / "ledger").glob("ledger-*.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DELETE FROM leases")
        db.execute(sql)
        db.commit()
    done = Collect(corpus, command.out, device, (*COMMIT_AT_ONCE, "--max-time", "30s")).run_here()
    assert done.returncode == 0, done.stderr
    assert verify(command.out).clean
    assert num_done(command.out) == 4


def num_done(folder: Path) -> int:
    manifest = latest_manifest(PosixFilesystem(folder))
    return 0 if manifest is None else manifest.num_tasks
