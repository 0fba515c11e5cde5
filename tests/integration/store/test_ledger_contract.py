"""The ledger contract on SQLite with real files, and what only a file can suffer."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import settings

from llmperf_common.ledger.attach import SqliteLocation, attach
from llmperf_common.ledger.holder import boot_clock_s, is_alive, this_process
from llmperf_common.ledger.protocol import Committed, Holder, Ledger, LedgerLostError
from llmperf_common.ledger.sqlite import SqliteLedger
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.epochs import take_next_epoch
from llmperf_common.store.manifests.manifest import ShardEntry
from tests.support.contracts.ledger_contract import (
    EPOCH,
    PLAN_HASH,
    TASKS,
    Harness,
    LedgerContract,
    claim,
    shard_pair,
    tasks_of,
)
from tests.support.contracts.ledger_machine import LedgerMachine
from tests.support.contracts.rollback_contract import RestorableHarness, RollbackContract

_SIMULATED_HOST = "simulated"


class SqliteHarness:
    """A ledger file; its clock and the lives of simulated holders are the test's."""

    sees_deaths = True

    def __init__(self, folder: Path) -> None:
        self._location = SqliteLocation(folder)
        self._path = folder / f"ledger-{EPOCH:06d}.sqlite"
        self._folder = folder
        self._now_s = boot_clock_s()  # as the processes of some tests
        self._dead: set[Holder] = set()
        self._opened: list[Ledger] = []
        self._copies: list[sqlite3.Connection] = []
        self._location.create(epoch=EPOCH, plan_hash=PLAN_HASH, shards=[], done=[]).close()

    def open(self) -> Ledger:
        """Open one more connection."""
        connection = sqlite3.connect(self._path, isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")  # no power is cut here
        ledger = SqliteLedger(
            connection,
            clock_s=lambda: self._now_s,
            is_alive=self._is_alive,
            is_current=self._path.exists,
        )
        self._opened.append(ledger)
        return ledger

    def connector(self) -> Callable[[], Ledger]:
        """Return a picklable function that opens the ledger in another process."""
        return functools.partial(open_ledger, self._folder)

    def holder(self, number: int) -> Holder:
        """Return a simulated worker."""
        return Holder(host=_SIMULATED_HOST, boot_id="b", pid=number, start_ticks=0)

    def kill(self, holder: Holder) -> None:
        """End a simulated worker."""
        self._dead.add(holder)

    def pass_time(self, seconds: float) -> None:
        """Let the ledger's clock go on."""
        self._now_s += seconds

    def wipe(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder)

    def save(self) -> sqlite3.Connection:
        """Return a copy of the ledger's present state."""
        copy = sqlite3.connect(":memory:")
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            database.backup(copy)
        self._copies.append(copy)
        return copy

    def restore(self, state: sqlite3.Connection) -> None:
        """Put a saved state in place."""
        with contextlib.closing(sqlite3.connect(self._path)) as database:
            database.execute("PRAGMA synchronous = OFF")
            state.backup(database)

    def close(self) -> None:
        """Close all connections."""
        for one in (*self._opened, *self._copies):
            one.close()

    def _is_alive(self, holder: Holder) -> bool:
        return holder not in self._dead if holder.host == _SIMULATED_HOST else is_alive(holder)


def open_ledger(folder: Path) -> Ledger:
    """Open the ledger as a collector does."""
    ledger = SqliteLocation(folder).open(EPOCH, PLAN_HASH)
    assert ledger is not None
    return ledger


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[RestorableHarness]:
    made = SqliteHarness(tmp_path / "ledger")
    yield made
    made.close()


class TestSqliteContract(LedgerContract):
    """The contract, on SQLite."""


class TestSqliteRollbacks(RollbackContract):
    """A restored ledger, on SQLite."""


class SqliteMachine(LedgerMachine):
    """The state machine, on SQLite."""

    def make_harness(self) -> Harness:
        """Return a ledger in a folder of its own."""
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-"))
        return SqliteHarness(self.folder / "ledger")

    def teardown(self) -> None:
        """Remove the folder."""
        super().teardown()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_leases_run_out_by_the_ledgers_clock_alone(harness: Harness) -> None:
    """A renewal counts from the ledger's now, whatever the holder's clock says."""
    ledger = harness.open()
    leases = ledger.claim(holder=harness.holder(1), tasks=TASKS, limit=6, ttl_s=5)
    for _ in range(10):
        harness.pass_time(4)
        assert ledger.renew(leases, ttl_s=5) == leases
    assert claim(ledger, harness.holder(2), 6) == []
    harness.pass_time(5)
    assert tasks_of(claim(ledger, harness.holder(2), 6)) == list(TASKS)


def test_a_process_killed_in_a_transaction_leaves_the_ledger_usable(harness: Harness) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_die_in_commit, args=(harness.connector(), theirs))
    process.start()
    assert ours.recv() == "in the transaction"
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    ledger = harness.open()
    assert ledger.counts(TASKS).done == 0
    leases = claim(ledger, harness.holder(1), 6)
    assert tasks_of(leases) == list(TASKS)
    assert ledger.commit(shards=shard_pair("s", 6), leases=leases) == Committed()


