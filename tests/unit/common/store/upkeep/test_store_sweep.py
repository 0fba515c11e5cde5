"""Sweeping: leftovers go, everything listed and everything foreign stays."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    latest_manifest,
    manifest_name,
    manifest_versions,
)
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.rebuild import rebuild_manifest
from llmperf_common.store.upkeep.sweep import old_trash, sweep
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_dataset,
    make_kernel,
    make_result,
    write_pair,
)


@pytest.fixture
def fs(tmp_path: Path) -> PosixFilesystem:
    return PosixFilesystem(make_dataset(tmp_path / "data"))


def orphan(fs: PosixFilesystem, stem: str = "orphan") -> list[str]:
    pair = write_pair(fs, stem, [make_result(make_kernel(9), [good_outcome(0, 0)])])
    return [entry.name for entry in pair]


def files(fs: PosixFilesystem) -> set[str]:
    return {str(p.relative_to(fs.root)) for p in fs.root.rglob("*") if p.is_file()}


def test_orphans_and_temporary_files_go_and_nothing_else(fs):
    before = files(fs)
    gone = orphan(fs)
    for folder in (".", "samples", "kernels", "devices", "epochs"):
        (fs.root / folder / ".tmp-12-ab").write_bytes(b"half")
    report = sweep(fs)
    trashed = {name for name in files(fs) if name.startswith("trash/")}
    assert files(fs) - trashed == before
    assert {name.split("-", 1)[1] for name in trashed} == {n.replace("/", "-") for n in gone}
    assert set(gone) < set(report.removed)
    assert len(report.removed) == len(gone) + 5
    assert sweep(fs).removed == ()


def test_what_is_not_ours_stays(fs):
    pq.write_table(pa.table({"x": [1]}), fs.root / "samples" / "mine.parquet")
    (fs.root / "kernels" / "cut.parquet").write_bytes(b"PAR1")
    (fs.root / "samples" / "notes.txt").write_text("mine")
    (fs.root / "events").mkdir()
    (fs.root / "events" / ".tmp-1-x").write_text("not the store's")
    result = make_result(make_kernel(9), [good_outcome(0, 0)], plan_hash="q")
    write_pair(fs, "other-plan", [result], plan_hash="q")
    before = files(fs)
    report = sweep(fs)
    assert files(fs) == before
    assert report.removed == ()
    assert set(report.foreign) == {
        "samples/mine.parquet",
        "kernels/cut.parquet",
        "kernels/other-plan.parquet",
        "samples/other-plan.parquet",
    }


def test_recorded_but_unpublished_shards_stay(fs):
    names = orphan(fs)
    assert sweep(fs, recorded=names).removed == ()
    assert set(names) <= files(fs)


def test_what_a_removed_manifest_has_listed_goes_to_the_trash_alone(fs):
    """The ledger is lost, too: nothing here tells that these were committed. They can be had back for a day."""
    manifest = latest_manifest(fs)
    pair = list(manifest.shard_names - manifest_of_one_pair_less(fs).shard_names)
    data = {name: fs.read_bytes(name) for name in pair}
    before = datetime.now(UTC) - timedelta(seconds=1)
    sweep(fs)
    assert old_trash(fs, before=before) == []
    trashed = old_trash(fs, before=datetime.now(UTC) + timedelta(seconds=1))
    assert sorted(map(fs.read_bytes, trashed)) == sorted(data.values())
    assert not set(pair) & files(fs)


def test_a_sweep_can_be_undone(fs):
    manifest = latest_manifest(fs)
    less = manifest_of_one_pair_less(fs)
    sweep(fs)
    for name in fs.names("trash"):
        fs.move(f"trash/{name}", name.split("-", 1)[1].replace("-", "/", 1))
    rebuilt = rebuild_manifest(fs, plan_hash=less.plan_hash, epoch=less.epoch + 1)
    assert {entry.name: entry for entry in rebuilt.shards} == {
        entry.name: entry for entry in manifest.shards
    }


def test_what_an_earlier_manifest_of_the_epoch_lists_stays(fs):
    manifest = latest_manifest(fs)
    less = manifest_of_one_pair_less(fs)
    for version, one in ((2, manifest), (3, less)):
        fs.put_if_absent(manifest_name(version), replace(one, version=version).to_json())
    report = sweep(fs)
    assert report.removed == ()
    assert set(report.foreign) == manifest.shard_names - less.shard_names
    assert manifest.shard_names <= files(fs)


def manifest_of_one_pair_less(fs):
    """Put in the place of all manifests one that lacks the last pair; return it."""
    manifest = latest_manifest(fs)
    stem = manifest.of_table("kernels")[-1].name.split("/")[1]
    less = replace(
        manifest, version=1, shards=tuple(e for e in manifest.shards if stem not in e.name)
    )
    for version in manifest_versions(fs):
        fs.remove(manifest_name(version))
    fs.put_if_absent(manifest_name(1), less.to_json())
    return less


def test_replaced_shards_stay_until_told(fs):
    manifest = latest_manifest(fs)
    old, kept = manifest.of_table("samples")
    for version in range(manifest.version + 1, manifest.version + 4):
        compacted = replace(
            manifest,
            version=version,
            shards=tuple(entry for entry in manifest.shards if entry != old),
            replaces=((kept.name, (old.name,)),),
        )
        assert sweep(fs, remove_replaced=True).removed == (), "a recent manifest lists it"
        fs.put_if_absent(manifest_name(version), compacted.to_json())
    assert sweep(fs).replaced == (old.name,)
    assert sweep(fs, remove_replaced=True).removed == (old.name,)
    assert open_dataset(fs.root).num_samples == kept.rows


def test_a_damaged_manifest_stops_the_sweep(fs):
    names = orphan(fs)
    (fs.root / "manifest-000099.json").write_text("{")
    with pytest.raises(StoreError, match="manifest-000099"):
        sweep(fs)
    assert set(names) <= files(fs)


def test_a_folder_without_dataset_is_refused(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a.parquet").write_bytes(b"")
    with pytest.raises(StoreError, match="no dataset"):
        sweep(PosixFilesystem(tmp_path))
    assert (tmp_path / "samples" / "a.parquet").exists()
