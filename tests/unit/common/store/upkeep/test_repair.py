"""Repair: what is damaged or doubled goes to the trash, its tasks are free, and what is sound stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.files.run_lock import CollectingError
from llmperf_common.store.manifests.manifest import (
    Manifest,
    ManifestError,
    latest_manifest,
    manifest_name,
    manifest_versions,
)
from llmperf_common.store.manifests.publish import StaleEpoch, publish
from llmperf_common.store.manifests.run import RUN_LOCK
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.repair import repair
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import (
    PLAN_HASH,
    make_dataset,
    make_kernel,
    make_result,
    make_timing,
    publish_entries,
    write_pair,
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data", kernels=4, kernels_per_shard=1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def all_bytes(data: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in data.rglob("*.parquet*"))


def times(data: Path) -> dict[str, object]:
    rows = open_dataset(data).samples(["sample_id", "time_ns"]).to_pylist()
    return {row["sample_id"]: row["time_ns"] for row in rows}


@pytest.mark.parametrize("table", ["kernels", "samples"])
@pytest.mark.parametrize("how", ["flipped", "gone"])
def test_a_bad_half_takes_its_pair_out_and_frees_its_tasks(
    data: Path, table: str, how: str
) -> None:
    fs, before = PosixFilesystem(data), all_bytes(data)
    dataset = open_dataset(data)
    victim, other = dataset.shards(table)[1], dataset.shards("samples")[0]
    stem = victim.name.split("/", 1)[1]
    (task,) = [
        row["task_id"]
        for row in dataset.kernels(["task_id", "kernel_id"]).to_pylist()
        if row["kernel_id"] == make_kernel(1).kernel_id
    ]
    if how == "flipped":
        flip(data / victim.name)
        before = all_bytes(data)
    else:
        before.remove((data / victim.name).read_bytes())
        (data / victim.name).unlink()

    report = repair(data)
    assert {one.name for one in report.dropped} == {f"kernels/{stem}", f"samples/{stem}"}
    assert (report.num_freed_tasks, report.num_tasks) == (1, 3)
    assert report.version == dataset.manifest.version + 1
    assert task not in open_dataset(data).kernels(["task_id"]).column("task_id").to_pylist()
    assert all_bytes(data) == before, "nothing is deleted"
    assert not (data / victim.name).exists()
    assert len(list((data / "trash").iterdir())) == (2 if how == "flipped" else 1)
    found = verify(data)
    assert (found.problems, found.notes) == ((), ())
    assert fs.read_bytes(other.name)

    again = repair(data)
    assert (again.version, again.dropped, again.manifests) == (report.version, (), ())
    assert all_bytes(data) == before
    card = (data / "README.md").read_text(encoding="utf-8")
    assert stem not in card


def test_a_dry_run_says_the_same_and_changes_nothing(data: Path) -> None:
    flip(data / open_dataset(data).shards("samples")[0].name)
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    dry = repair(data, is_dry_run=True)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    wet = repair(data)
    assert dry.is_dry_run
    assert (dry.dropped, dry.num_freed_tasks, dry.num_tasks) == (
        wet.dropped,
        wet.num_freed_tasks,
        wet.num_tasks,
    )


def test_no_older_ledger_can_publish_after_it(data: Path) -> None:
    fs = PosixFilesystem(data)
    entry = open_dataset(data).shards("samples")[0]
    flip(data / entry.name)
    epoch = open_dataset(data).manifest.epoch
    repair(data)
    assert isinstance(publish(fs, [entry], plan_hash=PLAN_HASH, epoch=epoch), StaleEpoch)
    later = publish_entries(fs, [entry], epoch=epoch + 5)
    assert entry.name not in later.shard_names, "what was dropped never comes back"


def test_a_damaged_device_is_set_aside_and_may_be_listed_again(data: Path) -> None:
    fs = PosixFilesystem(data)
    (device,) = open_dataset(data).shards("devices")
    sound = fs.read_bytes(device.name)
    flip(data / device.name)
    report = repair(data)
    assert [one.name for one in report.dropped] == [device.name]
    assert report.num_freed_tasks == 0
    fs.put_if_absent(device.name, sound)
    publish_entries(fs, [device], epoch=open_dataset(data).manifest.epoch)
    assert verify(data).problems == ()


def doubled(data: Path, *, later: str, times_us: float = 7.0) -> dict[str, object]:
    """Measure kernels 1 and 9 again into one pair and publish it behind the first; return what was there before."""
    before = times(data)
    fs = PosixFilesystem(data)
    result = [
        make_result(make_kernel(number), [make_timing(times_us * 1e3)] * 4) for number in (1, 9)
    ]
    publish_entries(fs, write_pair(fs, later, result, first_token=100))
    assert not verify(data).clean
    return before


@pytest.mark.parametrize("later", ["a-first-by-name", "z-last-by-name"])
def test_of_a_task_that_is_there_twice_the_first_published_stays(data: Path, later: str) -> None:
    before = doubled(data, later=later)
    report = repair(data)
    assert {one.name for one in report.dropped} == {
        f"kernels/{later}.parquet",
        f"samples/{later}.parquet",
    }
    assert report.num_freed_tasks == 2, "one is still bound elsewhere, the other is done again"
    assert times(data) == before
    assert verify(data).problems == ()


def test_of_two_of_one_version_the_higher_token_stays(tmp_path: Path) -> None:
    data = make_dataset(tmp_path / "data", kernels=1, num_planned_tasks=2)
    fs = PosixFilesystem(data)
    pairs = [
        write_pair(
            fs,
            stem,
            [make_result(make_kernel(1), [make_timing(time_ns)] * 4)],
            first_token=token,
        )
        for stem, token, time_ns in (("low", 5, 1e3), ("high", 6, 2e3))
    ]
    publish_entries(fs, [entry for pair in pairs for entry in pair])
    report = repair(data)
    assert {one.name for one in report.dropped} == {"kernels/low.parquet", "samples/low.parquet"}
    assert verify(data).problems == ()


def test_a_newest_manifest_that_is_cut_goes_and_its_shards_come_back(data: Path) -> None:
    before, version = times(data), open_dataset(data).manifest.version
    newest = data / manifest_name(version)
    newest.write_bytes(newest.read_bytes()[:50])
    report = repair(data)
    assert report.manifests == (newest.name,)
    assert times(data) == before
    assert verify(data).problems == ()


def test_a_copy_of_the_newest_manifest_under_the_next_name_goes(data: Path) -> None:
    """Otherwise `collect` could not read the newest version, but repair called it sound."""
    before, version = times(data), open_dataset(data).manifest.version
    copy = data / manifest_name(version + 1)
    copy.write_bytes((data / manifest_name(version)).read_bytes())
    with pytest.raises(ManifestError, match=f"says that it is version {version}.*dataset repair"):
        open_dataset(data)
    assert repair(data, is_dry_run=True).manifests == (copy.name,)
    report = repair(data)
    assert report.manifests == (copy.name,)
    assert times(data) == before
    assert verify(data).problems == ()
    assert repair(data).manifests == ()


@pytest.mark.parametrize("how", ["cut", "gone", "renamed"])
def test_an_older_manifest_that_is_bad_goes_with_those_before_it(data: Path, how: str) -> None:
    before, manifest = times(data), open_dataset(data).manifest
    middle = data / manifest_name(manifest.version - 2)
    middle.write_bytes(b"{")
    if how == "gone":
        middle.unlink()
    elif how == "renamed":
        middle.write_bytes((data / manifest_name(manifest.version - 1)).read_bytes())
    assert not verify(data).clean
    repair(data)
    assert times(data) == before
    assert open_dataset(data).manifest == manifest, "no new version for it"
    assert verify(data).problems == ()


def test_who_died_before_the_manifest_has_lost_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled(data, later="later")
    flip(data / open_dataset(data).shards("samples")[0].name)
    files = all_bytes(data)

    class KilledError(BaseException):
        pass

    put = PosixFilesystem.put_if_absent

    def dying(self: PosixFilesystem, name: str, content: bytes) -> bool:
        if name.startswith("manifest-"):
            raise KilledError
        return put(self, name, content)

    monkeypatch.setattr(PosixFilesystem, "put_if_absent", dying)
    with pytest.raises(KilledError):
        repair(data)
    monkeypatch.undo()
    assert all_bytes(data) == files
    repair(data)
    assert all_bytes(data) == files
    assert verify(data).problems == ()
    assert open_dataset(data).num_tasks == 3


class _Killed(BaseException):
    """Nothing is caught of it, as of SIGKILL."""


def test_who_died_at_any_step_after_a_cut_manifest_has_left_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only that manifest had listed must be found by the next repair: a merged dataset has no `collect` to find it."""
    steps = 0
    put, remove = PosixFilesystem.put_if_absent, PosixFilesystem.remove

    def at_step(change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            nonlocal steps
            if not steps:
                raise _Killed
            steps -= 1
            return change(*args)

        return counted

    for number in range(1, 100):
        data = make_dataset(tmp_path / f"data{number}", kernels=4, kernels_per_shard=1)
        before, version = times(data), open_dataset(data).manifest.version
        (data / manifest_name(version)).write_bytes(b"{")
        with monkeypatch.context() as patch:
            steps = number
            patch.setattr(PosixFilesystem, "put_if_absent", at_step(put))
            patch.setattr(PosixFilesystem, "remove", at_step(remove))
            try:
                repair(data)
                break
            except _Killed:
                pass
        repair(data)
        assert times(data) == before, f"dead after {number} steps"
        assert verify(data).problems == ()
    assert number > 3


def test_it_is_refused_where_somebody_is_at_work_and_says_who(data: Path) -> None:
    flip(data / open_dataset(data).shards("samples")[0].name)
    before = manifest_versions(PosixFilesystem(data))
    with (
        PosixFilesystem(data).lock(RUN_LOCK, exclusive=False, wait=False),
        pytest.raises(CollectingError, match="then repair it"),
    ):
        repair(data)
    assert manifest_versions(PosixFilesystem(data)) == before


def test_a_folder_that_is_no_dataset_or_has_no_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a dataset"):
        repair(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    data = make_dataset(tmp_path / "data", kernels=1)
    for path in data.glob("manifest-*"):
        path.unlink()
    with pytest.raises(StoreError, match="has no manifest"):
        repair(data)


def test_a_manifest_of_a_newer_llmperf_is_not_damaged(data: Path) -> None:
    manifest = latest_manifest(PosixFilesystem(data))
    assert isinstance(manifest, Manifest)
    newest = data / manifest_name(manifest.version)
    document = json.loads(newest.read_bytes())
    newest.write_text(json.dumps({**document, "schema_version": 99}), encoding="utf-8")
    with pytest.raises(StoreError, match="upgrade LLMPerf"):
        repair(data)
    assert newest.exists()


def test_nothing_is_repaired_in_a_sound_dataset(data: Path) -> None:
    before = sorted(path.name for path in data.rglob("*"))
    report = repair(data)
    assert (report.dropped, report.manifests, report.num_freed_tasks) == ((), (), 0)
    after = sorted(path.name for path in data.rglob("*") if path.name != RUN_LOCK)
    assert after == before


def test_what_only_looks_like_a_manifest_or_an_epoch_is_named(data: Path) -> None:
    (data / "manifest-7.json").write_text("{}")
    (data / "epochs").mkdir(exist_ok=True)
    (data / "epochs" / "999999999998").mkdir()
    (data / "epochs" / "notes").write_text("")
    for is_dry_run in (True, False):
        report = repair(data, is_dry_run=is_dry_run)
        assert report.strays == ("manifest-7.json", "epochs/999999999998", "epochs/notes")
        assert report.dropped == report.manifests == ()
    assert (data / "manifest-7.json").exists()
