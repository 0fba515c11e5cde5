"""How often the loop asks for tasks, in batches and never so late that the device waits, and for a ledger that is lost and away."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import Holder, Lease, Ledger, LedgerAwayError
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from tests.simulation.collector import LateWriter
from tests.simulation.work import PLAN_HASH, SimPlan, simulated_result
from tests.support.sampling import slow_but_each
from workers.collect.loop import CollectLoop
from workers.collect.observers import SilentObserver
from workers.config import LedgerConfig, StoreConfig
from workers.execution.executor import FinishedTask
from workers.plan.plan import Task


class OneEachPoll:
    """An executor that holds some tasks and finishes one at every poll."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: list[Lease] = []
        self.fewest_left: list[int] = []

    def num_wanted(self) -> int:
        return self.capacity - len(self.held)

    def submit(self, task: Task, lease: Lease) -> None:
        del task
        self.held.append(lease)

    def poll(self, timeout_s: float) -> list[FinishedTask]:
        del timeout_s
        self.fewest_left.append(len(self.held))
        if not self.held:
            return []
        lease = self.held.pop(0)
        result = simulated_result(lease.task, lease.epoch, lease.token)
        return [FinishedTask(lease=lease, result=result)]

    def leases(self) -> list[Lease]:
        return list(self.held)

    def abandon(self, tasks: Collection[int]) -> None:
        self.held = [lease for lease in self.held if lease.task not in tasks]

    def abandon_waiting(self) -> list[Lease]:
        return []

    def close(self) -> None:
        pass


class CountingLedger(SqliteLedger):
    """Counts how often it is asked for tasks."""

    num_claims = 0

    def claim(self, **given) -> list[Lease]:  # type: ignore[no-untyped-def,override]
        self.num_claims += 1
        return super().claim(**given)


def loop_over(
    folder: Path,
    executor: OneEachPoll,
    *,
    attach: Callable[[], Ledger],
    clock_s: Callable[[], float],
    sleep: Callable[[float], None] = lambda _seconds: None,
    num_tasks: int = 100,
    holder: Holder | None = None,
) -> CollectLoop:
    return CollectLoop(
        fs=PosixFilesystem(folder),
        attach=attach,
        plan=SimPlan(num_tasks=num_tasks),
        tasks=range(num_tasks),
        executor=executor,
        holder=holder or this_process(),
        device_shards=[],
        clock_s=clock_s,
        new_stem=lambda epoch: f"{epoch}-{id(executor)}-{len(executor.fewest_left)}",
        store_config=StoreConfig(commit_interval_s=60.0, publish_interval_s=60.0),
        ledger_config=LedgerConfig(away_limit_s=600.0),
        observer=SilentObserver(),
        writer=LateWriter(0),
        sleep=sleep,
    )


