"""The heartbeats of a SQLite ledger: the last report of each worker.

Owns the table ``workers``. The first report creates the table, because ledgers of earlier releases
lack it. Collectors write in a transaction of ``sqlite.py``; viewers read through ``looking.py``.
"""

from __future__ import annotations

import sqlite3

from llmperf_common.ledger.protocol import (
    LONGEST_REPORT,
    MOST_REPORTS,
    SILENT_LIMIT_S,
    WorkerReport,
)

HEARTBEAT_TABLE = """
CREATE TABLE IF NOT EXISTS workers (
    worker TEXT PRIMARY KEY, at_s REAL NOT NULL, document TEXT NOT NULL
) WITHOUT ROWID
"""


def put_report(db: sqlite3.Connection, worker: str, document: str, *, now_s: float) -> None:
    """Store a worker's last report.

    Reports older than ``SILENT_LIMIT_S`` are deleted. So are reports with a time in the future:
    they were written before the host booted again, when its boot clock was ahead.
    """
    db.execute(HEARTBEAT_TABLE)
    db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?)", (worker, now_s, document))
    db.execute(
        "DELETE FROM workers WHERE at_s < ? OR at_s > ?", (now_s - SILENT_LIMIT_S, now_s + 1)
    )


def read_reports(db: sqlite3.Connection, *, now_s: float) -> list[WorkerReport]:
    """Return the last heartbeat of each worker; an empty list if no worker has reported.

    Only the newest ``MOST_REPORTS`` are read, and none that is longer than ``LONGEST_REPORT``.
    """
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'workers'").fetchone():
        return []
    rows = db.execute(
        "SELECT worker, at_s, document FROM workers WHERE at_s >= ? AND at_s <= ? "
        "AND typeof(worker) = 'text' AND length(worker) <= ? "
        "AND typeof(document) = 'text' AND length(document) <= ? ORDER BY at_s DESC LIMIT ?",
        (now_s - SILENT_LIMIT_S, now_s + 1, LONGEST_REPORT, LONGEST_REPORT, MOST_REPORTS),
    )
    return [
        WorkerReport(worker=worker, age_s=max(0.0, now_s - at_s), document=document)
        for worker, at_s, document in sorted(rows)
    ]
