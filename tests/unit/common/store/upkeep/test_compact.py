"""Compaction: fewer shards, the same rows, and everything that looks at a dataset afterwards finds it whole."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmperf_common.ledger.attach import SqliteLocation, attach
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import latest_manifest, manifest_name
from llmperf_common.store.manifests.run import RUN_LOCK
from llmperf_common.store.tables.reader import Dataset, open_dataset
from llmperf_common.store.tables.shard import decode
from llmperf_common.store.upkeep.compact import (
    CollectingError,
    CompactionReport,
    CompactionTarget,
    compact,
    replaced_at,
)
from llmperf_common.store.upkeep.rebuild import rebuild_manifest, tasks_by_shard
from llmperf_common.store.upkeep.sweep import sweep
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import (
    PLAN_HASH,
    good_outcome,
    make_dataset,
    make_kernel,
    make_result,
    mixed_outcome,
    publish_entries,
    write_pair,
)

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
DAY = timedelta(hours=24)
WHOLE = CompactionTarget()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data", kernels=8, kernels_per_shard=1, outcome_of=mixed_outcome)


def rows_of(dataset: Dataset) -> dict[str, pa.Table]:
    """The tables, samples ordered by id and kernels by task."""
    return {
        "samples": dataset.samples().sort_by("sample_id"),
        "kernels": dataset.kernels().sort_by("task_id"),
        "devices": dataset.devices(),
    }


def tokens_of(fs: PosixFilesystem) -> dict[str, tuple[int, int]]:
    """(epoch, token) of every task of the current version."""
    dataset = open_dataset(fs)
    footers = [decode(dataset.shard_bytes(e), e.name)[1] for e in dataset.shards("kernels")]
    return {task: (footer.epoch, token) for footer in footers for task, token in footer.tasks}


def test_fewer_shards_with_the_same_rows(data):
    before, sentinel, tokens = (
        rows_of(open_dataset(data)),
        open_dataset(data).sentinel(),
        tokens_of(PosixFilesystem(data)),
    )
    report = compact(data, target=WHOLE, now=NOW)
    after = open_dataset(data)
    assert rows_of(after) == before
    assert after.sentinel() == sentinel
    assert tokens_of(after.fs) == tokens
    assert (report.num_pairs_before, report.num_pairs, report.removed) == (8, 1, ())
    assert len(report.waiting) == 16
    checked = verify(data)
    assert checked.clean
    assert {note.what for note in checked.notes} == {"was compacted and is kept for its readers"}


def test_rows_are_in_the_order_of_tasks(data):
    within = {
        task: [
            row["sample_id"]
            for row in open_dataset(data).samples().to_pylist()
            if row["task_id"] == task
        ]
        for task in open_dataset(data).kernels().column("task_id").to_pylist()
    }
    compact(data, target=WHOLE, now=NOW)
    after = open_dataset(data)
    tasks = after.kernels().column("task_id").to_pylist()
    assert tasks == sorted(tasks)
    wanted = [sample for task in tasks for sample in within[task]]
    assert after.samples().column("sample_id").to_pylist() == wanted


@settings(max_examples=8, deadline=None)
@given(
    kernels=st.integers(1, 6),
    configs=st.integers(1, 5),
    per_shard=st.integers(1, 4),
    target=st.integers(1, 40),
    again=st.integers(1, 40),
)
def test_no_row_changes(
    kernels: int, configs: int, per_shard: int, target: int, again: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = make_dataset(
            Path(folder) / "d", kernels=kernels, num_configs=configs, kernels_per_shard=per_shard, outcome_of=mixed_outcome
        )  # fmt: skip
        before, tokens = rows_of(open_dataset(data)), tokens_of(PosixFilesystem(data))
        for number, rows in enumerate((target, again)):
            largest = max(entry.rows for entry in open_dataset(data).shards("samples"))
            report = compact(data, target=CompactionTarget(rows=rows), now=NOW + number * DAY)
            assert report.num_pairs <= report.num_pairs_before
            after = open_dataset(data)
            assert rows_of(after) == before
            assert tokens_of(after.fs) == tokens
            assert all(entry.rows <= max(rows, largest) for entry in after.shards("samples"))
            assert verify(data).clean


def test_a_second_compaction_finds_nothing_to_do(data):
    first = compact(data, target=WHOLE, now=NOW)
    second = compact(data, target=WHOLE, now=NOW)
    assert second == replace(first, num_pairs_before=1)


def test_large_shards_are_left(data):
    rows = open_dataset(data).shards("samples")[0].rows
    report = compact(data, target=CompactionTarget(rows=2 * rows - 1), now=NOW)
    assert (report.num_pairs_before, report.num_pairs, report.waiting) == (8, 8, ())


def test_epochs_are_not_mixed(data):
    fs = PosixFilesystem(data)
    for number in (20, 21):
        pair = write_pair(
            fs, f"late-{number}", [make_result(make_kernel(number), [good_outcome(0, 0)])], epoch=4, first_token=number
        )  # fmt: skip
        publish_entries(fs, pair, epoch=4)
    tokens = tokens_of(fs)
    assert compact(data, target=WHOLE, now=NOW).num_pairs == 2
    assert tokens_of(fs) == tokens


def removed_after(data: Path, *waits: timedelta) -> list[CompactionReport]:
    return [compact(data, target=WHOLE, now=NOW + wait) for wait in waits]


def test_replaced_shards_stay_a_day_and_then_go(data):
    before = rows_of(open_dataset(data))
    first, early, late, later = removed_after(
        data, timedelta(), DAY - timedelta(seconds=1), DAY, 2 * DAY
    )
    assert first.removed == early.removed == later.removed == ()
    assert set(late.removed) == set(first.waiting)
    assert late.waiting == ()
    assert late.version == first.version + 2, "versions that list them had to grow old"
    assert later.version == late.version
    assert rows_of(open_dataset(data)) == before
    assert verify(data).clean
    assert not verify(data).notes
    text = (data / "README.md").read_text()
    assert not any(name in text for name in late.removed)


def test_a_reader_that_has_it_open_goes_on_for_a_day(data):
    reader = open_dataset(data)
    compact(data, target=WHOLE, now=NOW)
    assert reader.samples().num_rows == open_dataset(data).num_samples
    compact(data, target=WHOLE, now=NOW + DAY)
    with pytest.raises(StoreError, match="if the dataset was compacted meanwhile, open it again"):
        reader.samples()


def test_sweep_leaves_what_was_replaced(data):
    report = compact(data, target=WHOLE, now=NOW)
    swept = sweep(PosixFilesystem(data))
    assert swept.removed == ()
    assert set(swept.replaced) == set(report.waiting)


def test_what_a_dead_compaction_left_is_removed_and_nothing_else(data):
    fs = PosixFilesystem(data)
    mine = [f"{t}/compact-20260801T110000-ab.parquet" for t in ("kernels", "samples")]
    for name in mine:
        fs.put_if_absent(name, fs.read_bytes(open_dataset(fs).shards("samples")[0].name))
    orphan = write_pair(fs, "unpublished", [make_result(make_kernel(30), [good_outcome(0, 0)])])
    report = compact(data, target=WHOLE, now=NOW)
    assert set(report.removed) == set(mine)
    assert all(fs.read_bytes(entry.name) for entry in orphan), "a ledger may have committed it"


def test_collectors_keep_it_away(data):
    fs = PosixFilesystem(data)
    with (
        fs.lock(RUN_LOCK, exclusive=False, wait=False),
        pytest.raises(CollectingError, match="no collector at work"),
    ):
        compact(data, target=WHOLE, now=NOW)
    assert open_dataset(data).num_tasks == 8


def test_a_damaged_shard_stops_it(data):
    victim = open_dataset(data).shards("samples")[3].name
    (data / victim).write_bytes(b"PAR1")
    version = open_dataset(data).manifest.version
    with pytest.raises(StoreError, match=victim):
        compact(data, target=WHOLE, now=NOW)
    assert open_dataset(data).manifest.version == version


def test_a_folder_without_dataset_gets_no_lock(tmp_path):
    with pytest.raises(StoreError, match="not a dataset"):
        compact(tmp_path, target=WHOLE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wait", [timedelta(), DAY])
def test_a_rebuild_binds_every_task(data, tmp_path, wait):
    fs = PosixFilesystem(data)
    tasks = sorted(tokens_of(fs))
    removed_after(data, timedelta(), wait)
    index = {task: number for number, task in enumerate(tasks)}
    for ledger_location in (tmp_path / "ledger", tmp_path / "another"):
        ledger = attach(
            fs,
            SqliteLocation(ledger_location),
            plan_hash=PLAN_HASH,
            index_of=index.__getitem__,
            who="t",
        )
        assert ledger.counts(range(len(tasks))).done == len(tasks)
        assert ledger.unpublished() == []
        ledger.close()
    bound = [task for _, found in tasks_by_shard(fs, latest_manifest(fs)) for task in found]
    assert sorted(bound) == tasks
    assert verify(data).clean


def test_falling_back_behind_a_compaction_loses_nothing(data):
    """Its manifest was damaged and moved away, as the message says."""
    fs = PosixFilesystem(data)
    before = rows_of(open_dataset(data))
    version = compact(data, target=WHOLE, now=NOW).version
    (data / manifest_name(version)).unlink()
    rebuild_manifest(fs, plan_hash=PLAN_HASH, epoch=2)
    assert rows_of(open_dataset(data)) == before
    compact(data, target=WHOLE, now=NOW)
    assert rows_of(open_dataset(data)) == before
    assert verify(data).clean


def test_without_any_manifest_every_task_is_found_once(data):
    fs = PosixFilesystem(data)
    before = rows_of(open_dataset(data))
    compact(data, target=WHOLE, now=NOW)
    for path in data.glob("manifest-*.json"):
        path.unlink()
    rebuild_manifest(fs, plan_hash=PLAN_HASH, epoch=2)
    assert rows_of(open_dataset(data)) == before


def test_what_is_published_again_after_a_compaction_stays_out(data):
    fs = PosixFilesystem(data)
    old = (
        open_dataset(fs).manifest.of_table("samples")[:1]
        + open_dataset(fs).manifest.of_table("kernels")[:1]
    )
    compact(data, target=WHOLE, now=NOW)
    publish_entries(fs, old)
    assert open_dataset(fs).num_tasks == 8
    assert verify(data).clean


def test_targets_and_names():
    with pytest.raises(ValueError, match="rows is 0"):
        CompactionTarget(rows=0)
    assert replaced_at("samples/e000001-host-1.parquet") is None
