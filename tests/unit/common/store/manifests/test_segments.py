"""Segments of manifests: the list stays whole and in order, versions share files, and leftovers are orphans."""

from __future__ import annotations

import json
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.schemas import SCHEMA_VERSION
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ManifestError,
    ShardEntry,
    latest_manifest,
    manifest_name,
    manifest_versions,
    parse_manifest,
    read_manifest,
)
from llmperf_common.store.manifests.publish import publish, put_manifest
from llmperf_common.store.manifests.segments import (
    FANOUT,
    SEALED_AT,
    SEGMENTS_FOLDER,
    Segment,
    seal,
)
from llmperf_common.store.manifests.versions import NUM_RECENT
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.compact import CompactionTarget, compact
from llmperf_common.store.upkeep.repair import repair
from llmperf_common.store.upkeep.sweep import sweep
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import (
    PLAN_HASH,
    good_outcome,
    make_dataset,
    make_kernel,
    make_result,
    publish_entries,
    write_pair,
)


def entry(number: int, table: str = "kernels") -> ShardEntry:
    name = f"{table}/{number:06}.parquet"
    return ShardEntry.of(name, name.encode(), rows=number, tasks=number % 7)


def entries(first: int, count: int) -> list[ShardEntry]:
    return [
        entry(number, table)
        for number in range(first, first + count)
        for table in ("kernels", "samples")
    ]


@pytest.fixture
def fs(tmp_path: Path) -> PosixFilesystem:
    return PosixFilesystem(tmp_path)


