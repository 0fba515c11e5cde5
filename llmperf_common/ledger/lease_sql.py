"""Leases in a SQLite ledger: the columns of their holders, and which leases are live.

Owns the rule that a lease counts as expired if it ends later than twice the longest TTL from now.
So late an end was written during an earlier boot of the host, when its boot clock was ahead. This
matters if the holder ran in a container whose host name has changed since: such a holder cannot be
seen, so only its lease can show that it is dead. The ledger stores the longest TTL, because
collectors may use different ones. Collectors call these functions in a transaction of
``sqlite.py``; viewers call ``count_tasks`` through ``looking.py``.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence

from llmperf_common.ledger.protocol import LONGEST_STAY, Holder, Holding, TaskCounts

HOLDER = "host, boot_id, pid, start_ticks"
"""The columns of a holder."""
LEASES = "longest_ttl_s"
PUBLISHER = "publisher_ttl_s"


def holder_of(row: Sequence[object]) -> Holder:
    """Return the holder whose columns are ``row``."""
    host, boot_id, pid, start_ticks = row
    return Holder(
        host=str(host), boot_id=str(boot_id), pid=int(str(pid)), start_ticks=int(str(start_ticks))
    )


def holder_row(holder: Holder) -> tuple[str, str, int, int]:
    """Return the columns of a holder."""
    return (holder.host, holder.boot_id, holder.pid, holder.start_ticks)


def note_longest_ttl(db: sqlite3.Connection, ttl_s: float) -> None:
    """Store ``ttl_s`` as the longest TTL of a lease if no longer one is stored."""
    db.execute(
        "INSERT INTO meta VALUES (?, ?) "
        "ON CONFLICT (key) DO UPDATE SET value = MAX(value, excluded.value)",
        (LEASES, ttl_s),
    )


def note_publisher_ttl(db: sqlite3.Connection, ttl_s: float) -> None:
    """Store for how many seconds the present publisher is elected."""
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (PUBLISHER, ttl_s))


def latest_end_s(db: sqlite3.Connection, now_s: float, *, of: str = LEASES) -> float:
    """Return the latest time at which a live lease can end; infinity in an older ledger.

    Args:
        db: the ledger.
        now_s: current time by the ledger's clock.
        of: ``LEASES`` or ``PUBLISHER``.
    """
    row = db.execute("SELECT value FROM meta WHERE key = ?", (of,)).fetchone()
    return now_s + LONGEST_STAY * float(row[0]) if row else math.inf


def count_tasks(db: sqlite3.Connection, tasks: range, now_s: float) -> TaskCounts:
    """Count the tasks of a range by state."""
    bounds = (tasks.start, tasks.stop)
    (done,) = db.execute(
        "SELECT COUNT(*) FROM done WHERE task >= ? AND task < ?", bounds
    ).fetchone()
    (leased,) = db.execute(
        "SELECT COUNT(*) FROM leases "
        "WHERE task >= ? AND task < ? AND expires_s > ? AND expires_s <= ?",
        (*bounds, now_s, latest_end_s(db, now_s)),
    ).fetchone()
    return TaskCounts(done=done, leased=leased, total=len(tasks))


def read_holdings(db: sqlite3.Connection, tasks: range, now_s: float) -> list[Holding]:
    """Return the holders of live leases on tasks of a range."""
    rows = db.execute(
        "SELECT host || '/' || pid, COUNT(*), MAX(expires_s) FROM leases "
        "WHERE task >= ? AND task < ? AND expires_s > ? AND expires_s <= ? "
        "GROUP BY host, boot_id, pid, start_ticks ORDER BY host, pid",
        (tasks.start, tasks.stop, now_s, latest_end_s(db, now_s)),
    ).fetchall()
    return [
        Holding(holder=holder, num_tasks=num_tasks, expires_in_s=expires_s - now_s)
        for holder, num_tasks, expires_s in rows
    ]
