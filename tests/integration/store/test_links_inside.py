"""Links inside a dataset: no folder of it is a link, and no name of a listed file is taken for a leftover."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests import segments
from llmperf_common.store.manifests.manifest import latest_manifest
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.upkeep.compact import compact
from llmperf_common.store.upkeep.sweep import sweep
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import make_dataset
from tests.support.in_process import assert_refused, llmperf
from tests.support.measured import snapshot
from tests.support.sampling import slow_but_each
from tests.unit.common.store.upkeep.test_compact import NOW, WHOLE
from tests.unit.common.store.upkeep.test_store_sweep import orphan


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = make_dataset(tmp_path / "data")
    (folder / ".run.lock").unlink(missing_ok=True)
    return folder


def join(data: Path, folder: str, target: str) -> None:
    """Move the files of ``folder`` into ``target``, and make the first a link to the second."""
    (data / target).mkdir(exist_ok=True)
    if (data / folder).exists():
        for path in (data / folder).iterdir():
            path.rename(data / target / path.name)
        (data / folder).rmdir()
    (data / folder).symlink_to(target)


PAIRS = [
    ("devices", "kernels"),
    ("samples", "mine"),
    ("segments", "epochs"),
    ("trash", "kernels"),
    ("epochs", "mine"),
]


@pytest.mark.parametrize(("folder", "target"), PAIRS)
def test_a_folder_that_links_to_another_is_neither_read_nor_swept_nor_written(
    data: Path, folder: str, target: str
) -> None:
    join(data, folder, target)
    before, fs = snapshot(data), PosixFilesystem(data)
    name = f"{folder}/x.parquet"
    for use in (
        lambda: fs.names(folder),
        lambda: fs.read_bytes(name),
        lambda: fs.sizes([name]),
        lambda: fs.put_if_absent(name, b""),
        lambda: fs.replace(name, b""),
        lambda: fs.remove(name),
        lambda: fs.move(name, "x.parquet"),
        lambda: fs.move("run.json", name),
        lambda: fs.folders(f"{folder}/deeper"),
        lambda: fs.put_if_absent(f"{folder}/deeper/x", b""),
    ):
        with pytest.raises(StoreError, match=rf"{folder} is a link within .*cp -rL"):
            use()
    assert snapshot(data) == before


@pytest.mark.parametrize(("folder", "target"), slow_but_each(2, PAIRS[:3]))
def test_commands_name_the_link(data: Path, folder: str, target: str) -> None:
    join(data, folder, target)
    before = snapshot(data)
    told = f"{folder} is a link within"
    assert_refused(llmperf("dataset", "verify", data), 3, told)
    with pytest.raises(StoreError, match=told):
        sweep(PosixFilesystem(data))
    assert snapshot(data) == before


def test_a_copy_with_the_targets_of_its_links_is_a_dataset(data: Path, tmp_path: Path) -> None:
    """What the message advises."""
    join(data, "devices", "kernels")
    copy = shutil.copytree(data, tmp_path / "copy")
    sweep(PosixFilesystem(copy))
    assert verify(copy).clean
    assert open_dataset(copy).num_samples


def test_the_dataset_itself_may_be_a_link(data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data)
    fs = PosixFilesystem(tmp_path / "link")
    fs.pin("run.json")
    assert fs.put_if_absent("samples/new", b"")
    assert "new" in fs.names("samples")
    assert verify(tmp_path / "link").clean


def test_a_copy_of_hard_links_is_swept_like_any_other(data: Path, tmp_path: Path) -> None:
    gone = orphan(PosixFilesystem(data))
    copy = shutil.copytree(data, tmp_path / "copy", copy_function=os.link)
    assert set(sweep(PosixFilesystem(copy)).removed) == set(gone)
    assert verify(copy).clean
    assert set(sweep(PosixFilesystem(data)).removed) == set(gone)


@pytest.mark.parametrize("kind", ["a link to its file", "its target", "a second name"])
def test_another_name_of_a_listed_shard_is_not_swept(data: Path, kind: str) -> None:
    fs = PosixFilesystem(data)
    listed = data / latest_manifest(fs).of_table("samples")[0].name
    other = listed.with_name("other.parquet")
    if kind == "its target":
        listed.rename(other)
        listed.symlink_to(other.name)
    else:
        (other.symlink_to if kind == "a link to its file" else other.hardlink_to)(listed)
    (gone, _) = orphan(fs)
    report = sweep(fs)
    assert gone in report.removed
    assert report.foreign == ("samples/other.parquet",)
    assert other.exists()
    assert verify(data).clean


def test_the_target_of_a_segment_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEALED_AT", 4)
    data = make_dataset(tmp_path / "data", kernels=6, kernels_per_shard=1)
    fs = PosixFilesystem(data)
    manifest = latest_manifest(fs)
    segment = data / manifest.segments[0].name
    target = segment.with_name("0" * 32 + ".json")
    segment.rename(target)
    segment.symlink_to(target.name)
    report = sweep(fs)
    assert report.foreign == (f"segments/{target.name}",)
    assert latest_manifest(fs) == manifest


def test_a_compaction_keeps_the_file_of_a_listed_shard(data: Path) -> None:
    """Compacted shards are known by their names, so they need no plan to be moved away."""
    compact(data, target=WHOLE, now=NOW)
    fs = PosixFilesystem(data)
    listed = data / latest_manifest(fs).of_table("samples")[0].name
    stem, ending = listed.name.rsplit("-", 1)
    other = listed.with_name(f"{stem}-{'0' * len(ending.removesuffix('.parquet'))}.parquet")
    listed.rename(other)
    listed.symlink_to(other.name)
    compact(data, target=WHOLE, now=NOW)
    assert other.exists()
    assert verify(data).clean
