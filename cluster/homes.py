"""Where the ledgers of a run are kept: what ``--ledger`` says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmperf_common.extras import require
from llmperf_common.ledger.attach import LedgerHome, SqliteHome, ledger_folder
from llmperf_common.store.run import RunRecord

SQLITE = "sqlite"


def ledger_home(
    ledger: str, location: str, state_folder: Path
) -> Callable[[RunRecord], LedgerHome]:
    """Return what opens the ledgers of a run.

    Args:
        ledger: ``sqlite`` or the URL of a Redis server.
        location: the dataset folder.
        state_folder: for SQLite files whose dataset lies on a network.

    Raises:
        MissingExtra: The client library of Redis is not installed.
        LedgerUrlError: The URL is none, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses us.
    """
    if ledger == SQLITE:
        return lambda _run: SqliteHome(ledger_folder(Path(location), state_folder))
    require("redis", "cluster")
    from cluster.ledger_redis import redis_home  # noqa: PLC0415  (a server's users have the extra)

    named = location if "://" in location else str(Path(location).absolute())
    return redis_home(ledger, named)
