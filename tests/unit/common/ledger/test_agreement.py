"""Ledger and manifests are compared, whichever knows less."""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmperf_common.ledger.agreement import compare, refuse_doubled, unknown_shards
from llmperf_common.ledger.attach import SqliteLocation, attach
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import Ledger, LedgerLostError
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ShardEntry,
    latest_manifest,
    manifest_name,
)
from llmperf_common.store.manifests.publish import publish

PLAN = "plan"
TASKS = range(100)


@pytest.fixture
def fs(tmp_path: Path) -> PosixFilesystem:
    return PosixFilesystem(tmp_path / "data")


@pytest.fixture
def ledger_location(fs: PosixFilesystem) -> SqliteLocation:
    return SqliteLocation(fs.root / "ledger", is_in_dataset=True)


def attached(fs: PosixFilesystem, ledger_location: SqliteLocation) -> Ledger:
    return attach(fs, ledger_location, plan_hash=PLAN, index_of=int, who="test")


@pytest.fixture
def ledger(fs: PosixFilesystem, ledger_location: SqliteLocation) -> Iterator[Ledger]:
    one = attached(fs, ledger_location)
    yield one
    one.close()


def commit(fs: PosixFilesystem, ledger: Ledger, stem: str) -> list[ShardEntry]:
    """Commit one task to a pair of files."""
    leases = ledger.claim(holder=this_process(), tasks=TASKS, limit=1, ttl_s=60)
    pair = [
        ShardEntry.of(f"{table}/{stem}.parquet", b"x", rows=1, tasks=1)
        for table in ("kernels", "samples")
    ]
    for entry in pair:
        fs.put_if_absent(entry.name, b"x")
    ledger.commit(shards=pair, leases=leases)
    return pair


def listed(fs: PosixFilesystem, ledger: Ledger, entries: list[ShardEntry]) -> Manifest:
    """Publish, and let the ledger know."""
    result = publish(fs, entries, plan_hash=PLAN, epoch=ledger.epoch)
    assert isinstance(result, Manifest)
    ledger.mark_published([entry.name for entry in entries])
    return result


def test_they_agree_while_work_goes_on(fs: PosixFilesystem, ledger: Ledger) -> None:
    first = commit(fs, ledger, "a")
    found = compare(ledger, fs)
    assert (found.unknown, list(found.unlisted)) == ((), first)
    listed(fs, ledger, first)
    found = compare(ledger, fs)
    assert (found.unknown, found.unlisted) == ((), ())


@pytest.mark.parametrize("gone", [[2], [1, 2]])
def test_a_manifest_that_was_removed_is_missed(
    fs: PosixFilesystem, ledger: Ledger, gone: list[int]
) -> None:
    pair = commit(fs, ledger, "a")
    assert listed(fs, ledger, pair).version == 2
    for version in gone:
        fs.remove(manifest_name(version))
    found = compare(ledger, fs)
    assert (found.unknown, list(found.unlisted)) == ((), pair)


def test_a_device_of_which_only_a_lost_manifest_knew_is_missed(
    fs: PosixFilesystem, ledger: Ledger
) -> None:
    """Its samples are listed; its own file, which the ledger calls published, is not."""
    pair = commit(fs, ledger, "a")
    device = ShardEntry.of("devices/d.parquet", b"x", rows=1, tasks=0)
    ledger.commit(shards=[device], leases=[])
    listed(fs, ledger, pair)
    ledger.mark_published([device.name])
    assert ledger.unpublished() == []
    found = compare(ledger, fs)
    assert (found.unknown, list(found.unlisted)) == ((), [device])


def test_a_device_of_an_ended_worker_is_missed_beside_a_listed_device(
    fs: PosixFilesystem, ledger: Ledger
) -> None:
    pair = commit(fs, ledger, "a")
    devices = [ShardEntry.of(f"devices/{one}.parquet", b"x", rows=1, tasks=0) for one in "de"]
    for device in devices:
        fs.put_if_absent(device.name, b"x")
    ledger.commit(shards=devices, leases=[])
    fs.put_if_absent("devices/never-committed.parquet", b"x")
    listed(fs, ledger, [*pair, devices[0]])
    ledger.mark_published([devices[1].name])
    assert ledger.unpublished() == []
    assert list(compare(ledger, fs).unlisted) == [devices[1]]


