"""Read counts and heartbeats from a SQLite ledger without changing it, as ``llmperf status`` does.

Opens the file so that nothing is created or written, and no writer has to wait. A collector opens
its ledger through ``attach.py``.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from llmperf_common.files.plain_files import is_own_file
from llmperf_common.ledger.heartbeat_sql import read_reports
from llmperf_common.ledger.lease_sql import count_tasks
from llmperf_common.ledger.protocol import TaskCounts, WorkerReport
from llmperf_common.ledger.sqlite_files import log_and_index, may_be_opened

_TIMEOUT_S = 1.0
_LONGEST_LOOK_S = 5.0
_STEPS_A_CHECK = 100_000
_MAX_VALUE_BYTES = 2**20
"""Maximum number of bytes of one value; a heartbeat has a few KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """A ledger at one moment.

    Attributes:
        epoch: the epoch of the ledger.
        counts: task counts, one for each requested range, in the order of the request.
        workers: the last heartbeat of each worker.
    """

    epoch: int
    counts: tuple[TaskCounts, ...]
    workers: tuple[WorkerReport, ...]


def class_ranges(num_tasks: int, num_classes: int) -> tuple[range, ...]:
    """Return the tasks of each device class of a plan, in order; all classes have the same number.

    >>> class_ranges(6, 2)
    (range(0, 3), range(3, 6))
    """
    if not num_classes:
        return ()
    each = num_tasks // num_classes
    return tuple(range(number * each, (number + 1) * each) for number in range(num_classes))


def look_at_sqlite(folder: Path, ranges: Sequence[range], *, now_s: float) -> LedgerView | None:
    """Return the state in the newest ledger of ``folder``; None if no ledger there can be read.

    Args:
        folder: the folder of a ``SqliteLocation``.
        ranges: ranges of tasks, one for each device class.
        now_s: current time by the clock of the ledger's writers (``boot_clock_s``).
    """
    paths = sorted(folder.glob("ledger-*.sqlite"))
    if not paths or (log := _log_of(paths[-1])) is None:
        return None
    try:
        with contextlib.closing(_opened(paths[-1], has_log=log)) as db:
            return _view(db, ranges, now_s)
    except (sqlite3.DatabaseError, TypeError, ValueError, OverflowError):
        return None  # the file is damaged, has an unknown form, or was removed meanwhile


def _log_of(path: Path) -> bool | None:
    """Return whether a ledger has a write-ahead log; None if SQLite must not read the ledger.

    A log without an index has no writer, and SQLite would create the index to read the log.
    """
    is_there, has_log, has_index = (is_own_file(one) for one in (path, *log_and_index(path)))
    if not is_there or not may_be_opened(path) or (has_log and not has_index):
        return None
    return bool(has_log)


def _opened(path: Path, *, has_log: bool) -> sqlite3.Connection:
    """Open a ledger read-only.

    Without a write-ahead log a ledger has no writer, and the file is whole.
    """
    how = "mode=ro" if has_log else "mode=ro&immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?{how}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_TIMEOUT_S)
    # The file may be of unknown origin, and contain a view whose query never ends: limit the time
    # of queries and the size of values.
    give_up_s = time.monotonic() + _LONGEST_LOOK_S
    db.set_progress_handler(lambda: time.monotonic() > give_up_s, _STEPS_A_CHECK)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _view(db: sqlite3.Connection, ranges: Sequence[range], now_s: float) -> LedgerView:
    db.execute("BEGIN")  # all queries see one state; with a write-ahead log readers block no writer
    (epoch,) = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    view = LedgerView(
        epoch=int(epoch),
        counts=tuple(count_tasks(db, tasks, now_s) for tasks in ranges),
        workers=tuple(read_reports(db, now_s=now_s)),
    )
    db.execute("COMMIT")
    return view
