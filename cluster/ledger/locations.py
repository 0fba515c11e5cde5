"""Where the ledgers of a run are kept, and what else lies beside its dataset: what ``--ledger`` and ``--out`` say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from llmperf_common.extras import require
from llmperf_common.ledger.attach import LedgerLocation, SqliteLocation, ledger_folder
from llmperf_common.store.files.location import local_folder, state_name
from llmperf_common.store.manifests.run import RunRecord

SQLITE = "sqlite"


def ledger_locations(
    ledger: str, location: str, state_folder: Path
) -> Callable[[RunRecord], LedgerLocation]:
    """Return what opens the ledgers of a run.

    Args:
        ledger: ``sqlite`` or the URL of a Redis server.
        location: the dataset, a folder or ``s3://…``.
        state_folder: for SQLite files whose dataset lies on a network.

    Raises:
        MissingExtra: The client library of Redis is not installed.
        LedgerUrlError: The URL is none, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses us.
    """
    if ledger == SQLITE:
        dataset = local_folder(location)

        def sqlite_location(run: RunRecord) -> LedgerLocation:
            folder = sqlite_folder(location, state_folder, run.run_id)
            return SqliteLocation(folder, is_in_dataset=folder.parent == dataset)

        return sqlite_location
    require("redis", "cluster")
    from cluster.ledger.redis import redis_locations  # noqa: PLC0415  (a server's users have the extra)

    folder = local_folder(location)
    return redis_locations(ledger, location if folder is None else str(folder.absolute()))


def sqlite_folder(location: str | Path, state_folder: Path, run_id: str) -> Path:
    """Return where the SQLite ledgers of a run lie."""
    folder = local_folder(location)
    if folder is None:  # a run begun anew under the same name has a ledger of its own
        return kept_beside(location, state_folder) / f"ledger-{run_id}"
    return ledger_folder(folder, state_folder)


def kept_beside(location: str | Path, state_folder: Path) -> Path:
    """Return where a host keeps a run's files that are no part of the dataset: in it, if it is a folder."""
    folder = local_folder(location)
    return state_folder / state_name(str(location)) if folder is None else folder