def test_a_ledger_that_knows_less_is_built_anew(
    fs: PosixFilesystem, ledger_location: SqliteLocation, ledger: Ledger
) -> None:
    listed(fs, ledger, commit(fs, ledger, "a"))
    foreign = ShardEntry.of("kernels/b.parquet", b"x", rows=1, tasks=1)
    publish(fs, [foreign], plan_hash=PLAN, epoch=ledger.epoch)
    found = compare(ledger, fs)
    assert (found.unknown, found.unlisted) == (("kernels/b.parquet",), ())
    with pytest.raises(StoreError, match="damaged"):  # these are no Parquet: it was to be rebuilt
        attached(fs, ledger_location)
    with pytest.raises(LedgerLostError):
        ledger.unpublished()


def test_a_ledger_whose_shards_are_gone_is_built_anew(
    fs: PosixFilesystem, ledger_location: SqliteLocation, ledger: Ledger
) -> None:
    kernels, _ = commit(fs, ledger, "a")
    again = attached(fs, ledger_location)
    assert again.epoch == 1
    again.close()
    fs.remove(kernels.name)
    again = attached(fs, ledger_location)
    assert again.epoch == 2
    assert again.counts(TASKS).done == 0, "its task is free again"
    again.close()


def test_a_compacted_shard_stands_for_those_it_replaces(
    fs: PosixFilesystem, ledger: Ledger
) -> None:
    pairs = [commit(fs, ledger, stem) for stem in "abc"]
    manifest = listed(fs, ledger, [entry for pair in pairs for entry in pair])
    for new, old in (("ab", "ab"), ("abc", ("ab", "c"))):
        joined = {
            ShardEntry.of(f"{table}/{new}.parquet", b"y", rows=2, tasks=len(new)): [
                f"{table}/{one}.parquet" for one in old
            ]
            for table in ("kernels", "samples")
        }
        manifest = manifest.with_replaced(joined)
    assert [entry.name for entry in manifest.of_table("kernels")] == ["kernels/abc.parquet"]
    assert unknown_shards(ledger.unknown, manifest) == []
    forged = replace(
        manifest, replaces=(*manifest.replaces, ("kernels/ab.parquet", ("kernels/z",)))
    )
    assert unknown_shards(ledger.unknown, forged) == ["kernels/z"]
    fs.put_if_absent(manifest_name(manifest.version), manifest.to_json())
    assert compare(ledger, fs).unlisted == ()


def test_a_dataset_that_is_doubled_has_a_way_back(fs: PosixFilesystem) -> None:
    bound = {
        "kernels/a": array("q", [3, 1]),
        "kernels/b": array("q", [2, 1, 3]),
        "kernels/c": array("q"),
    }
    with pytest.raises(
        StoreError,
        match=r"2 results twice, .* kernels/a and in kernels/b: run .llmperf dataset repair",
    ):
        refuse_doubled(fs, bound)
    refuse_doubled(fs, {"kernels/a": array("q", [3, 1]), "kernels/b": array("q", [2])})
    refuse_doubled(fs, {})


@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_ledger_ends_with_its_write_ahead_log(
    fs: PosixFilesystem, ledger_location: SqliteLocation, ledger: Ledger, ends: tuple[str, ...]
) -> None:
    """A collector that has it open, and one that opens it now, would each see a ledger of its own."""
    ledger.claim(holder=this_process(), tasks=TASKS, limit=1, ttl_s=60)
    path = ledger_location.folder / "ledger-000001.sqlite"
    for end in ends:
        path.with_name(path.name + end).unlink()
    other = ledger_location.open(1, PLAN)  # None: within one process SQLite may refuse it
    with pytest.raises(LedgerLostError):
        ledger.claim(holder=this_process(), tasks=TASKS, limit=1, ttl_s=60)
    if other is not None:
        with pytest.raises(LedgerLostError):
            other.claim(holder=this_process(), tasks=TASKS, limit=1, ttl_s=60)
        other.close()
    assert not path.exists()
    again = attached(fs, ledger_location)
    assert again.epoch == 2
    again.close()
    manifest = latest_manifest(fs)
    assert manifest is not None
    assert manifest.epoch == 2


def test_a_ledger_that_calls_tasks_finished_that_no_shard_holds_is_built_anew(
    fs: PosixFilesystem, ledger_location: SqliteLocation, ledger: Ledger
) -> None:
    """It would never give them out again, and a run would end without them."""
    published = commit(fs, ledger, "one")
    publish(fs, published, plan_hash=PLAN, epoch=ledger.epoch)
    commit(fs, ledger, "two")
    assert compare(ledger, fs).num_without_shard == 0
    (file,) = ledger_location.folder.glob("*.sqlite")
    with sqlite3.connect(file) as db:
        db.execute("DELETE FROM shards WHERE name LIKE '%/two.parquet'")
    db.close()
    assert compare(ledger, fs).num_without_shard == 1
    (fs.root / manifest_name(1)).rename(fs.root / "aside")
    assert compare(ledger, fs).num_without_shard == 1
