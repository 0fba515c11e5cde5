"""A SQLite ledger whose disk refuses it for a while: nothing is taken for lost, and no loop is without end."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from llmperf.exits import Exit
from llmperf_common.ledger.attach import SqliteLocation, attach
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import Ledger, LedgerAwayError, LedgerLostError
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import Collect, events, replay_file, write_kernels
from tests.support.contracts.ledger_contract import PLAN_HASH, TASKS, TTL_S, claim, tasks_of

_AT_A_LIMIT = """
import resource, sys
from pathlib import Path
from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import LedgerAwayError

ledger = SqliteLocation(Path(sys.argv[1])).open(1, sys.argv[2])
holder = this_process()
leases = ledger.claim(holder=holder, tasks=range(6), limit=2, ttl_s=60)
log = Path(sys.argv[1]) / "ledger-000001.sqlite-wal"
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
for _ in range(3):
    try:
        ledger.claim(holder=holder, tasks=range(6), limit=1, ttl_s=60)
        print("claimed")
    except LedgerAwayError as error:
        print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print(ledger.renew(leases, ttl_s=60) == leases)
print([lease.task for lease in ledger.claim(holder=holder, tasks=range(6), limit=9, ttl_s=60)])
"""


def test_a_limit_of_file_sizes_keeps_the_leases(tmp_path: Path) -> None:
    SqliteLocation(tmp_path).create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[]).close()
    done = subprocess.run(
        [sys.executable, "-c", _AT_A_LIMIT, tmp_path, PLAN_HASH],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *refused, is_held, claimed = done.stdout.splitlines()
    assert len(refused) == 3
    for line in refused:
        for words in (str(tmp_path), "ulimit -f", "SQLITE_IOERR", "nothing committed is lost"):
            assert words in line
    assert (is_held, claimed) == ("True", "[2, 3, 4, 5]")


def test_a_ledger_that_may_not_be_written_is_not_lost(tmp_path: Path) -> None:
    location = SqliteLocation(tmp_path)
    ledger = location.create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    leases = claim(ledger, this_process(), 2)
    ledger._db.execute("PRAGMA query_only = ON")  # type: ignore[attr-defined]
    with pytest.raises(LedgerAwayError, match="READONLY"):
        claim(ledger, this_process())
    ledger._db.execute("PRAGMA query_only = OFF")  # type: ignore[attr-defined]
    assert ledger.renew(leases, ttl_s=TTL_S) == leases
    assert tasks_of(claim(ledger, this_process(), 9)) == list(TASKS)[2:]
    ledger.close()


def test_a_log_that_was_cut_short_is_damage(tmp_path: Path) -> None:
    """Waiting would not mend it, so the ledger is built anew."""
    location = SqliteLocation(tmp_path)
    ledger = location.create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    other = location.open(1, PLAN_HASH)
    assert other is not None
    for first in range(0, 4000, 200):
        ledger.claim(holder=this_process(), tasks=range(first, first + 200), limit=150, ttl_s=TTL_S)
    os.truncate(tmp_path / "ledger-000001.sqlite-wal", 0)
    with pytest.raises(LedgerLostError, match="cannot be used: disk I/O error"):
        other.counts(range(4000))
    ledger.close()
    other.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("when", ["before", "after SQLite's error"])
def test_a_folder_that_cannot_be_read_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, when: str
) -> None:
    ledger = SqliteLocation(tmp_path).create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    leases = claim(ledger, this_process(), 2)
    num_stats = 0

    def stat(path: Path, **options: Any) -> os.stat_result:
        nonlocal num_stats
        num_stats += path.suffix == ".sqlite"
        if when == "before" or num_stats > 1:
            raise OSError(number, os.strerror(number), str(path))
        return os.stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        ledger._db.execute("PRAGMA query_only = ON")  # type: ignore[attr-defined]
        with pytest.raises(LedgerAwayError, match="nothing committed is lost"):
            ledger.release(leases)
    ledger._db.execute("PRAGMA query_only = OFF")  # type: ignore[attr-defined]
    assert ledger.renew(leases, ttl_s=TTL_S) == leases
    ledger.close()


class FailingConnection:
    """A connection on which a statement fails."""

    def __init__(self, connection: sqlite3.Connection, words: str, name: str) -> None:
        self._connection = connection
        self._words = words
        self._name = name

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        if self._words in sql:
            error = sqlite3.OperationalError("simulated")
            error.sqlite_errorname = self._name
            error.sqlite_errorcode = getattr(sqlite3, self._name)
            raise error
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.mark.parametrize("words", ["sqlite_master", "journal_mode", "quick_check", "plan_hash"])
@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        ("SQLITE_IOERR_READ", True),
        ("SQLITE_BUSY", True),
        ("SQLITE_CANTOPEN", True),
        ("SQLITE_IOERR_SHORT_READ", False),
        ("SQLITE_CORRUPT", False),
        ("SQLITE_NOTADB", False),
    ],
)
def test_a_start_during_an_outage_does_not_end_the_ledger_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, name: str, is_kept: bool
) -> None:
    others = _attached(tmp_path)
    leases = claim(others, this_process(), 2)
    connect = sqlite3.connect

    def failing(path: Path, **options: Any) -> FailingConnection:
        is_first = Path(path).name == "ledger-000001.sqlite"
        return FailingConnection(connect(path, **options), words if is_first else "\0", name)

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", failing)
        # plan_hash is a parameter, not a part of the statement
        patch.setattr(SqliteLedger, "_meta", _meta_with_its_key_in_the_statement)
        if is_kept:
            with pytest.raises(LedgerAwayError, match=f"{name}.*nothing committed is lost"):
                _attached(tmp_path)
        else:
            _attached(tmp_path).close()
    if is_kept:
        assert others.renew(leases, ttl_s=TTL_S) == leases
    assert sorted(os.listdir(tmp_path / "epochs")) == ["000001", "000002"][: 2 - is_kept]
    others.close()


def _meta_with_its_key_in_the_statement(ledger: SqliteLedger, key: str) -> int | str:
    sql = f"SELECT value FROM meta WHERE key = '{key}'"
    value: int | str = ledger._db.execute(sql).fetchone()[0]
    return value


def test_a_start_in_a_folder_that_cannot_be_read_takes_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _attached(tmp_path).close()

    def lstat(path: Path) -> os.stat_result:
        if path.suffix == ".sqlite":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return os.lstat(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", lstat)
        with pytest.raises(LedgerAwayError, match="Input/output error"):
            _attached(tmp_path)
    assert os.listdir(tmp_path / "epochs") == ["000001"]


def _attached(folder: Path) -> Ledger:
    return attach(
        PosixFilesystem(folder),
        SqliteLocation(folder / "ledger"),
        plan_hash=PLAN_HASH,
        index_of=int,
        who="test",
    )


def test_a_run_at_a_limit_of_file_sizes_ends_and_goes_on_later(tmp_path: Path) -> None:
    """Before, it lost and opened its ledger 30 times a second, for ever."""
    corpus = write_kernels(tmp_path / "kernels", [f"k{index:02d}" for index in range(60)])
    options = (
        "--samples-per-kernel", "4",
        "--set", "timing.spin_up_ms=0",
        "--set", "timing.cold_readings=0",
        "--set", "store.commit_interval_s=0.05",
        "--set", "store.publish_interval_s=0.05",
        "--set", "ledger.away_limit_s=3",
    )  # fmt: skip
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = Collect(corpus, tmp_path / "out", replay_file(tmp_path / "r.json"), options, state)
    process = command.start(("bash", "-c", 'ulimit -S -f 120 && exec "$0" "$@"'))
    _, err = process.communicate(timeout=120)
    assert process.returncode == Exit.BAD_INPUT, err
    assert "Traceback" not in err
    assert "ulimit -f" in err
    lost = [one for one in events(tmp_path / "out") if one["event"] == "lost"]
    assert len(lost) < 5
    done = command.run()
    assert done.returncode == 0, done.stderr
    report = verify(tmp_path / "out")
    assert [str(one) for one in report.problems] == []
    assert report.counts.tasks == 60
    assert os.listdir(tmp_path / "out" / "epochs") == ["000001"], "its ledger was never lost"
