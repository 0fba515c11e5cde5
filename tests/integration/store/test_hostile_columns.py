"""Shards that are valid Parquet and fit their manifest, but whose columns no reader can use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf.exits import Exit
from llmperf_common.schemas import SAMPLES, missing_or_changed_columns
from llmperf_common.store.files.filesystem import PosixFilesystem
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.shard import ShardError
from llmperf_common.store.tables.stats import dataset_stats
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.verify import verify
from tests.fuzz.folder_mutate import mend_manifest
from tests.support.factories.dataset_factory import (
    make_dataset,
    make_kernel,
    mixed_outcome,
    publish_entries,
    write_pair,
)
from tests.support.in_process import assert_refused, llmperf

Change = Callable[[pa.Table], pa.Table]

COMMANDS = (
    "dataset stats {data}",
    "dataset card {data}",
    "dataset export {data} --out {out}",
    "dataset compact {data}",
    "dataset merge {data} {sound} --out {out}",
    "train --data {data} --preset log-linear --out {out}",
    "report {data} --out {out}.html",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kernels = [make_kernel(number) for number in range(14)]
    folder = tmp_path_factory.mktemp("sound") / "data"
    return make_dataset(folder, kernels=kernels, outcome_of=mixed_outcome, kernels_per_shard=7)


@pytest.fixture
def data(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "data")


def rewrite(data: Path, table: str, change: Change) -> None:
    for path in (data / table).glob("*.parquet"):
        found = pq.read_table(path)
        pq.write_table(change(found).replace_schema_metadata(found.schema.metadata), path)
    mend_manifest(data)


def twice(name: str) -> Change:
    return lambda table: table.append_column(name, table.column(name))


def replaced(name: str, make: Callable[[pa.ChunkedArray], pa.Array]) -> Change:
    def change(table: pa.Table) -> pa.Table:
        column = pa.chunked_array([make(table.column(name))])
        return table.set_column(table.column_names.index(name), name, column)

    return change


def not_utf8(name: str) -> Change:
    def make(column: pa.ChunkedArray) -> pa.Array:
        texts = pa.array([b"\xff\xfe<b>"] * len(column))
        return pa.Array.from_buffers(pa.string(), len(column), texts.buffers())

    return replaced(name, make)


def at(moment_us: int) -> Change:
    def make(column: pa.ChunkedArray) -> pa.Array:
        return pa.array([moment_us] * len(column), pa.int64()).cast(column.type)

    return replaced("created_at", make)


BAD: dict[str, tuple[str, Change, str]] = {
    "nullable twice": ("samples", twice("median_ns"), "'median_ns' occurs 2 times"),
    "needed twice": ("samples", twice("status"), "'status' occurs 2 times"),
    "struct twice": ("samples", twice("work"), "'work' occurs 2 times"),
    "device twice": ("devices", twice("peak_dram_gbps"), "'peak_dram_gbps' occurs 2 times"),
    "status": ("samples", not_utf8("status"), "'status' is damaged: In chunk 0: Invalid"),
    "source": ("kernels", not_utf8("source"), "'source' is damaged: In chunk 0: Invalid"),
    "family_id": ("kernels", not_utf8("family_id"), "'family_id' is damaged: In chunk 0: Invalid"),
    "device_class": ("devices", not_utf8("device_class"), "'device_class' is damaged: In chunk 0: Invalid"),
    "late": ("samples", at(2**62), "'created_at' has a time outside of years 1-9999"),
    "early": ("samples", at(-(2**62)), "'created_at' has a time outside of years 1-9999"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_columns_that_no_reader_can_use(data: Path, name: str) -> None:
    table, change, words = BAD[name]
    rewrite(data, table, change)
    problems = [one for one in verify(data).problems if one.kind is ProblemKind.DAMAGED]
    assert {one.name.split("/")[0] for one in problems} == {table}
    assert all(words in one.what for one in problems)
    with pytest.raises(ShardError, match="restore the file from a backup, or run `llmperf"):
        list(open_dataset(data).iter_table(table))


READ_BY_ALL = ("nullable twice", "status")


@pytest.mark.parametrize("name", ["nullable twice", "status", "source", "late"])
def test_commands_refuse_such_columns(data: Path, sound: Path, tmp_path: Path, name: str) -> None:
    table, change, words = BAD[name]
    rewrite(data, table, change)
    for number, template in enumerate(COMMANDS):
        names = {"data": data, "sound": sound, "out": tmp_path / f"out{number}"}
        done = llmperf(*(part.format(**names) for part in template.split()))
        if done.code != 0 or name in READ_BY_ALL:
            assert_refused(done, Exit.BAD_INPUT, words)


def test_the_first_and_last_moment_that_can_be_shown(data: Path, tmp_path: Path) -> None:
    for moment_us, says in ((-62_135_596_800_000_000, "1-01-01 00:00:00"), (253_402_300_799_999_999, "9999-12-31 23:59:59")):  # fmt: skip
        rewrite(data, "samples", at(moment_us))
        done = llmperf("report", data, "--out", tmp_path / "report.html")
        assert done.code == 0, done.err
        assert says in (tmp_path / "report.html").read_text()
        with pytest.raises(OverflowError):
            at(moment_us + (1 if moment_us > 0 else -1))(
                open_dataset(data).samples(["created_at"])
            ).to_pylist()


def test_a_member_of_a_struct_that_is_there_twice() -> None:
    work = SAMPLES.field("work").type
    again = pa.struct([*work, work.field(0)])
    found = SAMPLES.set(SAMPLES.get_field_index("work"), pa.field("work", again))
    assert "column 'work' is struct<" in missing_or_changed_columns("samples", found)[0]


def test_an_empty_shard_is_judged_as_any_other(data: Path) -> None:
    rewrite(data, "samples", lambda table: table.slice(0, 0))
    found = {(one.name, one.what) for one in verify(data).problems}
    what = "its rows do not belong to the tasks that its footer lists"
    assert {(f"samples/e000001-{number:06d}.parquet", what) for number in (0, 7)} <= found
    assert "zip()" not in str(found)


def test_an_empty_pair_of_shards_is_sound(data: Path) -> None:
    fs = PosixFilesystem(data)
    publish_entries(fs, write_pair(fs, "e000001-empty", []))
    report = verify(data)
    assert report.problems == ()
    assert report.counts.tasks == 14
    assert llmperf("dataset", "stats", data).code == 0


@pytest.mark.parametrize(
    "time_ns", [0.0, -1.0, -1.7e308, float("nan"), float("inf"), -float("inf")]
)
def test_times_that_no_launch_takes_are_in_no_statistics(data: Path, time_ns: float) -> None:
    """Warnings of numpy are errors here, and a user would read them above the statistics."""
    sound = dataset_stats(open_dataset(data))
    make_times = replaced("median_ns", lambda column: pa.array([time_ns] * len(column)))
    rewrite(data, "samples", make_times)
    found = dataset_stats(open_dataset(data))
    assert found.by_status == sound.by_status
    assert (found.median_ns_percentiles, found.ok_by_decade, found.short_share) == ({}, {}, None)
