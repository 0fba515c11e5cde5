"""Translate SQLite's errors into errors of the ledger.

Decides which failures belong to the disk, which to the ledger's file, and which are bugs. A failure
is recognised by SQLite's error code.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

from llmperf_common.errors import LlmperfError
from llmperf_common.ledger.protocol import LedgerAwayError, LedgerLostError
from llmperf_common.store.files.filesystem import StoreError

_PRIMARY_CODE = 0xFF
"""The bits of an error code that name its kind; the others name the system call that failed."""
_OF_THE_DISK = frozenset(
    {
        sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL,
    }
)  # fmt: skip
"""Errors that say nothing about the ledger's content: a quota, a limit of file sizes, failing
hardware, changed permissions, or a stopped process that holds the file's lock."""
_OF_DAMAGE = frozenset({sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS})
"""Disk errors that do not pass: a file was cut short, or its file system is damaged."""


@contextlib.contextmanager
def translated(*, where: str, is_current: Callable[[], bool]) -> Iterator[None]:
    """Raise the ledger's errors in place of SQLite's; for the arguments see ``as_ours``."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise  # a bug of LLMPerf, such as a task bound twice; attaching again would hide it
    except sqlite3.DatabaseError as error:
        raise as_ours(error, where=where, is_current=is_current) from error


def as_ours(
    error: sqlite3.DatabaseError, *, where: str, is_current: Callable[[], bool]
) -> LlmperfError | LedgerLostError:
    """Return the ledger's error for a failed transaction.

    If the disk fails, the ledger is not lost: attaching again would open the same file, and the
    next transaction would fail in the same way. So the caller keeps its work and waits.

    Args:
        error: SQLite's error.
        where: the ledger's name in messages.
        is_current: whether the ledger's file is still the one at its path.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    kind = code & _PRIMARY_CODE
    if kind == sqlite3.SQLITE_FULL:
        return StoreError(
            f"no space left for {where}: nothing committed is lost; "
            "free some space and run the same command again"
        )
    if kind in _OF_THE_DISK and code not in _OF_DAMAGE and is_current():
        return away(f"{error} ({getattr(error, 'sqlite_errorname', '')})", where=where)
    return LedgerLostError(f"the ledger cannot be used: {error}")


def away(error: object, *, where: str) -> LedgerAwayError:
    """Return the ledger's error for a disk that fails."""
    return LedgerAwayError(
        f"{where} cannot be read or written: {error}: nothing committed is lost; check its disk, "
        "your quota there, its permissions and the limit of file sizes (`ulimit -f`)"
    )
