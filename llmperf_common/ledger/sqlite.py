"""The embedded ledger: one SQLite file, shared by the collectors of one host.

Owns the tables and the transactions. With a write-ahead log (WAL) and ``synchronous=FULL`` a commit
that has returned survives a power cut. Time is the host's boot clock, on which all processes of the
host agree.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence

from llmperf_common.ledger.heartbeat_sql import HEARTBEAT_TABLE, put_report, read_reports
from llmperf_common.ledger.lease_sql import (
    HOLDER,
    PUBLISHER,
    count_tasks,
    holder_of,
    holder_row,
    latest_end_s,
    note_longest_ttl,
    note_publisher_ttl,
    read_holdings,
)
from llmperf_common.ledger.protocol import (
    CommitOutcome,
    Committed,
    Holder,
    Holding,
    Lease,
    LedgerLostError,
    Refused,
    TaskCounts,
    WorkerReport,
)
from llmperf_common.ledger.sqlite_errors import away, translated
from llmperf_common.store.manifests.manifest import ShardEntry

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE cursors (first INTEGER PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE attempts (task INTEGER PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE leases (
    task INTEGER PRIMARY KEY, token INTEGER NOT NULL, expires_s REAL NOT NULL,
    host TEXT NOT NULL, boot_id TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL
);
CREATE TABLE shards (
    name TEXT PRIMARY KEY, row_count INTEGER NOT NULL, byte_count INTEGER NOT NULL,
    sha256 TEXT NOT NULL, task_count INTEGER NOT NULL, published INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS unpublished ON shards (name) WHERE published = 0;
CREATE TABLE done (task INTEGER PRIMARY KEY, shard TEXT NOT NULL);
CREATE TABLE publisher (
    id INTEGER PRIMARY KEY CHECK (id = 0), expires_s REAL NOT NULL,
    host TEXT NOT NULL, boot_id TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL
);
"""
_SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"
_CLAIM_SCAN = 1000


def is_ledger(connection: sqlite3.Connection) -> bool:
    """Return whether a database has the tables of a ledger and nothing else.

    The file may be of unknown origin. Reading a view could take for ever, and a trigger would
    change what a commit writes.
    """
    found = set(connection.execute(_SCHEMA))
    return bool(found) and found <= _known_schema()


