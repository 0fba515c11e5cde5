"""Small datasets that unpack to gigabytes: long texts, and many shards that are each allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.schemas import TABLES
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.manifests.manifest import latest_manifest, manifest_name
from llmperf_common.store.tables import unpacked_budget
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.rows import kernels_table, samples_table
from llmperf_common.store.tables.shard import ShardError
from llmperf_common.store.tables.text_lengths import most_bytes, too_long_texts
from llmperf_common.store.upkeep.compact import CompactionTarget, compact
from llmperf_common.store.upkeep.verify import verify
from llmperf_common.text_limits import MAX_SOURCE_BYTES, MAX_TEXT_BYTES
from tests.support.factories.dataset_factory import (
    good_outcome,
    make_dataset,
    make_kernel,
    make_result,
)
from tests.unit.common.store.upkeep.test_verify import rewrite, with_value

ARGUMENT = {"position": 0, "kind": "global_buffer", "elements": 64}
LONG = {
    "source": ("kernels", "source", "B" * (MAX_SOURCE_BYTES + 1)),
    "log": ("kernels", "build", {"log": "B" * (MAX_SOURCE_BYTES + 1)}),
    "name of an argument": (
        "kernels",
        "args",
        [{"position": 0, "name": "B" * (MAX_SOURCE_BYTES + 1)}],
    ),
    "worker": ("samples", "worker_id", "B" * (MAX_TEXT_BYTES + 1)),
    "kind": ("samples", "args", [{**ARGUMENT, "kind": "B" * (MAX_TEXT_BYTES + 1)}]),
    "driver": ("devices", "driver", "B" * (MAX_TEXT_BYTES + 1)),
}


@pytest.mark.parametrize("name", LONG)
def test_a_text_longer_than_llmperf_writes_is_refused(tmp_path: Path, name: str) -> None:
    table, column, value = LONG[name]
    path = make_dataset(tmp_path)
    rewrite(path, table, with_value(column, 0, value))
    words = f"{table}: column '{column}' has a text of "
    assert any(words in one.what for one in verify(path).problems)
    with pytest.raises(ShardError, match=words) as refused:
        list(open_dataset(path).iter_table(table, [column]))
    assert f"{table}/" in str(refused.value)


def test_the_longest_texts_that_a_collector_writes_are_read() -> None:
    failure = Failure(code=FailureCode.BUILD_ERROR, stage=Stage.BUILD, detail="\N{SNOWMAN}" * 10**5)
    kernel = dataclasses.replace(
        make_kernel(0), source="x" * MAX_SOURCE_BYTES, path="\N{SNOWMAN}" * 4096
    )
    result = make_result(kernel, [failure, good_outcome(0, 1)])
    assert result.build is not None
    build = dataclasses.replace(result.build, log="warning\n" * 10**6)
    result = dataclasses.replace(result, build=build)
    tables = {"kernels": kernels_table([result]), "samples": samples_table([result])}
    for name, table in tables.items():
        assert too_long_texts(name, table) == []
    (log,) = (one["log"] for one in tables["kernels"].column("build").to_pylist())
    assert len(log) <= 64 * 2**10
    assert "bytes left out" in log


def test_every_column_has_a_limit() -> None:
    for table, schema in TABLES.items():
        assert {most_bytes(table, one.name) for one in schema} <= {MAX_SOURCE_BYTES, MAX_TEXT_BYTES}


def longer(rows: pa.Table) -> pa.Table:
    return with_value("source", 0, "B" * 4 * 2**20)(rows)


def test_a_row_of_millions_of_empty_lists_is_refused(tmp_path: Path) -> None:
    """12 million take 48 MiB in Arrow, but 800 MiB in Python."""
    path = make_dataset(tmp_path)
    rewrite(path, "kernels", with_value("overflowing_local_sizes", 0, [[]] * 4_000_000))
    words = "kernels: row 1 would take "
    assert any(words in one.what for one in verify(path).problems)
    with pytest.raises(ShardError, match=words):
        open_dataset(path).kernels(["overflowing_local_sizes"])
    assert open_dataset(path).kernels(["name"]).num_rows == 3


READERS: dict[str, Callable[[Path], object]] = {
    "whole": lambda path: open_dataset(path).kernels(),
    "one by one": lambda path: list(open_dataset(path).iter_table("kernels")),
    "compact": lambda path: compact(path, target=CompactionTarget(rows=1000)),
}


@pytest.mark.parametrize("reader", READERS)
def test_shards_that_together_take_too_much_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.setattr(unpacked_budget, "ALWAYS_ALLOWED_BYTES", 6 * 2**20)
    monkeypatch.setattr(unpacked_budget, "MAX_RATIO", 1)
    path = make_dataset(tmp_path, kernels_per_shard=1)
    rewrite(path, "kernels", longer)
    assert open_dataset(path).kernels().num_rows == 3  # one such shard is allowed
    for number in (1, 2):
        rewrite(path, "kernels", longer, number=number)
    with pytest.raises(ShardError, match="more than the 6 MiB that are allowed") as refused:
        READERS[reader](path)
    assert "kernels/" in str(refused.value)
    assert sum("6 MiB" in one.what for one in verify(path).problems) == 2


def test_the_budget_follows_the_size_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked_budget, "ALWAYS_ALLOWED_BYTES", 0)
    path = make_dataset(tmp_path)
    assert open_dataset(path).kernels().num_rows == 3


@pytest.mark.parametrize("reader", ["whole", "one by one"])
def test_sizes_that_only_the_manifest_claims_do_not_raise_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """A shard of 10^15 bytes without a file switched the limit off."""
    monkeypatch.setattr(unpacked_budget, "ALWAYS_ALLOWED_BYTES", 6 * 2**20)
    monkeypatch.setattr(unpacked_budget, "MAX_RATIO", 1)
    path = make_dataset(tmp_path, kernels_per_shard=1)
    for number in (0, 1):
        rewrite(path, "kernels", longer, number=number)
    manifest = latest_manifest(PosixFilesystem(path))
    last = manifest.of_table("kernels")[2]
    shards = tuple(
        dataclasses.replace(one, bytes=10**15) if one.name == last.name else one
        for one in manifest.shards
    )
    text = dataclasses.replace(manifest, shards=shards).to_json()
    (path / manifest_name(manifest.version)).write_bytes(text)
    (path / last.name).unlink()
    assert sum("6 MiB" in one.what for one in verify(path).problems) == 1
    with pytest.raises(ShardError, match="more than the 6 MiB that are allowed"):
        READERS[reader](path)


def test_a_file_of_many_kernels_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """900 kernels of a file of 713 KiB were refused; here everything is 100 times smaller."""
    monkeypatch.setattr(unpacked_budget, "ALWAYS_ALLOWED_BYTES", 2**20)
    monkeypatch.setattr(unpacked_budget, "ALLOWED_REPEATED_BYTES", 8 * 2**20)
    monkeypatch.setattr(unpacked_budget, "MAX_RATIO", 1)
    kernels = [
        dataclasses.replace(make_kernel(number), source="x" * 70_000) for number in range(90)
    ]
    path = make_dataset(tmp_path, kernels=kernels, num_configs=1, kernels_per_shard=30)
    for reader in READERS.values():
        reader(path)
    table = open_dataset(path).kernels()
    assert table.nbytes > 6 * 2**20
    assert not any("refused" in one.what for one in verify(path).problems)

    monkeypatch.setattr(unpacked_budget, "ALLOWED_REPEATED_BYTES", 2 * 2**20)
    with pytest.raises(ShardError, match=r"more than the 1 MiB .* and 2 MiB for repeated sources"):
        open_dataset(path).kernels()
