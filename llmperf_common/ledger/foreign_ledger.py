"""Check the values in a SQLite ledger, which may come from a stranger.

SQLite stores values of any type in almost any column. An impossible value would end a collector with
an error in another place, or make it wait for ever: for a lease that ends in a million years, or for
an unfinished task that the cursor has already passed. A ledger with such a value counts as damaged,
and ``attach.py`` builds a new one from the shards.

A ledger whose values are possible but wrong, such as a task falsely marked as finished, is not
detected.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import chain
from typing import Any

from llmperf_common.ledger.lease_sql import HOLDER, LEASES, PUBLISHER, holder_of
from llmperf_common.store.manifests.manifest import ShardEntry

_LONGEST_TTL_S = 86_400
"""Maximum TTL of a lease in seconds; a config may have 3,600."""
_LATEST_S = 1e12
"""Maximum time at which a lease ends, in seconds on the host's boot clock."""
_MOST = 2**40
"""Maximum number of tasks."""

_MOST_CURSORS = 10_000
"""Maximum number of cursors; there is one for each device class."""

_OF_TASKS = """
SELECT EXISTS (SELECT 1 FROM done WHERE task < 0 OR typeof(shard) <> 'text')
    OR EXISTS (SELECT 1 FROM attempts WHERE task < 0 OR typeof(count) <> 'integer' OR count < 0)
"""
_TAKEN = """
SELECT (SELECT COUNT(*) FROM done WHERE task >= ?1 AND task < ?2)
    + (SELECT COUNT(*) FROM leases WHERE task >= ?1 AND task < ?2
        AND NOT EXISTS (SELECT 1 FROM done WHERE done.task = leases.task))
"""
"""Counts the tasks of a range that are finished or were leased."""


def has_own_values(db: sqlite3.Connection) -> bool:
    """Return whether a database with the tables of a ledger has only values that a ledger writes.

    Raises:
        ValueError, TypeError: A value is of another type.
        sqlite3.Error: The database cannot be read, or a text is not UTF-8.
    """
    db.execute("BEGIN")  # other collectors may write meanwhile
    try:
        if db.execute(_OF_TASKS).fetchone()[0]:
            return False
        # One after another: a cursor may be read only if those before it are right.
        return all(chain(_shards(db), _facts(db), _leases(db), _cursors(db)))
    finally:
        if db.in_transaction:  # after a disk error SQLite has rolled back already
            db.execute("ROLLBACK")


def _shards(db: sqlite3.Connection) -> Iterator[bool]:
    rows = db.execute(
        "SELECT name, row_count, byte_count, sha256, task_count, published FROM shards"
    )
    for name, num_rows, num_bytes, sha256, tasks, published in rows:
        # raises an error if the name is not that of a shard, or a number is none
        ShardEntry(name=name, rows=num_rows, bytes=num_bytes, sha256=sha256, tasks=tasks)
        yield published in (0, 1)


def _facts(db: sqlite3.Connection) -> Iterator[bool]:
    for key, value in db.execute("SELECT key, value FROM meta"):
        if key == "plan_hash":
            yield isinstance(value, str)
        elif key in (LEASES, PUBLISHER):
            yield isinstance(value, int | float) and 0 < value <= _LONGEST_TTL_S
        else:
            yield _is_count(value)


def _leases(db: sqlite3.Connection) -> Iterator[bool]:
    for token, expires_s, *holder in db.execute(
        f"SELECT token, expires_s, {HOLDER} FROM leases "  # noqa: S608  (our own names)
        f"UNION ALL SELECT id, expires_s, {HOLDER} FROM publisher"
    ):
        holder_of(holder)  # raises ValueError if a number is a text
        yield _is_count(token) and isinstance(expires_s, float) and expires_s < _LATEST_S


def _cursors(db: sqlite3.Connection) -> Iterator[bool]:
    """Check that the cursors' ranges are apart, and that no task before a cursor was passed over.

    Overlapping ranges would be counted again and again.
    """
    rows = db.execute(f"SELECT first, next FROM cursors ORDER BY first LIMIT {_MOST_CURSORS + 1}")  # noqa: S608
    cursors = rows.fetchall()
    yield len(cursors) <= _MOST_CURSORS
    end = 0
    for first, following in cursors:
        yield _is_count(following) and end <= first <= following <= _MOST
        yield db.execute(_TAKEN, (first, following)).fetchone()[0] == following - first
        end = following


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**62
