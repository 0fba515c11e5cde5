"""The shipped SqliteLedger on in-memory databases: one an epoch, shared by all processes, killable anywhere.

Owns the simulated ``LedgerLocation`` and the connection at whose n-th statement a process dies. A switch never happens
inside a transaction, just as SQLite's write lock allows none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from llmperf_common.ledger.protocol import (
    CommitOutcome,
    Committed,
    Holder,
    Holding,
    Lease,
    Ledger,
    LedgerAwayError,
    TaskCounts,
    WorkerReport,
)
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.manifests.manifest import ShardEntry
from tests.simulation.disk import Disk
from tests.simulation.oracle import Oracle
from tests.simulation.scheduler import Crash, Process, Scheduler

_T = TypeVar("_T")


class MortalConnection:
    """A process's connection to a shared database; it may die at a statement."""

    def __init__(self, database: sqlite3.Connection, process: Process) -> None:
        self._database = database
        self._process = process

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run a statement."""
        if not self._process.dies_at_statement:
            return self._database.execute(sql, parameters)
        return self._last_words(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> sqlite3.Cursor:
        """Run a statement for each row of parameters."""
        return self._database.executemany(sql, parameters)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._database.in_transaction

    def close(self) -> None:
        """Nothing: others may use the database."""

    def _last_words(self, sql: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        process = self._process
        process.dies_at_statement -= 1
        if process.dies_at_statement:
            return self._database.execute(sql, parameters)
        if process.number % 2 and self._database.in_transaction:
            self._database.execute(sql, parameters)
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")  # what the next process to open the file would do
        process.is_dead = True
        raise Crash


class _EmptyDatabase:
    """A database for ``SqliteLedger.create``; it may have the (empty) tables already."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.executemany = database.executemany

    def execute(self, sql: str) -> sqlite3.Cursor:
        """Run a statement of ``create``."""
        return self._database.execute(sql.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))


