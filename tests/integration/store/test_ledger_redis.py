"""The ledger contract on a real Redis server, and what only a server can suffer."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis  # noqa: TID251
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from cluster.ledger.redis import RUNS_KEY, RedisLedger, RedisLocation
from llmperf_common.ledger.attach import attach
from llmperf_common.ledger.protocol import (
    Committed,
    Holder,
    Ledger,
    LedgerAwayError,
    LedgerLostError,
    Refused,
    TaskCounts,
)
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import ShardEntry
from tests.support.contracts.ledger_contract import (
    EPOCH,
    PLAN_HASH,
    Harness,
    LedgerContract,
    claim,
    shard_pair,
    tasks_of,
)
from tests.support.contracts.ledger_machine import LedgerMachine
from tests.support.contracts.rollback_contract import RestorableHarness, RollbackContract
from tests.support.servers.redis_server import RedisServer

_numbers = itertools.count()


class RedisHarness:
    """A ledger among others on one server; time passes by an offset to the server's."""

    sees_deaths = False

    def __init__(self, url: str) -> None:
        self._url = url
        self._dataset = f"contract-{next(_numbers)}"
        self._offset_us = 0
        self._opened: list[RedisLedger] = []
        ledger_location = RedisLocation(redis.Redis.from_url(self._url), dataset=self._dataset)
        ledger_location.create(epoch=EPOCH, plan_hash=PLAN_HASH, shards=[], done=[]).close()

    def open(self) -> Ledger:
        """Open one more connection."""
        ledger = open_ledger(self._url, self._dataset)
        ledger.clock_offset_us = self._offset_us
        self._opened.append(ledger)
        return ledger

    def connector(self) -> Callable[[], Ledger]:
        """Return a picklable function that opens the ledger in another process."""
        return functools.partial(open_ledger, self._url, self._dataset)

    def holder(self, number: int) -> Holder:
        """Return a simulated worker."""
        return Holder(host="simulated", boot_id="b", pid=number, start_ticks=0)

    def kill(self, holder: Holder) -> None:
        """Nothing: the server does not know who lives."""

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on."""
        self._offset_us += round(seconds * 1e6)
        for ledger in self._opened:
            ledger.clock_offset_us = self._offset_us

    def wipe(self) -> None:
        """Remove the ledger."""
        with contextlib.closing(redis.Redis.from_url(self._url)) as client:
            RedisLocation(client, dataset=self._dataset).retire(before=EPOCH + 1)

    def save(self) -> dict[bytes, bytes]:
        """Return the ledger's present state."""
        with contextlib.closing(redis.Redis.from_url(self._url)) as client:
            return {key: client.dump(key) for key in self._keys(client)}

    def restore(self, state: dict[bytes, bytes]) -> None:
        """Put a saved state in place, as a snapshot of the server's host does: the run id stays."""
        with (
            contextlib.closing(redis.Redis.from_url(self._url)) as client,
            client.pipeline(transaction=True) as pipeline,
        ):
            pipeline.delete(*self._keys(client))
            for key, value in state.items():
                pipeline.restore(key, 0, value)
            pipeline.execute()

    def _keys(self, client: redis.Redis) -> list[bytes]:
        return list(client.scan_iter(f"llmperf:{{{self._dataset}}}:*"))

    def close(self) -> None:
        """Close all connections."""
        for ledger in self._opened:
            ledger.close()
        self.wipe()


def open_ledger(url: str, dataset: str) -> RedisLedger:
    """Open the ledger as a worker does."""
    ledger = RedisLocation(redis.Redis.from_url(url), dataset=dataset).open(EPOCH, PLAN_HASH)
    assert isinstance(ledger, RedisLedger)
    return ledger


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    made = RedisServer(tmp_path_factory.mktemp("redis"))
    yield made
    made.kill()


@pytest.fixture
def harness(server: RedisServer) -> Iterator[RestorableHarness]:
    made = RedisHarness(server.url)
    yield made
    made.close()


class TestRedisContract(LedgerContract):
    """The contract, on Redis."""


class TestRedisRollbacks(RollbackContract):
    """A restored ledger, on Redis."""


