"""The files beside a SQLite ledger, and whether SQLite may open a ledger of unknown origin.

Ledgers have a write-ahead log, never a rollback journal. A journal can name another file (a
"super-journal"), which SQLite deletes after it has rolled the journal back. So no ledger with a
journal beside it is opened, and a new ledger starts without files of others beside it.
"""

from __future__ import annotations

from pathlib import Path

from llmperf_common.files.plain_files import is_own_file


def log_and_index(path: Path) -> list[Path]:
    """Return the paths of a ledger's write-ahead log and of the index of this log."""
    return [_beside(path, "-wal"), _beside(path, "-shm")]


def may_be_opened(path: Path) -> bool:
    """Whether the ledger at ``path`` has no journal, and none of its files is a link.

    A link could lead to the database of another dataset.
    """
    has_journal = is_own_file(_beside(path, "-journal")) is not None
    return not has_journal and all(
        is_own_file(one) is not False for one in (path, *log_and_index(path))
    )


def remove_beside(path: Path) -> None:
    """Remove journal, log and index that lie beside a ledger that does not exist yet."""
    for one in (_beside(path, "-journal"), *log_and_index(path)):
        one.unlink(missing_ok=True)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}{ending}")
