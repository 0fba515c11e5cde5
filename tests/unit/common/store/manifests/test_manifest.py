"""Manifests: their chain, publishers that race, and epochs that end."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.schemas import SCHEMA_VERSION
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.epochs import latest_epoch, take_next_epoch
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ManifestError,
    ShardEntry,
    latest_manifest,
    manifest_versions,
    parse_manifest,
)
from llmperf_common.store.manifests.publish import StaleEpoch, publish


def entry(number: int, table: str = "kernels") -> ShardEntry:
    return ShardEntry.of(f"{table}/{number}.parquet", str(number).encode(), rows=number, tasks=1)


@pytest.fixture
def fs(tmp_path: Path) -> PosixFilesystem:
    return PosixFilesystem(tmp_path)


@given(
    version=st.integers(1, 10**7),
    epoch=st.integers(0, 1000),
    numbers=st.lists(st.integers(0, 1000), unique=True),
    replaced=st.lists(st.text("abc", min_size=1).map("kernels/{}.parquet".format), unique=True),
)
def test_json_round_trip(version, epoch, numbers, replaced):
    manifest = Manifest(
        version=version,
        plan_hash="plan",
        epoch=epoch,
        shards=tuple(entry(number) for number in numbers),
        replaces=(("kernels/new.parquet", tuple(replaced)),),
    )
    assert parse_manifest(manifest.to_json(), "here") == manifest


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"schema_version": 1, "shards": [{"name": 1}]}']
)
def test_damage_names_the_file_and_what_to_do(data):
    with pytest.raises(
        ManifestError, match=r"manifest-000003\.json is damaged .*[Mm]ove this file away"
    ):
        parse_manifest(data, "manifest-000003.json")


def test_a_newer_schema_asks_for_an_upgrade_even_with_unknown_fields():
    data = Manifest(version=1, plan_hash="p", epoch=1, shards=(entry(1),)).to_json()
    newer = data.replace(
        b'"schema_version": %d' % SCHEMA_VERSION, b'"schema_version": %d' % (SCHEMA_VERSION + 1)
    ).replace(b'"rows": 1', b'"rows": 1, "colour": "blue"')
    with pytest.raises(ManifestError, match="upgrade LLMPerf"):
        parse_manifest(newer, "m")


def test_publishing_again_changes_nothing(fs):
    first = publish(fs, [entry(1)], plan_hash="p", epoch=1)
    assert publish(fs, [entry(1)], plan_hash="p", epoch=1) == first
    assert publish(fs, [], plan_hash="p", epoch=1) == first
    assert manifest_versions(fs) == [1]


def test_an_entry_given_twice_is_listed_once(fs):
    manifest = publish(fs, [entry(1), entry(1)], plan_hash="p", epoch=1)
    assert isinstance(manifest, Manifest)
    assert len(manifest.shards) == 1


def test_publishers_that_race_merge(fs):
    num_publishers, num_each = 4, 10
    barrier = threading.Barrier(num_publishers)

    def work(publisher: int) -> None:
        barrier.wait()
        for number in range(num_each):
            publish(fs, [entry(publisher * num_each + number)], plan_hash="p", epoch=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(num_publishers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = latest_manifest(fs)
    assert manifest is not None
    assert manifest.shard_names == {entry(i).name for i in range(num_publishers * num_each)}
    assert manifest.version == num_publishers * num_each, "each made a version of its own"


def test_a_stale_epoch_is_refused(fs):
    publish(fs, [entry(1)], plan_hash="p", epoch=2)
    assert publish(fs, [entry(2)], plan_hash="p", epoch=1) == StaleEpoch(2)
    assert publish(fs, [entry(1)], plan_hash="p", epoch=1) == StaleEpoch(2), "even if listed"
    assert manifest_versions(fs) == [1]


def test_another_plan_is_refused(fs):
    publish(fs, [entry(1)], plan_hash="p", epoch=1)
    with pytest.raises(StoreError, match="another plan"):
        publish(fs, [entry(2)], plan_hash="q", epoch=1)


def test_a_compacted_shard_is_never_listed_again(fs):
    # A collector that died between publishing and marking it in the ledger publishes again later,
    # after a compaction: the rows must not come back beside the compacted ones.
    compacted = Manifest(
        version=1,
        plan_hash="p",
        epoch=1,
        shards=(entry(9),),
        replaces=((entry(9).name, (entry(1).name, entry(2).name)),),
    )
    fs.put_if_absent("manifest-000001.json", compacted.to_json())
    assert publish(fs, [entry(1)], plan_hash="p", epoch=1) == compacted
    later = publish(fs, [entry(2), entry(3)], plan_hash="p", epoch=1)
    assert isinstance(later, Manifest)
    assert later.shard_names == {entry(9).name, entry(3).name}


def test_epochs_only_grow_and_belong_to_one(fs):
    barrier = threading.Barrier(8)
    taken: list[int] = []

    def take(number: int) -> None:
        barrier.wait()
        taken.append(take_next_epoch(fs, who=str(number)))

    threads = [threading.Thread(target=take, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 9))
    assert latest_epoch(fs) == 8


@pytest.mark.timeout(20)
def test_a_version_that_is_listed_and_never_there_is_not_looked_for_without_end(fs, monkeypatch):
    class OldListings(PosixFilesystem):
        def names(self, folder=""):
            return [*super().names(folder), "manifest-000009.json"]

    publish(fs, [entry(1)], plan_hash="p", epoch=1)
    pauses: list[float] = []
    monkeypatch.setattr("llmperf_common.store.manifests.manifest.time.sleep", pauses.append)
    with pytest.raises(StoreError, match=r"manifest-000009\.json is listed, but is not there"):
        latest_manifest(OldListings(fs.root))
    assert 3 < sum(pauses) < 10