def test_the_state_machine(server: RedisServer) -> None:
    class RedisMachine(LedgerMachine):
        def make_harness(self) -> Harness:
            return RedisHarness(server.url)

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        RedisMachine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


@pytest.mark.slow
def test_ten_million_tasks_weigh_little(server: RedisServer) -> None:
    ledger_location = RedisLocation(server.client(), dataset="large")
    tasks = range(10_000_000)
    before = server.client().info("memory")["used_memory"]
    done = ((task, "samples/x.parquet") for task in range(9_999_000))
    ledger = ledger_location.create(epoch=1, plan_hash="p", shards=[], done=done)
    grown = server.client().info("memory")["used_memory"] - before
    assert grown < 4e6
    leases = ledger.claim(
        holder=Holder(host="h", boot_id="b", pid=1, start_ticks=1),
        tasks=tasks,
        limit=1001,
        ttl_s=60,
    )
    assert tasks_of(leases) == list(range(9_999_000, 10_000_000))
    assert ledger.counts(tasks) == TaskCounts(done=9_999_000, leased=1000, total=len(tasks))
    ledger_location.retire(before=2)


def test_leases_of_many_that_run_out_together_are_given_out_again_once(
    server: RedisServer,
) -> None:
    ledger = RedisLocation(server.client(), dataset="outage").create(
        epoch=1, plan_hash="p", shards=[], done=[]
    )
    assert isinstance(ledger, RedisLedger)
    ours, others, num_each = range(2000), range(2000, 4000), 700
    gone = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
    here = Holder(host="h", boot_id="b", pid=2, start_ticks=1)
    of_others = ledger.claim(holder=gone, tasks=others, limit=num_each, ttl_s=10)
    of_ours = ledger.claim(holder=gone, tasks=ours, limit=num_each, ttl_s=10)
    assert tasks_of(of_ours) == list(range(num_each))
    ledger.clock_offset_us = 11_000_000
    kept = ledger.renew(of_ours[:3], ttl_s=60)  # they ran out, but no other holder took them
    assert kept == of_ours[:3]
    found: list[int] = []
    while len(found) < 2000 - 3:
        some = tasks_of(ledger.claim(holder=here, tasks=ours, limit=40, ttl_s=60))
        assert some, "tasks are left"
        found += some
    assert sorted(found) == list(range(3, 2000))
    assert ledger.claim(holder=here, tasks=ours, limit=40, ttl_s=60) == []
    assert ledger.counts(ours) == TaskCounts(done=0, leased=2000, total=2000)
    assert ledger.counts(others) == TaskCounts(done=0, leased=0, total=2000)
    assert ledger.commit(shards=shard_pair("kept"), leases=kept) == Committed()
    assert ledger.commit(shards=shard_pair("late"), leases=of_ours[3:5]) == Refused((3, 4))
    # Also one that no other holder took can still be committed, and is not given out afterwards.
    assert ledger.commit(shards=shard_pair("other"), leases=of_others[:1]) == Committed()
    again = ledger.claim(holder=here, tasks=others, limit=1, ttl_s=60)
    assert [(one.task, one.attempt) for one in again] == [(2001, 2)]


def test_more_shards_than_one_answer_holds(server: RedisServer) -> None:
    ledger = RedisLocation(server.client(), dataset="shards").create(
        epoch=1, plan_hash="p", shards=[], done=[]
    )
    holder = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
    names = []
    for lease in ledger.claim(holder=holder, tasks=range(600), limit=600, ttl_s=60):
        shards = shard_pair(f"s{lease.task:04d}")
        names += [entry.name for entry in shards]
        assert ledger.commit(shards=shards, leases=[lease]) == Committed()
    assert [entry.name for entry in ledger.unpublished()] == sorted(names)
    ledger.mark_published(names[:1100])
    assert [entry.name for entry in ledger.unpublished()] == sorted(names[1100:])


@pytest.mark.parametrize("aof", [False, True])
def test_another_life_of_the_server_is_another_ledger(tmp_path: Path, aof: bool) -> None:
    server = RedisServer(tmp_path / "redis", aof=aof)
    ledger_location = RedisLocation(server.client(), dataset="d")
    ledger = ledger_location.create(epoch=3, plan_hash="p", shards=[], done=[])
    holder = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
    (lease,) = claim(ledger, holder)
    server.kill()
    with pytest.raises(LedgerAwayError, match="reached"):
        ledger.commit(shards=shard_pair("s"), leases=[lease])
    server.start()
    with pytest.raises(LedgerLostError):
        ledger.commit(shards=shard_pair("s"), leases=[lease])
    assert ledger_location.open(3, "p") is None
    server.kill()


