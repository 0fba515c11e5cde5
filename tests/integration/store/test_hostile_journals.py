"""A rollback journal beside a ledger: SQLite never reads it, so that it deletes no user's file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.ledger.looking import look_at_sqlite
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import COMMIT_AT_ONCE, Collect, replay_file, write_kernels
from tests.support.hot_journal import put_hot_journal
from tests.support.in_process import llmperf

PLAN_HASH = "p" * 16
_NUM_KERNELS = 2


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "precious"
    path.parent.mkdir()
    path.write_text("precious")
    return path


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collect:
    folder = tmp_path_factory.mktemp("collected")
    corpus = write_kernels(folder / "corpus", [f"k{index}" for index in range(_NUM_KERNELS)])
    device = replay_file(folder / "replay.json")
    command = Collect(corpus, folder / "data", device, COMMIT_AT_ONCE)
    assert command.run_here().returncode == 0
    return command


@pytest.fixture
def command(collected: Collect, tmp_path: Path) -> Collect:
    out = shutil.copytree(collected.out, tmp_path / "data")
    return Collect(collected.corpus, out, collected.device, collected.options)


def ledgers(data: Path) -> list[Path]:
    return sorted((data / "ledger").glob("ledger-*.sqlite"))


def test_sqlite_follows_the_journal_of_these_tests(command: Collect, victim: Path) -> None:
    (ledger,) = ledgers(command.out)
    put_hot_journal(ledger, victim)
    with contextlib.closing(sqlite3.connect(ledger)) as db:
        db.execute("SELECT * FROM meta").fetchall()
    assert not victim.exists()


def test_no_command_follows_a_journal(command: Collect, collected: Collect, victim: Path) -> None:
    (ledger,) = ledgers(command.out)
    put_hot_journal(ledger, victim)
    for words in (
        ("status", command.out),
        ("dataset", "verify", command.out),
        ("dataset", "repair", command.out),
        ("dataset", "compact", command.out),
        ("dataset", "merge", command.out, collected.out, "--out", command.out.parent / "merged"),
        ("report", command.out, "--out", command.out.parent / "page.html"),
    ):
        done = llmperf(*words)
        assert done.code == 0, (words, done.err)
        assert victim.read_text() == "precious", words
    collecting = command.run_here()
    assert collecting.returncode == 0, collecting.stderr
    assert victim.read_text() == "precious"


def test_collect_rebuilds_a_ledger_that_has_a_journal(command: Collect, victim: Path) -> None:
    (ledger,) = ledgers(command.out)
    put_hot_journal(ledger, victim)
    done = command.run_here()
    assert done.returncode == 0, done.stderr
    assert victim.exists()
    assert open_dataset(command.out).num_tasks == _NUM_KERNELS
    assert verify(command.out).clean
    (rebuilt,) = ledgers(command.out)
    assert rebuilt != ledger
    assert not list((command.out / "ledger").glob("*-journal"))
    assert command.run_here().returncode == 0
    assert ledgers(command.out) == [rebuilt], "the new ledger is kept"


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_journal_that_waits_for_a_later_ledger(
    command: Collect, victim: Path, epoch: int
) -> None:
    """The journal is there before the ledger, so that only its creator could follow it."""
    (ledger,) = ledgers(command.out)
    for number in range(2, epoch + 1):
        put_hot_journal(ledger.with_name(f"ledger-{number:06d}.sqlite"), victim)
    for path in ledgers(command.out):
        path.unlink()
    done = command.run_here()
    assert done.returncode == 0, done.stderr
    assert victim.exists()
    (rebuilt,) = ledgers(command.out)
    assert not rebuilt.with_name(f"{rebuilt.name}-journal").exists()


@pytest.mark.parametrize("name", ["ledger-000001.sqlite", ".tmp-PID-1.sqlite"])
def test_a_new_ledger_starts_without_the_files_of_others(
    tmp_path: Path, victim: Path, name: str
) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    name = name.replace("PID", str(os.getpid()))
    put_hot_journal(folder / name, victim)
    for ending in ("-wal", "-shm"):  # a link would be followed, and its target filled
        (folder / f"{name}{ending}").symlink_to(victim)
    ledger = SqliteLocation(folder).create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    assert ledger.epoch == 1
    assert victim.read_text() == "precious"
    ledger.close()
    assert [path.name for path in folder.iterdir()] == ["ledger-000001.sqlite"]


def test_a_ledger_never_has_a_journal_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a collector that starts meanwhile would take another's new ledger for damaged."""
    seen: list[str] = []
    replace = os.replace

    def noting(source: Path, target: Path) -> None:
        with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as db:
            seen.extend(db.execute("PRAGMA journal_mode").fetchone())
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", noting)
        ledger = SqliteLocation(tmp_path).create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[])
    ledger.close()
    assert seen == ["wal"]


def test_a_ledger_with_a_journal_is_neither_opened_nor_looked_at(
    tmp_path: Path, victim: Path
) -> None:
    location = SqliteLocation(tmp_path)
    location.create(epoch=1, plan_hash=PLAN_HASH, shards=[], done=[]).close()
    journal = tmp_path / "ledger-000001.sqlite-journal"
    kinds: tuple[Callable[[], object], ...] = (
        lambda: put_hot_journal(tmp_path / "ledger-000001.sqlite", victim),
        lambda: journal.symlink_to(victim),
        lambda: journal.symlink_to(tmp_path / "absent"),
        lambda: journal.write_bytes(b""),
        journal.mkdir,
    )
    for make in kinds:
        make()
        assert location.open(1, PLAN_HASH) is None
        assert look_at_sqlite(tmp_path, [], now_s=0.0) is None
        journal.rmdir() if journal.is_dir() else journal.unlink()
    assert victim.read_text() == "precious"
    reopened = location.open(1, PLAN_HASH)
    assert reopened is not None
    reopened.close()