@functools.cache
def _known_schema() -> frozenset[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        for statement in (*_TABLES.split(";"), HEARTBEAT_TABLE):
            empty.execute(statement)
        return frozenset(empty.execute(_SCHEMA))


class SqliteLedger:
    """A ``Ledger`` in a SQLite database.

    Args:
        connection: a connection opened with ``isolation_level=None``; the ledger closes it.
        clock_s: the host's clock in seconds; all processes that share the file use the same.
        is_alive: whether a holder's process still runs.
        is_current: whether the file behind ``connection`` is still the one at its path.
        where: the ledger's name in messages.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        clock_s: Callable[[], float],
        is_alive: Callable[[Holder], bool],
        is_current: Callable[[], bool],
        where: str = "the ledger",
    ) -> None:
        self._db = connection
        self._where = where
        self._clock_s = clock_s
        self._is_alive = is_alive
        self._is_current = is_current
        self._epoch = int(self._meta("epoch"))

    @staticmethod
    def create(
        connection: sqlite3.Connection,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> None:
        """Fill an empty database with the published shards and the finished tasks of each shard."""
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            connection.execute(statement)
        connection.executemany(
            "INSERT INTO meta VALUES (?, ?)",
            [("epoch", epoch), ("plan_hash", plan_hash), ("next_token", 1)],
        )
        connection.executemany(
            "INSERT INTO shards VALUES (?, ?, ?, ?, ?, 1)", (_shard_row(entry) for entry in shards)
        )
        connection.executemany("INSERT INTO done VALUES (?, ?)", done)
        connection.execute("COMMIT")

    @property
    def epoch(self) -> int:
        """The epoch this ledger was built in."""
        return self._epoch

    @property
    def plan_hash(self) -> str:
        """The hash of the plan whose tasks this ledger counts."""
        return str(self._meta("plan_hash"))

    def claim(self, *, holder: Holder, tasks: range, limit: int, ttl_s: float) -> list[Lease]:
        """Lease up to ``limit`` tasks: first those of expired leases, then the next in the plan."""
        with self._transaction():
            now_s = self._clock_s()
            found = self._free_leased(tasks, limit, now_s)
            found += self._next_in_plan(tasks, limit - len(found))
            note_longest_ttl(self._db, ttl_s)
            return [self._grant(task, holder, now_s + ttl_s) for task in found]

    def renew(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease]:
        """Extend ``leases``; return those still held."""
        with self._transaction():
            expires_s = self._clock_s() + ttl_s
            return [
                lease
                for lease in leases
                if lease.epoch == self._epoch
                and self._db.execute(
                    "UPDATE leases SET expires_s = ? WHERE task = ? AND token = ?",
                    (expires_s, lease.task, lease.token),
                ).rowcount
            ]

    def release(self, leases: Sequence[Lease]) -> None:
        """End leases: their tasks are free at once."""
        with self._transaction():
            self._db.executemany(
                "UPDATE leases SET expires_s = -1 WHERE task = ? AND token = ?",
                [(lease.task, lease.token) for lease in leases if lease.epoch == self._epoch],
            )

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind all tasks of ``leases`` to ``shards`` or, if one token is stale, bind none."""
        with self._transaction():
            bound_to = shards[0].name
            if leases and self._is_repeat(bound_to, leases):
                return Committed()
            stale = tuple(lease.task for lease in leases if not self._is_held(lease))
            if stale:
                return Refused(stale)
            self._db.executemany(
                "INSERT OR IGNORE INTO shards VALUES (?, ?, ?, ?, ?, 0)",
                (_shard_row(entry) for entry in shards),
            )
            self._db.executemany(
                "INSERT INTO done VALUES (?, ?)", [(lease.task, bound_to) for lease in leases]
            )
            self._db.executemany(
                "DELETE FROM leases WHERE task = ?", [(lease.task,) for lease in leases]
            )
            return Committed()

    def unpublished(self) -> list[ShardEntry]:
        """Return the committed shards that no manifest is known to list."""
        return self._recorded("WHERE published = 0")

    def shards(self) -> list[ShardEntry]:
        """Return all shards that were ever recorded here."""
        return self._recorded()

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` are not names of recorded shards."""
        with self._transaction():
            return self._without(names)

    def check_names(
        self, names: Sequence[str], *, checker: str, number: int, after: int
    ) -> list[str] | None:
        """Return which of ``names`` no recorded shard has; store the number of the check."""
        key = f"checked:{checker}"
        with self._transaction():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            noted = int(row[0]) if row else 0
            if noted < after:
                return None
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, max(noted, number)))
            return self._without(names)

    def mark_published(self, names: Sequence[str]) -> None:
        """Note that a manifest lists these shards."""
        with self._transaction():
            self._db.executemany(
                "UPDATE shards SET published = 1 WHERE name = ?", [(name,) for name in names]
            )

    def elect_publisher(self, *, holder: Holder, ttl_s: float) -> bool:
        """Return whether ``holder`` is the publisher for the next ``ttl_s``."""
        with self._transaction():
            now_s = self._clock_s()
            row = self._db.execute(f"SELECT expires_s, {HOLDER} FROM publisher").fetchone()  # noqa: S608
            if row is not None:
                current = holder_of(row[1:])
                is_live = now_s < row[0] <= latest_end_s(self._db, now_s, of=PUBLISHER)
                if current != holder and is_live and self._is_alive(current):
                    return False
            note_publisher_ttl(self._db, ttl_s)
            self._db.execute(
                "INSERT OR REPLACE INTO publisher VALUES (0, ?, ?, ?, ?, ?)",
                (now_s + ttl_s, *holder_row(holder)),
            )
            return True

    def counts(self, tasks: range) -> TaskCounts:
        """Count the tasks of a range by state."""
        with self._transaction():
            return count_tasks(self._db, tasks, self._clock_s())

    def holdings(self, tasks: range) -> list[Holding]:
        """Return the holders of live leases on tasks of a range."""
        with self._transaction():
            return read_holdings(self._db, tasks, self._clock_s())

    def report(self, worker: str, document: str) -> None:
        """Store a worker's heartbeat, which replaces its last one.

        The report does not wait for the disk, because with ``NORMAL`` SQLite syncs only at
        checkpoints. Earlier commits stay durable; with ``OFF`` they would not.
        """
        with self._translated():
            self._db.execute("PRAGMA synchronous = NORMAL")
            try:
                with self._transaction():
                    put_report(self._db, worker, document, now_s=self._clock_s())
            finally:
                self._db.execute("PRAGMA synchronous = FULL")

    def workers(self) -> list[WorkerReport]:
        """Return each worker's last heartbeat."""
        with self._transaction():
            return read_reports(self._db, now_s=self._clock_s())

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _recorded(self, condition: str = "") -> list[ShardEntry]:
        with self._transaction():
            rows = self._db.execute(
                "SELECT name, row_count, byte_count, sha256, task_count FROM shards "  # noqa: S608
                f"{condition} ORDER BY name"
            ).fetchall()
        return [
            ShardEntry(name=name, rows=rows_, bytes=bytes_, sha256=sha256, tasks=tasks)
            for name, rows_, bytes_, sha256, tasks in rows
        ]

    def _without(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` are not names of recorded shards."""
        return [
            name
            for name in names
            if not self._db.execute("SELECT 1 FROM shards WHERE name = ?", (name,)).fetchone()
        ]

    def _meta(self, key: str) -> int | str:
        value: int | str = self._db.execute(
            "SELECT value FROM meta WHERE key = ?", (key,)
        ).fetchone()[0]
        return value

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        if not self._is_ours():
            raise LedgerLostError("the ledger's file was removed or replaced")
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:  # if the disk is full, SQLite has rolled back already
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(where=self._where, is_current=self._is_ours)

    def _is_ours(self) -> bool:
        """Whether our file is still the one at its path."""
        try:
            return self._is_current()
        except OSError as error:  # the folder cannot be read at present
            raise away(error, where=self._where) from error

    def _free_leased(self, tasks: range, limit: int, now_s: float) -> list[int]:
        """Return tasks of the range whose lease has expired or whose holder is dead."""
        bounds = (tasks.start, tasks.stop)
        holders = self._db.execute(
            f"SELECT DISTINCT {HOLDER} FROM leases WHERE task >= ? AND task < ?",  # noqa: S608
            bounds,
        ).fetchall()
        for row in holders:
            if not self._is_alive(holder_of(row)):
                self._db.execute(
                    "UPDATE leases SET expires_s = -1 "
                    "WHERE host = ? AND boot_id = ? AND pid = ? AND start_ticks = ?",
                    row,
                )
        rows = self._db.execute(
            "SELECT task FROM leases WHERE task >= ? AND task < ? "
            "AND (expires_s <= ? OR expires_s > ?) ORDER BY task LIMIT ?",
            (*bounds, now_s, latest_end_s(self._db, now_s), limit),
        ).fetchall()
        return [task for (task,) in rows]

    def _next_in_plan(self, tasks: range, limit: int) -> list[int]:
        """Return tasks that were never claimed, starting where the last claim stopped."""
        row = self._db.execute(
            "SELECT next FROM cursors WHERE first = ?", (tasks.start,)
        ).fetchone()
        position = row[0] if row else tasks.start
        found: list[int] = []
        while position < tasks.stop and len(found) < limit:
            end = min(position + _CLAIM_SCAN, tasks.stop)
            taken = {
                task
                for (task,) in self._db.execute(
                    "SELECT task FROM done WHERE task >= ?1 AND task < ?2 "
                    "UNION SELECT task FROM leases WHERE task >= ?1 AND task < ?2",
                    (position, end),
                )
            }
            while position < end and len(found) < limit:
                if position not in taken:
                    found.append(position)
                position += 1
        self._db.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (tasks.start, position))
        return found

    def _grant(self, task: int, holder: Holder, expires_s: float) -> Lease:
        (token,) = self._db.execute(
            "UPDATE meta SET value = value + 1 WHERE key = 'next_token' RETURNING value - 1"
        ).fetchone()
        (attempt,) = self._db.execute(
            "INSERT INTO attempts VALUES (?, 1) "
            "ON CONFLICT (task) DO UPDATE SET count = count + 1 RETURNING count",
            (task,),
        ).fetchone()
        self._db.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?)",
            (task, token, expires_s, *holder_row(holder)),
        )
        return Lease(task=task, epoch=self._epoch, token=token, attempt=attempt)

    def _is_held(self, lease: Lease) -> bool:
        row = self._db.execute("SELECT token FROM leases WHERE task = ?", (lease.task,)).fetchone()
        return row is not None and row[0] == lease.token and lease.epoch == self._epoch

    def _is_repeat(self, bound_to: str, leases: Sequence[Lease]) -> bool:
        return all(
            self._db.execute(
                "SELECT 1 FROM done WHERE task = ? AND shard = ?", (lease.task, bound_to)
            ).fetchone()
            for lease in leases
        )


def _shard_row(entry: ShardEntry) -> tuple[str, int, int, str, int]:
    return (entry.name, entry.rows, entry.bytes, entry.sha256, entry.tasks)