class WatchedLedger:
    """A ``Ledger`` that makes every operation a point of the schedule and tells the oracle of commits."""

    def __init__(
        self,
        ledger: SqliteLedger,
        scheduler: Scheduler,
        oracle: Oracle,
        disk: Disk,
        process: Process,
        database: sqlite3.Connection,
        is_begun: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._oracle = oracle
        self._disk = disk
        self._process = process
        self._database = database
        self._is_begun = is_begun

    def _asked(self, what: str, act: Callable[[], _T]) -> _T:
        """Do it, unless the server is away from this process; then it may have been done nevertheless."""
        self._scheduler.point(what)
        if not self._process.unanswered or not self._is_begun():
            return self._done(act)
        self._process.unanswered -= 1
        self._disk.coverage["got no answer"] += 1
        if self._process.is_heard:
            self._done(act)
            self._disk.coverage["did what it got no answer to"] += 1
        raise LedgerAwayError("simulated")

    def _done(self, act: Callable[[], _T]) -> _T:
        answer = act()
        self._disk.keep_state(self.epoch, self._database)
        return answer

    @property
    def epoch(self) -> int:
        """The epoch this ledger was built in."""
        return self._ledger.epoch

    def claim(self, *, holder: Holder, tasks: range, limit: int, ttl_s: float) -> list[Lease]:
        """Lease tasks."""
        leases = self._asked(
            f"claim {limit}",
            lambda: self._ledger.claim(holder=holder, tasks=tasks, limit=limit, ttl_s=ttl_s),
        )
        self._scheduler.note(f"    leased {[(x.task, x.token) for x in leases]}")
        return leases

    def renew(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease]:
        """Extend leases."""
        return self._asked("renew", lambda: self._ledger.renew(leases, ttl_s=ttl_s))

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back."""
        self._asked(f"release {[x.task for x in leases]}", lambda: self._ledger.release(leases))

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind tasks to shards."""

        def act() -> CommitOutcome:
            outcome = self._ledger.commit(shards=shards, leases=leases)
            self._scheduler.note(f"    {outcome} in epoch {self.epoch}")
            if isinstance(outcome, Committed):
                self._oracle.committed([lease.task for lease in leases], shards, self.epoch)
            return outcome

        return self._asked(f"commit {[(x.task, x.token) for x in leases]}", act)

    def unpublished(self) -> list[ShardEntry]:
        """Return committed shards that no manifest lists."""
        return self._asked("unpublished", self._ledger.unpublished)

    def shards(self) -> list[ShardEntry]:
        """Return all recorded shards."""
        return self._asked("all shards", self._ledger.shards)

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that were never recorded."""
        return self._asked(f"unknown of {len(names)}", lambda: self._ledger.unknown(names))

    def check_names(
        self, names: Sequence[str], *, checker: str, number: int, after: int
    ) -> list[str] | None:
        """Return those of ``names`` that were never recorded, and note the check."""
        return self._asked(
            f"check {len(names)} names, {number} after {after}",
            lambda: self._ledger.check_names(names, checker=checker, number=number, after=after),
        )

    def mark_published(self, names: Sequence[str]) -> None:
        """Note that a manifest lists these."""
        self._asked("mark published", lambda: self._ledger.mark_published(names))

    def elect_publisher(self, *, holder: Holder, ttl_s: float) -> bool:
        """Return whether this process publishes."""
        return self._asked(
            "elect publisher", lambda: self._ledger.elect_publisher(holder=holder, ttl_s=ttl_s)
        )

    def counts(self, tasks: range) -> TaskCounts:
        """Count tasks by state."""
        return self._asked("count", lambda: self._ledger.counts(tasks))

    def holdings(self, tasks: range) -> list[Holding]:
        """Return who holds live leases, for a message: no point of the schedule."""
        return self._ledger.holdings(tasks)

    def report(self, worker: str, document: str) -> None:
        """Put a worker's heartbeat in the place of its last one: no point of the schedule, nothing depends on it."""
        self._ledger.report(worker, document)

    def workers(self) -> list[WorkerReport]:
        """Return the last heartbeats."""
        return self._ledger.workers()

    def close(self) -> None:
        """Release the connection."""
        self._ledger.close()


class SimLocation:
    """A ``LedgerLocation`` on a Disk, as one process uses it."""

    ledger_class: type[SqliteLedger] = SqliteLedger

    def __init__(
        self,
        *,
        disk: Disk,
        scheduler: Scheduler,
        oracle: Oracle,
        process: Process,
        sees_deaths: bool,
    ) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._oracle = oracle
        self._process = process
        self._sees_deaths = sees_deaths
        self.has_attached = False
        """Until then a server that is away ends the process, as it does the command."""

    def _reach(self) -> None:
        """The server answers, unless it is away."""
        if self.has_attached and self._process.unanswered:
            self._process.unanswered -= 1
            self._disk.coverage["lost a ledger and could not reach the next"] += 1
            raise LedgerAwayError("simulated")

    def open(self, epoch: int, plan_hash: str) -> Ledger | None:
        """Open the ledger of an epoch; None if it is gone or cannot be read."""
        self._scheduler.point(f"open ledger {epoch}")
        self._reach()
        database = self._disk.ledgers.get(epoch)
        if database is None:
            return None
        if self._disk.ledger_is_unreadable:
            self._disk.ledger_is_unreadable = False
            self._disk.coverage["found a ledger unreadable that others use"] += 1
            return None
        return self._connected(epoch, database)

    def retire(self, *, before: int) -> None:
        """Remove the ledgers of older epochs: from now on nothing can be committed to them."""
        for epoch in sorted(self._disk.ledgers):
            if epoch < before:
                self._scheduler.point(f"remove ledger {epoch}")
                self._disk.ledgers.pop(epoch, None)

    def create(
        self,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> Ledger:
        """Create the ledger of an epoch and open it."""
        self._scheduler.point(f"build ledger {epoch}")
        self._reach()
        database = self._disk.databases.take()
        empty: Any = _EmptyDatabase(database)
        SqliteLedger.create(empty, epoch=epoch, plan_hash=plan_hash, shards=shards, done=done)
        self._scheduler.point(f"put ledger {epoch} in place")
        self._disk.ledgers[epoch] = database
        self._disk.ledger_states[epoch] = [database.serialize()]
        self._disk.coverage["built a ledger"] += 1
        return self._connected(epoch, database)

    def _connected(self, epoch: int, database: sqlite3.Connection) -> WatchedLedger:
        def is_current() -> bool:
            current = self._disk.ledgers.get(epoch) is database
            # Here, after the check, it may be wiped: a zombie's transaction.
            self._scheduler.point("  begin")
            if current and self._disk.ledgers.get(epoch) is not database:
                self._disk.coverage["used a ledger wiped a moment ago"] += 1
            return current

        connection: Any = MortalConnection(database, self._process)
        ledger = self.ledger_class(
            connection, clock_s=self._boot_clock_s, is_alive=self._is_alive, is_current=is_current
        )
        return WatchedLedger(
            ledger,
            self._scheduler,
            self._oracle,
            self._disk,
            self._process,
            database,
            is_begun=lambda: self.has_attached,
        )

    def _boot_clock_s(self) -> float:
        return self._scheduler.now_s + self._scheduler.suspended_s

    def _is_alive(self, holder: Holder) -> bool:
        return not (self._sees_deaths and self._scheduler.processes[holder.pid].is_over)