@pytest.mark.parametrize(
    ("capacity", "most_claims"), slow_but_each(2, [(200, 12), (1, 105), (38, 30), (7, 105)])
)
def test_tasks_are_asked_for_in_batches(tmp_path: Path, capacity: int, most_claims: int) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    SqliteLedger.create(connection, epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    ledger = CountingLedger(
        connection, clock_s=lambda: 0.0, is_alive=lambda _: True, is_current=lambda: True
    )
    executor, clock = OneEachPoll(capacity), iter(range(10**6))
    loop = loop_over(tmp_path, executor, attach=lambda: ledger, clock_s=lambda: next(clock) / 100)
    while not loop.is_over:
        loop.step(0.0)
    loop.finish()
    assert ledger.counts(range(100)).done == 100
    assert ledger.num_claims <= most_claims
    busy = executor.fewest_left[: max(0, 100 - capacity)]  # later there is nothing left to hold
    assert all(held >= capacity - capacity // 8 for held in busy), "the device never waits"
    loop.close()


@pytest.mark.parametrize(("num_loops", "num_tasks", "latest_s"), [(2, 400, 112), (8, 2000, 134)])
def test_a_slow_device_does_not_hold_the_last_tasks(
    tmp_path: Path, num_loops: int, num_tasks: int, latest_s: float
) -> None:
    """Half of the devices do a task in a second, the others three: 100 and 125 s are ideal.

    If each claimed all that it can hold, the slow ones would end at 120 and 145 s.
    """
    connection = sqlite3.connect(":memory:", isolation_level=None)
    SqliteLedger.create(connection, epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    now_s = 0.0
    ledger = SqliteLedger(
        connection, clock_s=lambda: now_s, is_alive=lambda _: True, is_current=lambda: True
    )
    loops = [
        loop_over(
            tmp_path, OneEachPoll(40), attach=lambda: ledger, clock_s=lambda: now_s,
            num_tasks=num_tasks, holder=replace(this_process(), pid=pid),
        )
        for pid in range(1, num_loops + 1)
    ]  # fmt: skip
    while not all(loop.is_over for loop in loops):
        for place, loop in enumerate(loops):
            for _ in range(1 if place % 2 else 3):
                loop.step(0.0)
        now_s += 1.0
        assert now_s < 300
    for loop in loops:
        loop.finish()
    assert ledger.counts(range(num_tasks)).done == num_tasks
    assert now_s <= latest_s


def test_a_ledger_that_is_lost_and_then_away_is_asked_for_ever_more_seldom(tmp_path: Path) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    SqliteLedger.create(connection, epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    is_current = True
    ledger = SqliteLedger(
        connection, clock_s=lambda: 0.0, is_alive=lambda _: True, is_current=lambda: is_current
    )
    asked_at_s: list[float] = []
    now_s = 0.0

    def attach() -> Ledger:
        asked_at_s.append(now_s)
        if len(asked_at_s) > 1:
            raise LedgerAwayError("no answer")
        return ledger

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    loop = loop_over(tmp_path, OneEachPoll(3), attach=attach, clock_s=lambda: now_s, sleep=sleep)
    loop.step(0.0)
    is_current = False

    def step_for_ever() -> None:
        nonlocal now_s
        for _ in range(100_000):
            loop.step(0.2)
            now_s += 1e-6  # a step takes some time, sleep or not

    with pytest.raises(LedgerAwayError, match="no answer"):
        step_for_ever()
    assert now_s > 600.0, "away_limit_s"
    assert 30 < len(asked_at_s) < 60
    loop.close()
    loop.close()


class SharedLedger(SqliteLedger):
    """One of several ledgers on one connection, which outlives them."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("commits", [False, True])
def test_the_same_ledger_is_not_lost_for_ever(tmp_path: Path, commits: bool) -> None:
    """Each loss opens the ledger of epoch 1 again; a commit in between shows that it can be used."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    SqliteLedger.create(connection, epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    is_current, executor, num_attached = True, OneEachPoll(3), 0

    def attach() -> Ledger:
        nonlocal num_attached, is_current
        num_attached += 1
        is_current = True
        return SharedLedger(
            connection, clock_s=lambda: 0.0, is_alive=lambda _: True, is_current=lambda: is_current
        )

    now_s = 0.0
    loop = loop_over(tmp_path, executor, attach=attach, clock_s=lambda: now_s)

    def lose_it_again_and_again() -> None:
        nonlocal is_current, now_s
        for _ in range(20):
            loop.step(0.0)  # a task has finished
            if commits:
                now_s += 61.0
                loop.step(0.0)
            is_current = False
            now_s += 61.0  # the ledger is asked at once
            loop.step(0.0)

    if commits:
        lose_it_again_and_again()
        assert num_attached == 21
        assert loop.losses.num_dropped <= 20
    else:
        with pytest.raises(StoreError, match=r"lost 5 times.* removed or replaced.*finished tasks"):
            lose_it_again_and_again()
        assert num_attached == 5
        assert loop.losses.num_dropped > 0
    loop.close()


def test_a_collector_that_only_waits_for_others_says_for_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector waited for two hours without a word for the leases of a dead one."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    SqliteLedger.create(connection, epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    now_s = 0.0
    ledger = SqliteLedger(
        connection, clock_s=lambda: now_s, is_alive=lambda _: True, is_current=lambda: True
    )
    other = replace(this_process(), host="far", pid=7)
    held = ledger.claim(holder=other, tasks=range(3), limit=2, ttl_s=60)
    loop = loop_over(
        tmp_path, OneEachPoll(3), attach=lambda: ledger, clock_s=lambda: now_s, num_tasks=3
    )
    warned_at_s = []
    while now_s < 300:
        loop.step(0.0)
        now_s += 1.0
        ledger.renew(held, ttl_s=60)
        if len(caplog.messages) > len(warned_at_s):
            warned_at_s.append(now_s)
    first = caplog.messages[0]
    assert first.startswith("no task for 60 s")
    assert "far/7 holds 2 (the leases end in 60 s unless it renews them)" in first
    assert len(warned_at_s) == 3, "after one TTL, and whenever the wait has doubled"
    loop.finish()
    loop.close()