def _die_in_commit(connect: Callable[[], Ledger], pipe: Connection) -> None:
    ledger = connect()
    assert isinstance(ledger, SqliteLedger)
    leases = claim(ledger, this_process(), 2)
    with ledger._transaction():
        ledger._db.execute("INSERT INTO done VALUES (?, 'half')", (leases[0].task,))
        pipe.send("in the transaction")
        pipe.recv()


def _attached(dataset: Path, ledger_location: SqliteLocation | None = None) -> Ledger:
    return attach(
        PosixFilesystem(dataset),
        ledger_location or SqliteLocation(dataset / "ledger"),
        plan_hash=PLAN_HASH,
        index_of=int,
        who="test",
    )


def test_attaching_again_opens_the_same_ledger(tmp_path: Path) -> None:
    first = _attached(tmp_path)
    leases = claim(first, this_process(), 2)
    second = _attached(tmp_path)
    assert (first.epoch, second.epoch) == (1, 1)
    assert second.renew(leases, ttl_s=60) == leases
    first.close()
    second.close()


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "header", "gone", "folder gone"])
def test_a_damaged_ledger_is_rebuilt_in_the_next_epoch(tmp_path: Path, damage: str) -> None:
    old = _attached(tmp_path)
    claim(old, this_process(), 6)
    old.close()
    path = tmp_path / "ledger" / "ledger-000001.sqlite"
    data = path.read_bytes()
    _damage(path, data, damage)
    new = _attached(tmp_path)
    assert new.epoch == 2
    assert not path.exists()
    assert tasks_of(claim(new, this_process(), 6)) == list(TASKS)
    new.close()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON done BEGIN DELETE FROM done WHERE task = new.task; END",
        "CREATE VIEW v AS SELECT 1",
        "ALTER TABLE done ADD COLUMN more GENERATED ALWAYS AS (task + 1)",
        "UPDATE meta SET value = 'one' WHERE key = 'epoch'",
        "UPDATE meta SET value = 9e999 WHERE key = 'epoch'",
    ],
)
def test_a_ledger_of_another_form_is_rebuilt(tmp_path: Path, statement: str) -> None:
    old = _attached(tmp_path)
    old.close()
    path = tmp_path / "ledger" / "ledger-000001.sqlite"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(statement)
    new = _attached(tmp_path)
    assert new.epoch == 2
    new.close()


def test_a_ledger_that_never_ends_to_answer_is_rebuilt(tmp_path: Path) -> None:
    """Before, ``collect`` hung, also after SIGTERM."""
    _attached(tmp_path).close()
    path = tmp_path / "ledger" / "ledger-000001.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE meta")
        db.execute(
            "CREATE VIEW meta AS WITH RECURSIVE c (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            "SELECT 'zz' || x AS key, x AS value FROM c"
        )
    new = _attached(tmp_path)
    assert new.epoch == 2
    new.close()