def test_a_flushed_ledger_is_built_anew_in_the_next_epoch(
    server: RedisServer, tmp_path: Path
) -> None:
    fs = PosixFilesystem(tmp_path)

    def attached() -> Ledger:
        ledger_location = RedisLocation(server.client(), dataset="flushed")
        return attach(fs, ledger_location, plan_hash="p", index_of=int, who="t")

    ledger = attached()
    holder = Holder(host="h", boot_id="b", pid=1, start_ticks=1)
    (old,) = claim(ledger, holder)
    server.client().flushall()
    again = attached()
    assert again.epoch == ledger.epoch + 1
    with pytest.raises(LedgerLostError):
        ledger.commit(shards=shard_pair("s"), leases=[old])
    (new,) = claim(again, holder)
    assert new.task == old.task
    assert again.commit(shards=shard_pair("s"), leases=[new]) == Committed()


@pytest.mark.parametrize(
    "part", ["meta", "expiry", "held", "free", "leases", "done", "shards", "unpublished"]
)
def test_a_ledger_of_which_a_part_is_gone_is_built_anew(
    server: RedisServer, tmp_path: Path, part: str
) -> None:
    """A server with an eviction policy gives up single keys; what was in one must not be missed for ever."""
    fs = PosixFilesystem(tmp_path)
    ledger_location = RedisLocation(server.client(), dataset=f"evicted-{part}")

    def attached() -> Ledger:
        return attach(fs, ledger_location, plan_hash="p", index_of=int, who="t")

    ledger = attached()
    assert ledger.shards() == ledger.unpublished() == []
    dead, here = (Holder(host="h", boot_id="b", pid=pid, start_ticks=1) for pid in (1, 2))
    kept, ended, _ = claim(ledger, dead, 3)
    ledger.release([ended])
    (key,) = server.client().keys(f"*evicted-{part}*:{part}") or [None]
    assert key is not None, "it is there whatever was done"
    server.client().delete(key)
    with pytest.raises(LedgerLostError):
        ledger.commit(shards=shard_pair("s"), leases=[kept])
    again = attached()
    assert again.epoch == ledger.epoch + 1
    assert tasks_of(claim(again, here, 3)) == [0, 1, 2]


def test_a_ledger_with_finished_tasks_that_no_shard_holds_is_built_anew(
    server: RedisServer, tmp_path: Path
) -> None:
    fs = PosixFilesystem(tmp_path)
    ledger_location = RedisLocation(server.client(), dataset="too-many")

    def attached() -> Ledger:
        return attach(fs, ledger_location, plan_hash="p", index_of=int, who="t")

    ledger = attached()
    (key,) = server.client().keys("*too-many*:done")
    server.client().setbit(key, 0, 1)
    assert ledger.counts(range(1)).done == 1
    again = attached()
    assert again.epoch == ledger.epoch + 1
    assert tasks_of(claim(again, Holder(host="h", boot_id="b", pid=1, start_ticks=1))) == [0]


def test_a_ledger_whose_server_is_flushed_as_it_is_built_can_be_found_and_ended(
    server: RedisServer,
) -> None:
    ledger_location = RedisLocation(
        server.client(), dataset="flushed-early", about='{"run_id": "r"}'
    )

    def shards() -> Iterator[ShardEntry]:
        server.client().flushall()
        yield from shard_pair("s")

    ledger = ledger_location.create(epoch=1, plan_hash="p", shards=shards(), done=[])
    assert server.client().get(ledger_location.key("about")) == b'{"run_id": "r"}'
    assert server.client().smembers(RUNS_KEY) == {b"flushed-early"}
    ledger_location.retire(before=2)
    with pytest.raises(LedgerLostError):
        claim(ledger, Holder(host="h", boot_id="b", pid=1, start_ticks=1))
    assert server.client().keys("llmperf:*e000001:*") == []
