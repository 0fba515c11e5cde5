"""The heartbeats of a SQLite ledger: what each worker last told of itself.

Owns its table, which is made by the first report: ledgers of before there were heartbeats have none. Collectors write in a
transaction of ``sqlite.py``; viewers read through ``looking.py``.
"""

from __future__ import annotations

import sqlite3

from llmperf_common.ledger.protocol import SILENT_LIMIT_S, WorkerReport

_TABLE = """
CREATE TABLE IF NOT EXISTS workers (worker TEXT PRIMARY KEY, at_s REAL NOT NULL, document TEXT NOT NULL) WITHOUT ROWID
"""


def put_report(db: sqlite3.Connection, worker: str, document: str, *, now_s: float) -> None:
    """Note a worker's document and forget the workers that were silent for long, or that told of an earlier boot."""
    db.execute(_TABLE)
    db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?)", (worker, now_s, document))
    db.execute(
        "DELETE FROM workers WHERE at_s < ? OR at_s > ?", (now_s - SILENT_LIMIT_S, now_s + 1)
    )


def read_reports(db: sqlite3.Connection, *, now_s: float) -> list[WorkerReport]:
    """Return the last heartbeat of each worker; nothing where there is none yet."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'workers'").fetchone():
        return []
    rows = db.execute(
        "SELECT worker, at_s, document FROM workers WHERE at_s >= ? AND at_s <= ? ORDER BY worker",
        (now_s - SILENT_LIMIT_S, now_s + 1),
    )
    return [
        WorkerReport(worker=worker, age_s=max(0.0, now_s - at_s), document=document)
        for worker, at_s, document in rows
    ]
