"""The promises of every ledger, as tests; a new kind of ledger needs one fixture.

A test class inherits ``LedgerContract`` and defines the fixture ``harness``. A state machine
inherits ``LedgerMachine`` (``ledger_machine.py``) and defines ``make_harness``.
``test_ledger_contract.py`` is an example for SQLite.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Protocol

import pytest

from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import (
    SILENT_LIMIT_S,
    Committed,
    Holder,
    Lease,
    Ledger,
    LedgerLostError,
    Refused,
    TaskCounts,
)
from llmperf_common.store.manifests.manifest import ShardEntry

EPOCH = 7
PLAN_HASH = "contract-plan"
TTL_S = 60.0
TASKS = range(6)
_PATIENCE_S = 60.0


class Harness(Protocol):
    """One ledger of epoch ``EPOCH`` under test, empty at the start."""

    sees_deaths: bool
    """Whether a dead holder's leases can be claimed before they expire."""

    def open(self) -> Ledger:
        """Open one more connection, as another worker would; ``close`` closes it."""
        ...

    def connector(self) -> Callable[[], Ledger]:
        """Return a picklable function that opens the ledger in another process."""
        ...

    def holder(self, number: int) -> Holder:
        """Return a worker that lives until it is killed."""
        ...

    def kill(self, holder: Holder) -> None:
        """End a worker."""
        ...

    def pass_time(self, seconds: float) -> None:
        """Advance the ledger's clock."""
        ...

    def wipe(self) -> None:
        """Remove the ledger while it is in use."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


def shard_pair(stem: str, tasks: int = 1) -> list[ShardEntry]:
    """Return the entries of a pair of shards."""
    return [
        ShardEntry(name=f"{table}/{stem}.parquet", rows=3, bytes=100, sha256=stem, tasks=tasks)
        for table in ("kernels", "samples")
    ]


def claim(ledger: Ledger, holder: Holder, limit: int = 1, tasks: range = TASKS) -> list[Lease]:
    """Claim with the usual range and ttl."""
    return ledger.claim(holder=holder, tasks=tasks, limit=limit, ttl_s=TTL_S)


def tasks_of(leases: list[Lease]) -> list[int]:
    """Return the tasks of leases, in order."""
    return [lease.task for lease in leases]


class LedgerContract:
    """The promises of ``llmperf_common/ledger/protocol.py``."""

    def test_claims_follow_the_plan(self, harness: Harness) -> None:
        ledger = harness.open()
        first = claim(ledger, harness.holder(1), 2)
        assert tasks_of(first) == [0, 1]
        assert tasks_of(claim(harness.open(), harness.holder(2), 3)) == [2, 3, 4]
        assert tasks_of(claim(ledger, harness.holder(1), 9)) == [5]
        assert claim(ledger, harness.holder(1)) == []
        assert all(lease.epoch == EPOCH == ledger.epoch for lease in first)
        assert [lease.attempt for lease in first] == [1, 1]

    @pytest.mark.parametrize("committed", [0, 1, 2])
    def test_many_tasks(self, harness: Harness, committed: int) -> None:
        """Each of two classes' 97 tasks is leased once, in order, with none, some or all done."""
        ledger, tasks = harness.open(), range(194)
        given: list[int] = []
        for number, one in enumerate((range(97, 194), range(97))):
            while leases := claim(ledger, harness.holder(number), 7, one):
                given += tasks_of(leases)
                done = leases if committed == 2 else leases[1::3] * committed
                if done:
                    outcome = ledger.commit(shards=shard_pair(f"s{given[-1]}"), leases=done)
                    assert outcome == Committed()
        assert given == [*range(97, 194), *range(97)]
        assert ledger.counts(tasks).total == 194
        assert ledger.counts(tasks).done == {0: 0, 1: 56, 2: 194}[committed]

    def test_ranges_are_apart(self, harness: Harness) -> None:
        ledger = harness.open()
        assert tasks_of(claim(ledger, harness.holder(1), 9, range(3, 6))) == [3, 4, 5]
        assert tasks_of(claim(ledger, harness.holder(2), 9, range(3))) == [0, 1, 2]

    def test_tokens_grow(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 3)
        harness.pass_time(TTL_S + 1)
        leases += claim(harness.open(), harness.holder(2), 3)
        tokens = [lease.token for lease in leases]
        assert tokens == sorted(set(tokens))
        assert [lease.attempt for lease in leases] == [1, 1, 1, 2, 2, 2]

    def test_expired_leases_come_first(self, harness: Harness) -> None:
        ledger = harness.open()
        claim(ledger, harness.holder(1), 2)
        harness.pass_time(TTL_S + 1)
        assert tasks_of(claim(ledger, harness.holder(2), 3)) == [0, 1, 2]

    def test_a_lease_lives_for_its_ttl(self, harness: Harness) -> None:
        ledger = harness.open()
        claim(ledger, harness.holder(1), 6)
        harness.pass_time(TTL_S / 2)
        assert claim(ledger, harness.holder(2), 6) == []
        harness.pass_time(TTL_S / 2 + 1)
        assert tasks_of(claim(ledger, harness.holder(2), 6)) == list(TASKS)

    def test_renewing_keeps_a_lease(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 6)
        harness.pass_time(TTL_S * 0.6)
        assert ledger.renew(leases, ttl_s=TTL_S) == leases
        harness.pass_time(TTL_S * 0.6)
        assert claim(ledger, harness.holder(2), 6) == []

    def test_an_expired_lease_nobody_took_can_be_renewed(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 6)
        harness.pass_time(TTL_S * 2)
        assert ledger.renew(leases, ttl_s=TTL_S) == leases
        assert claim(ledger, harness.holder(2), 6) == []

    def test_renewing_tells_which_leases_are_lost(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 6)
        harness.pass_time(TTL_S + 1)
        claim(ledger, harness.holder(2), 2)
        assert ledger.renew(leases, ttl_s=TTL_S) == leases[2:]

    def test_a_lease_of_another_epoch_is_worth_nothing(self, harness: Harness) -> None:
        ledger = harness.open()
        (lease,) = claim(ledger, harness.holder(1))
        foreign = Lease(task=lease.task, epoch=EPOCH - 1, token=lease.token, attempt=1)
        assert ledger.renew([foreign], ttl_s=TTL_S) == []
        ledger.release([foreign])
        assert tasks_of(claim(ledger, harness.holder(2))) == [1]
        assert ledger.commit(shards=shard_pair("s"), leases=[foreign]) == Refused((0,))
        assert ledger.commit(shards=shard_pair("s"), leases=[lease]) == Committed()

    def test_a_released_task_is_free(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 6)
        ledger.release(leases[1:3])
        assert tasks_of(claim(ledger, harness.holder(2), 6)) == [1, 2]

    def test_releasing_a_stale_lease_does_nothing(self, harness: Harness) -> None:
        ledger = harness.open()
        old = claim(ledger, harness.holder(1), 6)
        harness.pass_time(TTL_S + 1)
        claim(ledger, harness.holder(2), 6)
        ledger.release(old)
        assert claim(ledger, harness.holder(3), 6) == []

    def test_a_dead_holders_tasks(self, harness: Harness) -> None:
        ledger = harness.open()
        claim(ledger, harness.holder(1), 6)
        harness.kill(harness.holder(1))
        expected = list(TASKS) if harness.sees_deaths else []
        assert tasks_of(claim(ledger, harness.holder(2), 6)) == expected

    def test_a_committed_task_is_never_claimed(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 6)
        assert ledger.commit(shards=shard_pair("s", 3), leases=leases[:3]) == Committed()
        harness.kill(harness.holder(1))
        harness.pass_time(TTL_S * 100)
        assert tasks_of(claim(harness.open(), harness.holder(2), 6)) == [3, 4, 5]

    def test_an_expired_lease_nobody_took_can_be_committed(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1))
        harness.pass_time(TTL_S * 100)
        assert ledger.commit(shards=shard_pair("s"), leases=leases) == Committed()

    def test_a_commit_can_be_asked_for_again(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 2)
        for _ in range(3):
            assert ledger.commit(shards=shard_pair("s", 2), leases=leases) == Committed()
        assert [shard.name for shard in ledger.unpublished()] == [
            "kernels/s.parquet",
            "samples/s.parquet",
        ]
        assert ledger.counts(TASKS).done == 2

    def test_a_task_is_committed_to_one_shard_only(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1))
        ledger.commit(shards=shard_pair("a"), leases=leases)
        assert ledger.commit(shards=shard_pair("b"), leases=leases) == Refused((0,))
        assert ledger.unpublished() == shard_pair("a")

    def test_one_stale_token_refuses_the_whole_commit(self, harness: Harness) -> None:
        ledger = harness.open()
        old = claim(ledger, harness.holder(1), 3)
        harness.pass_time(TTL_S + 1)
        (new,) = claim(ledger, harness.holder(2), 1)
        assert ledger.commit(shards=shard_pair("old", 3), leases=old) == Refused((0,))
        assert ledger.unpublished() == []
        assert ledger.counts(TASKS).done == 0
        assert ledger.commit(shards=shard_pair("rest", 2), leases=old[1:]) == Committed()
        assert ledger.commit(shards=shard_pair("new"), leases=[new]) == Committed()
        assert ledger.counts(TASKS).done == 3

    def test_shards_are_listed_until_published(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 2)
        device = ShardEntry(name="devices/d.parquet", rows=1, bytes=9, sha256="d", tasks=0)
        ledger.commit(shards=[*shard_pair("a"), device], leases=leases[:1])
        ledger.commit(shards=[*shard_pair("b"), device], leases=leases[1:])
        waiting = harness.open().unpublished()
        assert sorted(s.name for s in waiting) == sorted(
            s.name for s in [*shard_pair("a"), *shard_pair("b"), device]
        )
        assert device in waiting
        ledger.mark_published([shard.name for shard in waiting if shard not in shard_pair("b")])
        assert sorted(ledger.unpublished(), key=lambda s: s.name) == shard_pair("b")
        ledger.mark_published(["kernels/unknown.parquet"])

    def test_shards_are_known_for_ever(self, harness: Harness) -> None:
        ledger = harness.open()
        names = ["kernels/a.parquet", "kernels/b.parquet"]
        assert (ledger.shards(), ledger.unknown(names), ledger.unknown([])) == ([], names, [])
        leases = claim(ledger, harness.holder(1), 1)
        ledger.commit(shards=shard_pair("a"), leases=leases)
        refused = ledger.commit(shards=shard_pair("b"), leases=leases)
        assert refused == Refused((leases[0].task,))
        for _ in range(2):
            assert harness.open().shards() == shard_pair("a")
            assert ledger.unknown(names) == names[1:]
            ledger.mark_published([shard.name for shard in shard_pair("a")])
        many = [f"kernels/{number}.parquet" for number in range(1_100)]
        assert ledger.unknown([*many, names[0]]) == many

    def test_one_publisher_at_a_time(self, harness: Harness) -> None:
        ledger, other = harness.open(), harness.open()
        assert ledger.elect_publisher(holder=harness.holder(1), ttl_s=10)
        assert not other.elect_publisher(holder=harness.holder(2), ttl_s=10)
        assert ledger.elect_publisher(holder=harness.holder(1), ttl_s=10)
        harness.pass_time(11)
        assert other.elect_publisher(holder=harness.holder(2), ttl_s=10)
        assert not ledger.elect_publisher(holder=harness.holder(1), ttl_s=10)

    def test_a_dead_publisher(self, harness: Harness) -> None:
        ledger = harness.open()
        assert ledger.elect_publisher(holder=harness.holder(1), ttl_s=TTL_S)
        harness.kill(harness.holder(1))
        elected = ledger.elect_publisher(holder=harness.holder(2), ttl_s=TTL_S)
        assert elected == harness.sees_deaths

    def test_a_clock_that_steps_back_leaves_no_lease_for_hours(self, harness: Harness) -> None:
        """The clock was two hours ahead, a collector died, the clock was set right."""
        ledger = harness.open()
        harness.pass_time(7200)
        claim(ledger, harness.holder(1), 4)
        assert ledger.elect_publisher(holder=harness.holder(1), ttl_s=10)
        harness.pass_time(-7200)
        assert ledger.counts(TASKS) == TaskCounts(done=0, leased=0, total=6)
        assert ledger.holdings(TASKS) == []
        assert ledger.elect_publisher(holder=harness.holder(2), ttl_s=10)
        leases = claim(ledger, harness.holder(2), 6)
        assert tasks_of(leases) == list(TASKS)
        assert [lease.attempt for lease in leases] == [2, 2, 2, 2, 1, 1]
        assert claim(ledger, harness.holder(3), 6) == []
        assert not ledger.elect_publisher(holder=harness.holder(3), ttl_s=10)

    def test_a_live_holder_keeps_its_leases_when_the_clock_steps_back(
        self, harness: Harness
    ) -> None:
        ledger = harness.open()
        harness.pass_time(7200)
        leases = claim(ledger, harness.holder(1), 6)
        harness.pass_time(-7200)
        assert ledger.renew(leases, ttl_s=TTL_S) == leases
        assert claim(ledger, harness.holder(2), 6) == []
        harness.pass_time(-TTL_S / 2)
        assert claim(ledger, harness.holder(2), 6) == [], "a small step changes nothing"

    def test_a_short_ttl_takes_nothing_from_a_long_one(self, harness: Harness) -> None:
        """The config of a run does not fix the TTL: its collectors may have different ones."""
        ledger = harness.open()
        ledger.claim(holder=harness.holder(1), tasks=TASKS, limit=4, ttl_s=3600)
        assert ledger.elect_publisher(holder=harness.holder(1), ttl_s=600)
        assert tasks_of(claim(ledger, harness.holder(2), 6)) == [4, 5]
        assert not ledger.elect_publisher(holder=harness.holder(2), ttl_s=3)
        assert ledger.counts(TASKS).leased == 6

    def test_holdings_name_each_holder_and_its_time(self, harness: Harness) -> None:
        ledger = harness.open()
        claim(ledger, harness.holder(1), 2)
        harness.pass_time(TTL_S / 2)
        claim(ledger, harness.holder(2), 3)
        found = ledger.holdings(TASKS)
        assert [(one.holder, one.num_tasks) for one in found] == [
            ("simulated/1", 2),
            ("simulated/2", 3),
        ]
        left_s = [one.expires_in_s for one in found]
        assert left_s == pytest.approx([TTL_S / 2, TTL_S], abs=2)
        assert [one.num_tasks for one in ledger.holdings(range(1, 3))] == [1, 1]
        harness.pass_time(TTL_S * 0.7)
        assert [one.holder for one in ledger.holdings(TASKS)] == ["simulated/2"]

    def test_counts(self, harness: Harness) -> None:
        ledger = harness.open()
        assert ledger.counts(TASKS) == TaskCounts(done=0, leased=0, total=6)
        leases = claim(ledger, harness.holder(1), 4)
        ledger.commit(shards=shard_pair("s"), leases=leases[:1])
        assert ledger.counts(TASKS) == TaskCounts(done=1, leased=3, total=6)
        assert ledger.counts(range(3, 6)) == TaskCounts(done=0, leased=1, total=3)
        harness.pass_time(TTL_S + 1)
        assert ledger.counts(TASKS) == TaskCounts(done=1, leased=0, total=6)

    def test_a_heartbeat_has_what_each_worker_told_last(self, harness: Harness) -> None:
        ledger, other = harness.open(), harness.open()
        assert ledger.workers() == []
        ledger.report("b/2", '{"state": "collecting"}')
        other.report("a/1", '{"name": "Müller \\n"}\n')
        harness.pass_time(10)
        ledger.report("b/2", '{"state": "ended"}')
        for heartbeats in (ledger.workers(), other.workers()):
            assert [one.worker for one in heartbeats] == ["a/1", "b/2"]
            assert [one.document for one in heartbeats] == [
                '{"name": "Müller \\n"}\n',
                '{"state": "ended"}',
            ]
            assert heartbeats[0].age_s == pytest.approx(10, abs=5)
            assert heartbeats[1].age_s == pytest.approx(0, abs=5)

    def test_heartbeats_forget_who_was_silent_for_long(self, harness: Harness) -> None:
        ledger = harness.open()
        ledger.report("a/1", "{}")
        harness.pass_time(SILENT_LIMIT_S - 60)
        ledger.report("b/2", "{}")
        assert [one.worker for one in ledger.workers()] == ["a/1", "b/2"]
        harness.pass_time(120)
        assert [one.worker for one in ledger.workers()] == ["b/2"]
        ledger.report("c/3", "{}")
        assert [one.worker for one in ledger.workers()] == ["b/2", "c/3"]

    def test_heartbeats_decide_nothing(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 2)
        ledger.report("a/1", "{}")
        assert ledger.commit(shards=shard_pair("s", 2), leases=leases) == Committed()
        ledger.report("a/1", "{}")
        assert ledger.counts(TASKS) == TaskCounts(done=2, leased=0, total=6)

    def test_a_wiped_ledger_is_lost(self, harness: Harness) -> None:
        ledger = harness.open()
        leases = claim(ledger, harness.holder(1), 2)
        harness.wipe()
        for use in (
            lambda: claim(ledger, harness.holder(1)),
            lambda: ledger.renew(leases, ttl_s=TTL_S),
            lambda: ledger.release(leases),
            lambda: ledger.commit(shards=shard_pair("s"), leases=leases),
            ledger.unpublished,
            ledger.shards,
            lambda: ledger.unknown(["kernels/s.parquet"]),
            lambda: ledger.check_names([], checker="x", number=1, after=0),
            lambda: ledger.mark_published(["s"]),
            lambda: ledger.elect_publisher(holder=harness.holder(1), ttl_s=TTL_S),
            lambda: ledger.counts(TASKS),
            lambda: ledger.report("a/1", "{}"),
            ledger.workers,
        ):
            with pytest.raises(LedgerLostError):
                use()

    def test_processes_share_no_task(self, harness: Harness) -> None:
        num_processes, tasks = 3, range(90)
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(num_processes)
        pipes, processes = [], []
        for _ in range(num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_claim_all, args=(harness.connector(), tasks, barrier, theirs)
            )
            process.start()
            pipes.append(ours)
            processes.append(process)
        claimed = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join()
        assert sorted(task for part in claimed for task in part) == list(tasks)

    def test_a_killed_process_frees_its_tasks(self, harness: Harness) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_claim_and_wait, args=(harness.connector(), theirs))
        process.start()
        assert ours.recv() == list(TASKS)
        ledger = harness.open()
        assert claim(ledger, this_process(), 6) == []
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        expected = list(TASKS) if harness.sees_deaths else []
        assert tasks_of(claim(ledger, this_process(), 6)) == expected


def _claim_all(
    connect: Callable[[], Ledger], tasks: range, barrier: Barrier, pipe: Connection
) -> None:
    """Child: claim two tasks at a time until there are none; commit the even-numbered tasks."""
    ledger, holder = connect(), this_process()
    claimed: list[int] = []
    barrier.wait(_PATIENCE_S)
    while leases := claim(ledger, holder, 2, tasks):
        claimed += tasks_of(leases)
        for lease in leases:
            if lease.task % 2 == 0:
                stem = f"{lease.task}-{lease.token}"
                assert ledger.commit(shards=shard_pair(stem), leases=[lease]) == Committed()
    pipe.send(claimed)
    barrier.wait(_PATIENCE_S)  # its leases need the process alive
    ledger.close()


def _claim_and_wait(connect: Callable[[], Ledger], pipe: Connection) -> None:
    """Child: claim everything, then wait to be killed."""
    ledger = connect()
    pipe.send(tasks_of(claim(ledger, this_process(), 6)))
    pipe.recv()
    ledger.close()
