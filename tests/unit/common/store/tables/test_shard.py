"""Shards: what is written is what is read, and damage is named."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmperf_common.schemas import DEVICES, KERNELS, SAMPLES
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.tables.reader import Dataset, conform, open_dataset
from llmperf_common.store.tables.shard import (
    Footer,
    ShardError,
    decode,
    device_from_table,
    encode_device,
    encode_results,
    encode_table,
    read_footer,
    write_shard,
)
from tests.support.factories.dataset_factory import (
    PLAN_HASH,
    make_dataset,
    make_device,
    make_kernel,
    make_result,
    mixed_outcome,
)


def pair(num_tasks: int = 2, num_configs: int = 4):
    results = [
        make_result(make_kernel(i), [mixed_outcome(i, c) for c in range(num_configs)])
        for i in range(num_tasks)
    ]
    shards = encode_results("stem", results, range(num_tasks), plan_hash=PLAN_HASH, epoch=3)
    return results, shards


def test_a_pair_reads_back():
    results, shards = pair()
    for shard, schema in zip(shards, (KERNELS, SAMPLES), strict=True):
        table, footer = decode(shard.data, shard.name)
        assert table.schema.equals(schema)
        assert table.num_rows == shard.rows == shard.entry.rows
        assert footer == read_footer(shard.data, shard.name)
        assert footer.tasks == tuple((r.task_id, i) for i, r in enumerate(results))
        assert (footer.plan_hash, footer.epoch) == (PLAN_HASH, 3)
        assert len(footer.sentinel) == 2
    kernels, samples = shards
    assert decode(kernels.data, kernels.name)[0].column("static_features").to_pylist()[0]
    statuses = decode(samples.data, samples.name)[0].column("status").to_pylist()
    assert statuses == [
        "ok",
        "ok",
        "over_time_budget",
        "ok",
        "ok",
        "ok",
        "over_time_budget",
        "hang",
    ]


def test_equal_results_give_equal_bytes():
    assert pair()[1] == pair()[1]


def test_a_device_reads_back():
    shard = encode_device(make_device(), plan_hash=PLAN_HASH)
    table, footer = decode(shard.data, shard.name)
    assert table.column("device_id").to_pylist() == [make_device().device_id]
    assert shard.name == f"devices/{make_device().device_id}.parquet"
    assert footer.tasks == ()
    assert device_from_table(table) == make_device()


def test_a_device_of_an_earlier_version_reads_back():
    """Before version 3 there was nothing of constant buffers, compute units and NVML, before 4 no spread of peaks."""
    device = replace(
        make_device(), max_constant_buffer_bytes=65_536, has_ecc=True, peak_dram_spread=0.02
    )
    shard = encode_device(device, plan_hash=PLAN_HASH)
    table, footer = decode(shard.data, shard.name)
    assert device_from_table(table) == device
    later = DEVICES.names[DEVICES.names.index("max_constant_buffer_bytes") :]
    assert len(later) == 16
    earlier, _ = decode(encode_table(table.drop_columns(later), footer), shard.name)
    assert device_from_table(earlier) == make_device()
    assert conform(earlier, DEVICES).schema.equals(DEVICES)


_, (_, WHOLE) = pair(num_configs=2)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(0, len(WHOLE.data) - 1))
def test_a_shard_cut_short_is_damaged(length):
    with pytest.raises(ShardError, match=r"samples/stem\.parquet is damaged"):
        decode(WHOLE.data[:length], WHOLE.name)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A dataset on disk; a test that changes a shard puts it back."""
    return open_dataset(make_dataset(tmp_path_factory.mktemp("shards") / "data", kernels=1))


@settings(max_examples=60, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_a_flipped_byte_is_damage(dataset: Dataset, where: float, bits: int):
    (entry,) = dataset.shards("samples")
    path = Path(dataset.fs.describe(entry.name))
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, int(where * len(whole)), bits))
    try:
        with pytest.raises(ShardError, match=rf"{entry.name} is damaged"):
            dataset.samples()
    finally:
        path.write_bytes(whole)


@settings(max_examples=60, deadline=None)
@given(position=st.integers(0, len(WHOLE.data) - 1), bits=st.integers(1, 255))
@example(position=4583, bits=128)  # the name of a nested column
def test_damage_that_is_decoded_is_a_shard_error_or_conforms(position: int, bits: int):
    """As where a manifest is lost: no hash says that the byte is another, and values may be."""
    try:
        table, _ = decode(flipped(WHOLE.data, position, bits), WHOLE.name)
    except ShardError:
        pass
    else:
        assert conform(table, SAMPLES).schema.equals(SAMPLES)  # a name that none has is no column


def flipped(data: bytes, position: int, bits: int) -> bytes:
    """Return ``data`` with one byte changed."""
    changed = bytearray(data)
    changed[position] ^= bits
    return bytes(changed)


def test_missing_and_changed_columns_are_named():
    table, footer = decode(WHOLE.data, WHOLE.name)
    changed = table.drop_columns(["status"]).set_column(
        0, "sample_id", pa.array(range(table.num_rows))
    )
    with pytest.raises(ShardError, match=r"'sample_id' is int64, not string.*'status' is missing"):
        decode(encode_table(changed, footer), WHOLE.name)


def test_a_foreign_parquet_file_is_damaged():
    table, _ = decode(WHOLE.data, WHOLE.name)
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata(None), sink)
    with pytest.raises(ShardError, match="has no footer of LLMPerf"):
        decode(sink.getvalue().to_pybytes(), WHOLE.name)


def test_writing_twice_is_the_same_and_other_bytes_are_refused(tmp_path: Path):
    fs = PosixFilesystem(tmp_path)
    _, (kernels, _) = pair()
    assert write_shard(fs, kernels) == write_shard(fs, kernels) == kernels.entry
    _, (other, _) = pair(num_tasks=3)
    with pytest.raises(ShardError, match="does not read back"):
        write_shard(fs, other)


def test_a_footer_without_sentinel_is_read():
    table, _ = decode(WHOLE.data, WHOLE.name)
    footer = Footer(plan_hash="p", epoch=0, tasks=(("t", 1),))
    assert decode(encode_table(table, footer), WHOLE.name)[1] == footer
