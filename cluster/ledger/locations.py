"""Find out where a run keeps its ledgers and other files, from ``--ledger`` and ``--out``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from llmperf_common.config import ConfigError
from llmperf_common.extras import require
from llmperf_common.ledger.attach import LedgerLocation, SqliteLocation, ledger_folder
from llmperf_common.store.files.location import local_folder, state_name
from llmperf_common.store.manifests.run import RunRecord

SQLITE = "sqlite"
_MOST_BYTES = 482
"""Maximum length of the path of a SQLite ledger's folder. SQLite opens files with paths of up to
504 bytes; a new ledger's file has a name of up to 21 bytes, such as .tmp-4194304-1.sqlite."""


def ledger_locations(
    ledger: str, location: str, state_folder: Path
) -> Callable[[RunRecord], LedgerLocation]:
    """Return a function that returns the location of a run's ledgers.

    Args:
        ledger: ``sqlite`` or the URL of a Redis server.
        location: the dataset, a folder or ``s3://…``.
        state_folder: folder for the SQLite files of datasets on a network file system or in an
            object store.

    Raises:
        MissingExtra: The client library of Redis is not installed.
        LedgerUrlError: The URL is invalid, or its server is too old.
        LedgerAwayError: The server cannot be reached, or refuses to serve us.
        ConfigError: The path of the SQLite ledger is too long.
    """
    if ledger == SQLITE:
        dataset = local_folder(location)
        _check_length(sqlite_folder(location, state_folder, "0" * 20))

        def sqlite_location(run: RunRecord) -> LedgerLocation:
            folder = sqlite_folder(location, state_folder, run.run_id)
            return SqliteLocation(folder, is_in_dataset=folder.parent == dataset)

        return sqlite_location
    require("redis", "cluster")
    from cluster.ledger.redis import redis_locations  # noqa: PLC0415  (needs the extra `cluster`)

    folder = local_folder(location)
    return redis_locations(ledger, location if folder is None else str(folder.absolute()))


def _check_length(folder: Path) -> None:
    """Raise ConfigError if SQLite cannot open files in ``folder``.

    The check is made before anything is written. Otherwise a failure would leave a dataset folder
    with a run but without a ledger.
    """
    num_bytes = len(os.fsencode(folder.resolve()))
    if num_bytes > _MOST_BYTES:
        raise ConfigError(
            f"{folder}: the path of the ledger's folder is too long: it has {num_bytes} bytes, and "
            f"SQLite allows {_MOST_BYTES}: choose a shorter path for --out"
        )


def sqlite_folder(location: str | Path, state_folder: Path, run_id: str) -> Path:
    """Return the folder of a run's SQLite ledgers."""
    folder = local_folder(location)
    if folder is None:  # in S3 a later dataset may get the same name, but needs its own ledger
        return kept_beside(location, state_folder) / f"ledger-{run_id}"
    return ledger_folder(folder, state_folder)


def kept_beside(location: str | Path, state_folder: Path) -> Path:
    """Return the folder for a run's event logs: the dataset's own, or one on this host for S3."""
    folder = local_folder(location)
    return state_folder / state_name(str(location)) if folder is None else folder
