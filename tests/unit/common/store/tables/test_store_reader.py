"""Reading: through the manifest only, in today's schema, one version at a time."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from llmperf_common.schemas import DEVICES, KERNELS, SAMPLES
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import ShardEntry, latest_manifest, manifest_name
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.shard import ShardError, decode, encode_table
from tests.support.factories.dataset_factory import (
    START_US,
    make_dataset,
    make_kernel,
    make_result,
    mixed_outcome,
    publish_entries,
    write_pair,
)


def test_tables_have_todays_schema(tmp_path: Path):
    dataset = open_dataset(make_dataset(tmp_path, outcome_of=mixed_outcome))
    assert dataset.samples().schema.equals(SAMPLES)
    assert dataset.kernels().schema.equals(KERNELS)
    assert dataset.devices().schema.equals(DEVICES)
    assert dataset.samples().num_rows == dataset.num_samples == 12
    assert dataset.kernels().num_rows == dataset.num_tasks == 3
    assert dataset.status_counts() == {"ok": 8, "over_time_budget": 3, "hang": 1}
    assert [table.num_rows for table in dataset.iter_samples()] == [8, 4]
    assert dataset.run.num_tasks == 3


def test_columns_come_in_the_order_asked(tmp_path: Path):
    dataset = open_dataset(make_dataset(tmp_path))
    assert dataset.samples(["median_ns", "sample_id"]).column_names == ["median_ns", "sample_id"]
    with pytest.raises(KeyError, match="no_such"):
        dataset.samples(["no_such"])


def test_the_sentinel_is_in_the_footers(tmp_path: Path):
    readings = open_dataset(make_dataset(tmp_path)).sentinel()
    assert [reading.median_ns for reading in readings] == [5_000.0] * 3
    assert readings[0].at_us == START_US


def test_a_dataset_without_results_has_empty_tables(tmp_path: Path):
    dataset = open_dataset(make_dataset(tmp_path, kernels=0, num_planned_tasks=7))
    assert dataset.samples().schema.equals(SAMPLES)
    assert dataset.samples(["status"]).num_rows == 0
    assert dataset.kernels().num_rows == dataset.devices().num_rows == 0
    assert dataset.sentinel() == []
    assert dataset.status_counts() == {}


def test_what_no_manifest_lists_does_not_exist(tmp_path: Path):
    make_dataset(tmp_path)
    write_pair(PosixFilesystem(tmp_path), "orphan", [make_result(make_kernel(9), [])])
    (tmp_path / "samples" / ".tmp-1-abc").write_bytes(b"half")
    assert open_dataset(tmp_path).num_tasks == open_dataset(tmp_path).kernels().num_rows == 3


def test_an_open_dataset_does_not_change_while_others_publish(tmp_path: Path):
    dataset = open_dataset(make_dataset(tmp_path))
    before = dataset.samples()
    fs = PosixFilesystem(tmp_path)
    result = make_result(make_kernel(9), [mixed_outcome(9, 0)])
    publish_entries(fs, write_pair(fs, "later", [result]))
    assert dataset.samples().equals(before)
    assert open_dataset(tmp_path).num_samples == before.num_rows + 1


def test_no_dataset_is_a_message(tmp_path: Path):
    with pytest.raises(StoreError, match=r"is not a dataset .*run\.json.*llmperf collect"):
        open_dataset(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists(), "opening must not create anything"
    make_dataset(tmp_path)
    for path in tmp_path.glob("manifest-*"):
        path.unlink()
    with pytest.raises(StoreError, match=r"no results yet .*llmperf collect --out"):
        open_dataset(tmp_path)


def test_missing_and_damaged_shards_are_named(tmp_path: Path):
    dataset = open_dataset(make_dataset(tmp_path))
    first, second = dataset.shards("samples")
    path = tmp_path / first.name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardError, match=f"{first.name} is damaged.*llmperf dataset verify"):
        dataset.samples()
    path.unlink()
    with pytest.raises(ShardError, match=f"{first.name} is listed in manifest-.* but missing"):
        list(dataset.iter_samples(["status"]))
    assert second.name not in dataset.manifest.replaced_names


def rewrite(path: Path, entry: ShardEntry, table: pa.Table) -> None:
    """Put ``table`` in the place of a shard, as if it had been written so."""
    fs = PosixFilesystem(path)
    _, footer = decode(fs.read_bytes(entry.name), entry.name)
    data = encode_table(table, footer)
    (path / entry.name).write_bytes(data)
    manifest = latest_manifest(fs)
    new = ShardEntry.of(entry.name, data, rows=table.num_rows, tasks=entry.tasks)
    shards = tuple(new if e.name == entry.name else e for e in manifest.shards)
    changed = replace(manifest, shards=shards)
    (path / manifest_name(manifest.version)).write_bytes(changed.to_json())


def test_an_older_shard_gives_nulls_and_a_newer_one_loses_its_column(tmp_path: Path):
    make_dataset(tmp_path)
    old, new = open_dataset(tmp_path).shards("samples")
    tables = list(open_dataset(tmp_path).iter_samples())
    rewrite(tmp_path, old, tables[0].drop_columns(["temperature_c", "checks"]))
    column = pa.array(["blue"] * tables[1].num_rows)
    rewrite(tmp_path, new, tables[1].append_column("colour", column))
    samples = open_dataset(tmp_path).samples()
    assert samples.schema.equals(SAMPLES)
    assert samples.column("temperature_c").to_pylist() == [None] * 8 + [41.0] * 4
    assert samples.column("checks").null_count == 8


def test_compacted_shards_are_read_once(tmp_path: Path):
    dataset = open_dataset(make_dataset(tmp_path))
    old = dataset.shards("samples")[0]
    manifest = replace(dataset.manifest, replaces=(("samples/new.parquet", (old.name,)),))
    assert old not in replace(dataset, manifest=manifest).shards("samples")
    assert replace(dataset, manifest=manifest).num_samples == 4