def _damage(path: Path, data: bytes, how: str) -> None:
    if how == "folder gone":
        shutil.rmtree(path.parent)
    elif how == "gone":
        path.unlink()
    else:
        damaged = {
            "empty": b"",
            "cut": data[: len(data) // 2],
            "garbage": b"x" * len(data),
            "header": b"\0" * 200 + data[200:],
        }
        path.write_bytes(damaged[how])


def test_a_ledger_found_damaged_is_lost_to_who_still_uses_it(tmp_path: Path) -> None:
    """Else it could commit what the rebuild has not seen."""
    old = _attached(tmp_path)
    leases = claim(old, this_process(), 2)
    other_plan = SqliteLocation(tmp_path / "ledger").open(1, "another plan")
    assert other_plan is None
    ledger_location = SqliteLocation(tmp_path / "ledger")
    ledger_location.retire(before=2)
    with pytest.raises(LedgerLostError):
        old.commit(shards=shard_pair("s", 2), leases=leases)
    old.close()


class OvertakenLocation(SqliteLocation):
    """Another process takes the next epoch in the moment after this location has opened or created a ledger.

    Found by the simulator (seed 30412, three processes, the attach lock wiped twice).
    """

    def __init__(self, dataset: Path) -> None:
        super().__init__(dataset / "ledger")
        self.is_overtaken = True
        self._fs = PosixFilesystem(dataset)

    def open(self, epoch: int, plan_hash: str) -> Ledger | None:
        """Open a ledger, too late."""
        ledger = super().open(epoch, plan_hash)
        if ledger is not None:
            self._overtake()
        return ledger

    def create(
        self,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> Ledger:
        """Create a ledger, too late."""
        ledger = super().create(epoch=epoch, plan_hash=plan_hash, shards=shards, done=done)
        self._overtake()
        return ledger

    def _overtake(self) -> None:
        if self.is_overtaken:
            self.is_overtaken = False
            take_next_epoch(self._fs, who="another")


@pytest.mark.parametrize("exists", [True, False])
def test_a_ledger_overtaken_while_attaching_is_not_used(tmp_path: Path, exists: bool) -> None:
    """The other one has looked for ledgers to retire, perhaps before ours was there."""
    if exists:
        _attached(tmp_path).close()
    ledger = _attached(tmp_path, OvertakenLocation(tmp_path))
    assert ledger.epoch == 3
    ledger.close()


def test_an_epoch_is_never_taken_again(tmp_path: Path) -> None:
    """Also when the folder that counts them was removed: the manifests remember."""
    for _ in range(3):
        _attached(tmp_path).close()
        shutil.rmtree(tmp_path / "ledger")
    shutil.rmtree(tmp_path / "epochs")
    ledger = _attached(tmp_path)
    assert ledger.epoch == 4
    ledger.close()


def test_retiring_spares_newer_ledgers(tmp_path: Path) -> None:
    ledger_location = SqliteLocation(tmp_path)
    for epoch in (1, 2, 3):
        ledger_location.create(epoch=epoch, plan_hash=PLAN_HASH, shards=[], done=[]).close()
    (tmp_path / ".tmp-77-2.sqlite").write_bytes(b"left by a crash")
    ledger_location.retire(before=3)
    assert [path.name for path in sorted(tmp_path.glob("*.sqlite"))] == ["ledger-000003.sqlite"]
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_task_bound_twice_is_not_taken_for_a_lost_ledger(harness: Harness) -> None:
    ledger = harness.open()
    leases = claim(ledger, harness.holder(1))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.commit(shards=shard_pair("s"), leases=[*leases, *leases])
    assert ledger.counts(TASKS).done == 0