@pytest.fixture
def short_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of few shards, so that small datasets have several."""
    monkeypatch.setattr("llmperf_common.store.manifests.segments.SEALED_AT", 4)
    monkeypatch.setattr("llmperf_common.store.manifests.segments.FANOUT", 3)


@pytest.fixture
def data(tmp_path: Path, short_tails: None) -> Path:
    return make_dataset(tmp_path / "data", kernels=12, kernels_per_shard=1)


def segment_files(folder: Path) -> set[str]:
    return {f"{SEGMENTS_FOLDER}/{path.name}" for path in (folder / SEGMENTS_FOLDER).iterdir()}


@given(counts=st.lists(st.integers(0, 400), max_size=12))
@settings(max_examples=60, deadline=None)
def test_segments_and_tail_are_the_list_in_its_order(counts: list[int]) -> None:
    manifest = Manifest(version=0, plan_hash="p", epoch=1)
    files: dict[str, bytes] = {}
    total = 0
    for count in counts:
        manifest = manifest.with_shards(
            [entry(number) for number in range(total, total + count)], epoch=1
        )
        total += count
        sealed = seal(manifest.segments, manifest.tail, manifest.tail_replaces)
        files.update(sealed.files)
        manifest = Manifest(
            version=manifest.version, plan_hash="p", epoch=1, shards=manifest.shards, segments=sealed.segments,
        )  # fmt: skip
        assert [e.name for e in manifest.shards] == [entry(number).name for number in range(total)]
        held = [e for one in manifest.segments for e in one.shards]
        assert (*held, *manifest.tail) == manifest.shards
        assert len(manifest.tail) < SEALED_AT
        assert manifest.num_tasks == sum(e.tasks for e in manifest.shards)
        assert manifest.totals.rows_of("kernels") == sum(e.rows for e in manifest.shards)
    read = parse_manifest(manifest.to_json(), "here", files.__getitem__)
    assert read == manifest
    assert [one.name for one in read.segments] == [one.name for one in manifest.segments]
    assert len(manifest.segments) < 3 * FANOUT


def test_a_version_names_the_segments_of_the_one_before(fs: PosixFilesystem) -> None:
    first = publish(fs, entries(0, 500), plan_hash="p", epoch=1)
    second = publish(fs, entries(500, 1), plan_hash="p", epoch=1)
    assert isinstance(first, Manifest)
    assert isinstance(second, Manifest)
    assert first.segments == second.segments
    assert len(second.tail) == 2
    document: dict[str, Any] = json.loads(fs.read_bytes(manifest_name(2)))
    assert [item["name"] for item in document["shards"]] == [e.name for e in second.tail]
    assert sum(item["shards"] for item in document["segments"]) == 1000
    assert (document["tasks"], document["rows"]["kernels"]) == (
        sum(e.tasks for e in second.of_table("kernels")),
        sum(e.rows for e in second.of_table("kernels")),
    )
    assert latest_manifest(fs) == second
    assert len(fs.read_bytes(manifest_name(2))) < 2_000


def test_nothing_listed_is_listed_again_wherever_it_stands(fs: PosixFilesystem) -> None:
    publish(fs, entries(0, 200), plan_hash="p", epoch=1)
    listed = publish(fs, entries(200, 3), plan_hash="p", epoch=1)
    assert publish(fs, [*entries(0, 2), *entries(202, 1)], plan_hash="p", epoch=1) == listed


def test_publishers_that_race_lose_no_shard(fs: PosixFilesystem, short_tails: None) -> None:
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()
        for count in range(10):
            publish(fs, [entry(number * 10 + count)], plan_hash="p", epoch=1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manifest = latest_manifest(fs)
    assert manifest is not None
    assert manifest.shard_names == {entry(number).name for number in range(40)}
    assert len(manifest.shards) == 40
    for version in manifest_versions(fs):
        assert len(read_manifest(fs, version).shards) == version, "all of them can be read"


def test_a_segment_without_its_manifest_is_an_orphan(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, before = PosixFilesystem(data), open_dataset(data).manifest
    known = segment_files(data)
    pairs = [
        write_pair(fs, f"later-{number}", [make_result(make_kernel(20 + number), [good_outcome(0, 0)])])
        for number in range(2)
    ]  # fmt: skip
    more = [shard for pair in pairs for shard in pair]
    put = PosixFilesystem.put_if_absent

    class KilledError(BaseException):
        pass

    def dying(self: PosixFilesystem, name: str, content: bytes) -> bool:
        if name.startswith("manifest-"):
            raise KilledError
        return put(self, name, content)

    monkeypatch.setattr(PosixFilesystem, "put_if_absent", dying)
    with pytest.raises(KilledError):
        publish(fs, more, plan_hash=PLAN_HASH, epoch=before.epoch)
    monkeypatch.undo()
    orphans = segment_files(data) - known
    assert orphans
    assert latest_manifest(fs) == before
    report = sweep(fs, recorded=[shard.name for shard in more])
    assert set(report.removed) >= orphans
    assert segment_files(data).isdisjoint(orphans)
    published = publish_entries(fs, more, epoch=before.epoch)
    assert published.shard_names == before.shard_names | {shard.name for shard in more}


def test_a_sweep_leaves_what_any_manifest_names(data: Path) -> None:
    fs = PosixFilesystem(data)
    manifest = latest_manifest(fs)
    assert manifest is not None
    assert len(manifest.segments) > 1
    for _ in range(2):
        sweep(fs)
        for version in manifest_versions(fs):
            read_manifest(fs, version)
        assert latest_manifest(fs) == manifest
    assert verify(data).problems == ()


def test_a_dataset_of_the_form_before_is_read_and_goes_on(data: Path) -> None:
    fs, before = PosixFilesystem(data), open_dataset(data).manifest
    for path in (data / SEGMENTS_FOLDER).iterdir():
        path.unlink()
    for version in manifest_versions(fs):
        (data / manifest_name(version)).unlink()
    for version in (1, 2):  # as LLMPerf wrote them
        shards = before.shards if version == 2 else before.shards[:5]
        old = {
            "schema_version": 4, "version": version, "plan_hash": PLAN_HASH, "epoch": before.epoch,
            "tasks": before.num_tasks, "rows": {}, "replaces": {},
            "shards": [json.loads(shard.to_json()) for shard in shards],
        }  # fmt: skip
        (data / manifest_name(version)).write_text(json.dumps(old), encoding="utf-8")
    dataset = open_dataset(data)
    assert dataset.manifest.shards == before.shards
    assert dataset.manifest.schema_version == 4
    assert verify(data).problems == ()
    pair = write_pair(fs, "later", [make_result(make_kernel(30), [good_outcome(0, 0)])])
    new = publish_entries(fs, pair, epoch=before.epoch)
    assert new.version == 3
    assert new.schema_version == SCHEMA_VERSION
    assert new.shards == (*before.shards, *pair)
    assert new.segments
    assert [problem.what for problem in verify(data).problems if problem.name != "run.json"] == []


def test_a_gap_among_old_versions_is_a_problem_where_all_were_kept(data: Path) -> None:
    (data / manifest_name(open_dataset(data).manifest.version - 3)).unlink()
    assert [problem.name for problem in verify(data).problems] == [
        manifest_name(open_dataset(data).manifest.version - 3)
    ]


@pytest.mark.slow
def test_old_versions_go_and_a_day_of_them_stays_thin(fs: PosixFilesystem) -> None:
    number = 0
    for minute in range(0, 30 * 60, 2):  # 30 hours
        number += 1
        publish(fs, [entry(number)], plan_hash="p", epoch=1, now_s=1_000_000_000 + 60 * minute)
    versions = manifest_versions(fs)
    assert versions[-NUM_RECENT:] == list(range(number - NUM_RECENT + 1, number + 1))
    assert 24 * 4 + NUM_RECENT - 4 <= len(versions) <= 24 * 4 + NUM_RECENT + 1
    oldest = read_manifest(fs, versions[0])
    assert oldest.published_s >= 1_000_000_000 + 60 * (6 * 60 - 16)
    newest = latest_manifest(fs)
    assert newest is not None
    assert [version for version, _ in newest.earlier] == versions[:-1]
    assert len(newest.shards) == number


def test_what_a_publisher_did_not_live_to_remove_a_sweep_removes(data: Path) -> None:
    fs, manifest = PosixFilesystem(data), open_dataset(data).manifest
    for _ in range(NUM_RECENT + 5):
        stored = put_manifest(fs, manifest.with_replaced({}))
        assert stored is not None
        manifest = stored
    left = manifest_name(2)
    assert not (data / left).exists()
    fs.put_if_absent(left, fs.read_bytes(manifest_name(manifest.version - 5)))
    report = sweep(fs)
    assert left in report.removed
    assert verify(data).problems == ()


@pytest.mark.parametrize("how", ["gone", "flipped"])
def test_a_bad_segment_is_named_and_repair_finds_its_shards_again(data: Path, how: str) -> None:
    before = open_dataset(data).samples().sort_by("sample_id")
    segment = open_dataset(data).manifest.segments[0].name
    content = (data / segment).read_bytes()
    (data / segment).unlink()
    if how == "flipped":
        (data / segment).write_bytes(content.replace(b"1", b"2", 1))
    with pytest.raises(ManifestError, match=f"manifest-.*{segment}.*dataset repair"):
        open_dataset(data)
    assert not verify(data).clean
    report = repair(data)
    assert open_dataset(data).samples().sort_by("sample_id") == before
    assert verify(data).problems == ()
    assert (segment in report.manifests) == (how == "flipped")


def test_compaction_leaves_a_list_that_is_read_as_before(data: Path) -> None:
    before = open_dataset(data).samples().sort_by("sample_id")
    old = {e.name for table in ("kernels", "samples") for e in open_dataset(data).shards(table)}
    compact(data, target=CompactionTarget())
    dataset = open_dataset(data)
    assert dataset.samples().sort_by("sample_id") == before
    assert dataset.manifest.replaced_names == old
    assert dataset.manifest.segments, "what was replaced is in a segment, too"
    head = json.loads((data / manifest_name(dataset.manifest.version)).read_bytes())
    assert head["replaces"] == {}
    fs = PosixFilesystem(data)
    again = publish_entries(fs, [entry(1)], epoch=dataset.manifest.epoch)
    assert again.replaced_names == old
    back = publish(
        fs, [ShardEntry.of(name, b"", rows=1, tasks=1) for name in old], plan_hash=PLAN_HASH, epoch=dataset.manifest.epoch,
    )  # fmt: skip
    assert back == again, "what was replaced is not listed again"


def test_a_segment_in_memory_can_be_referred_to_weakly() -> None:
    segment = Segment(name="s", bytes=1, sha256="0", shards=(), replaces=())
    assert weakref.ref(segment)() is segment
