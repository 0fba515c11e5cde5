"""Datasets that strangers made to hurt: each command says no, soon, with little memory, and writes nowhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.files.plain_files import UnfitFileError
from llmperf_common.ids import sha256_hex
from llmperf_common.ledger.attach import SqliteLocation
from llmperf_common.store.files.filesystem import PosixFilesystem, StoreError
from llmperf_common.store.manifests.manifest import (
    ShardEntry,
    latest_manifest,
    manifest_name,
    parse_manifest,
)
from llmperf_common.store.manifests.segments import SEGMENTS_FOLDER, make
from llmperf_common.store.tables.shard import Footer, encode_table
from llmperf_common.store.upkeep.merge import merge
from llmperf_common.store.upkeep.sweep import sweep
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import (
    make_dataset,
    make_device,
    make_kernel,
    mixed_outcome,
)
from tests.support.in_process import llmperf
from tests.support.measured import GIB, Ended, is_polite, run_measured, snapshot
from tests.support.sampling import slow_but_each
from workers.collect.events import open_event_log

READERS = (("dataset", "verify"), ("status",), ("dataset", "stats"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "data"
    make_dataset(folder, kernels=[make_kernel(i) for i in range(3)], outcome_of=mixed_outcome)
    (folder / ".run.lock").unlink(missing_ok=True)
    return folder


@pytest.fixture
def data(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "data")


def newest(data: Path) -> Path:
    return max(data.glob("manifest-*.json"))


def rewrite_manifest(data: Path, change: Callable[[dict], object]) -> None:
    document = json.loads(newest(data).read_text())
    change(document)
    newest(data).write_text(json.dumps(document))


def replace_shard(data: Path, name: str, content: bytes) -> None:
    """Put other bytes in the place of a shard, with a manifest that says so."""

    def change(document: dict) -> None:
        for entry in document["shards"]:
            if entry["name"] == name:
                entry.update(bytes=len(content), sha256=sha256_hex(content))

    (data / name).write_bytes(content)
    rewrite_manifest(data, change)


def shard_name(data: Path, table: str) -> str:
    return str(next((data / table).glob("*.parquet")).relative_to(data))


def says_no(ended: Ended) -> None:
    assert ended.code == 3, (ended.code, ended.out[-800:], ended.err[-2000:])
    assert is_polite(ended), ended.err
    assert ended.peak_bytes < GIB
    assert ended.cpu_seconds < 10


def says_no_here(*command: object) -> None:
    """Run a command that can neither block nor take much: a second of imports is saved."""
    done = llmperf(*command)
    assert done.code == 3, (done.code, done.out[-800:], done.err[-2000:])
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "name",
    [
        "../outside.parquet", "samples/../../outside.parquet", "/etc/outside.parquet", "samples/a\0b.parquet",
        "samples\\..\\x.parquet", "", "samples", "samples/", "samples/.parquet", "samples/" + "x" * 4000 + ".parquet",
        "samples/../x.parquet", "samples//x.parquet", "./samples/x.parquet", "samples/x.parquet\n", "samples/\x1b[31m.parquet",
        None, 5, ["samples/x.parquet"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["shards", "replaced", "replacing"])
def test_no_name_of_a_shard_leads_elsewhere(data: Path, name: object, where: str) -> None:
    def change(document: dict) -> None:
        if where == "shards":
            document["shards"][0]["name"] = name
        elif where == "replaced":
            document["replaces"] = {"samples/new.parquet": [name]}
        else:
            document["replaces"] = {str(name): ["samples/old.parquet"]}

    rewrite_manifest(data, change)
    with pytest.raises(StoreError, match="not a name of a shard"):
        latest_manifest(PosixFilesystem(data))
    assert not verify(data).clean


@pytest.mark.parametrize(
    "number", slow_but_each(3, [-1, 2**63, 1.5, "3", None, True, [], float("inf")])
)
@pytest.mark.parametrize("field", ["rows", "bytes", "tasks"])
def test_no_number_of_a_shard_is_impossible(data: Path, number: object, field: str) -> None:
    rewrite_manifest(data, lambda document: document["shards"][0].update({field: number}))
    with pytest.raises(StoreError, match="is damaged"):
        latest_manifest(PosixFilesystem(data))


@pytest.mark.parametrize(
    "device", ["../../escaped", "/tmp/escaped", "a\0b", "", "..", "x/y", "x\ny", "x" * 300]
)
def test_merge_writes_below_out_alone(data: Path, tmp_path: Path, device: str) -> None:
    name = shard_name(data, "devices")
    table = pq.read_table(data / name)
    row = {**table.to_pylist()[0], "device_id": device}
    manifest = latest_manifest(PosixFilesystem(data))
    assert manifest is not None
    content = encode_table(
        pa.Table.from_pylist([row], schema=table.schema.remove_metadata()),
        Footer(plan_hash=manifest.plan_hash, epoch=0, tasks=()),
    )
    replace_shard(data, name, content)
    out = tmp_path / "deep" / "out"
    before = snapshot(tmp_path / "data")
    with pytest.raises(StoreError, match=r"device_id .* is not an id"):
        merge([data], out, assign_families=lambda kernels: {one: one for one, _, _ in kernels})
    assert snapshot(tmp_path / "data") == before
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "deep"}
    assert not any(path.suffix == ".parquet" for path in (tmp_path / "deep").rglob("*"))


@pytest.mark.parametrize("command", READERS)
def test_readers_create_nothing(data: Path, command: tuple[str, ...]) -> None:
    before = snapshot(data)
    ended = run_measured(*command, data)
    assert ended.code == 0, ended.err
    assert snapshot(data) == before


@pytest.mark.parametrize("has_index", [False, True])
def test_status_leaves_a_ledger_as_it_is(data: Path, has_index: bool) -> None:
    ledger = data / "ledger" / "ledger-000001.sqlite"
    ledger.parent.mkdir()
    source = data.parent / "live.sqlite"
    db = sqlite3.connect(source, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE meta (key TEXT, value TEXT)")
    for ending in ("", "-wal", "-shm") if has_index else ("", "-wal"):  # as after a SIGKILL
        shutil.copy(f"{source}{ending}", f"{ledger}{ending}")
    db.close()
    before = {name: (mode, size) for name, (mode, size, _) in snapshot(data).items()}
    assert run_measured("status", data).code == 0
    assert {name: (mode, size) for name, (mode, size, _) in snapshot(data).items()} == before


@pytest.mark.parametrize("lock", [".run.lock"])
@pytest.mark.parametrize("target", slow_but_each(2, ["absent", "present"]))
def test_a_lock_that_is_a_link_is_not_followed(data: Path, lock: str, target: str) -> None:
    aim = data.parent / "nologin"
    if target == "present":
        aim.write_text("")
    (data / lock).symlink_to(aim)
    before = snapshot(data.parent)
    for command in READERS:
        ended = run_measured(*command, data)
        assert is_polite(ended), ended.err
        assert snapshot(data.parent) == before
    ended = run_measured("dataset", "compact", data)
    says_no(ended)
    assert "lock file" in ended.err
    assert snapshot(data.parent) == before


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return make


def holding(content: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content) and None


def sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(40 * GIB)


BAD_FILES: dict[str, Callable[[Path], None]] = {
    "fifo": fifo,
    "zero": link_to("/dev/zero"),
    "passwd": link_to("/etc/passwd"),
    "to_itself": link_to("run.json"),
    "sparse": sparse,
    "nested": holding(b"[" * 200_000 + b"]" * 200_000),
    "nested_a_little": holding(b'{"a":' * 900 + b"1" + b"}" * 900),
    "infinite": holding(b'{"schema_version": 1e999}'),
    "no_number": holding(b'{"schema_version": NaN}'),
    "digits": holding(b'{"schema_version": ' + b"9" * 100_000 + b"}"),
    "many": holding(b"[" + b"{}," * 9_000_000 + b"{}]"),
    "utf16": holding('{"schema_version": 1}'.encode("utf-16")),
    "no_utf8": holding(b'{"\xff\xfe": 1}'),
    "empty": holding(b""),
}


SMALL_FILES = {
    "passwd",
    "to_itself",
    "nested_a_little",
    "infinite",
    "no_number",
    "utf16",
    "no_utf8",
    "empty",
}
"""They neither block nor grow: the command may run in this process."""


@pytest.mark.parametrize("bad", slow_but_each(3, BAD_FILES))
@pytest.mark.parametrize("file", ["run.json", "manifest"])
def test_files_that_are_none(data: Path, bad: str, file: str) -> None:
    path = data / file if file == "run.json" else newest(data)
    BAD_FILES[bad](path)
    commands = READERS if bad in ("fifo", "zero", "many") else READERS[:1]
    for command in commands:
        if bad in SMALL_FILES:
            says_no_here(*command, data)
        else:
            says_no(run_measured(*command, data))


@pytest.mark.parametrize("bad", slow_but_each(3, ["fifo", "zero", "sparse"]))
def test_shards_that_are_none(data: Path, bad: str) -> None:
    BAD_FILES[bad](data / shard_name(data, "samples"))
    for command in READERS:
        says_no(run_measured(*command, data))


def test_a_manifest_of_a_far_version_takes_no_memory(data: Path) -> None:
    document = newest(data).read_text()
    (data / manifest_name(2_000_000_000)).write_text(document)
    says_no(run_measured("dataset", "verify", data))
    says_no(run_measured("status", data))
    told = json.loads(document) | {"version": 2_000_000_000}
    (data / manifest_name(2_000_000_000)).write_text(json.dumps(told))
    assert "manifest-1999999999.json" in str(verify(data).problems)
    for key in (
        "published_s",
        "earlier",
        "segments",
        "dropped",
    ):  # as versions before schema 5 have it
        told.pop(key, None)
    (data / manifest_name(2_000_000_000)).write_text(json.dumps(told | {"schema_version": 4}))
    says_no(run_measured("dataset", "verify", data))
    assert "manifest-1999999999.json" in str(verify(data).problems)


def test_a_segment_that_is_named_a_thousand_times(data: Path) -> None:
    shards = [
        ShardEntry.of(f"samples/{number:06}.parquet", b"", rows=1, tasks=0)
        for number in range(50_000)
    ]
    segment, content = make(shards, [])
    (data / SEGMENTS_FOLDER).mkdir(exist_ok=True)
    (data / segment.name).write_bytes(content)
    references = [segment.to_reference()] * 10_000
    rewrite_manifest(data, lambda document: document.update(segments=references))
    for command in READERS:
        says_no(run_measured(*command, data))


def test_a_version_that_is_not_its_name_does_not_publish_for_ever(data: Path) -> None:
    rewrite_manifest(data, lambda document: document.update(version=0))
    with pytest.raises(StoreError, match="says that it is version 0"):
        latest_manifest(PosixFilesystem(data))


@pytest.mark.parametrize(
    "kind", ["text", "list of text", pytest.param("numbers", marks=pytest.mark.slow)]
)
def test_a_shard_that_unpacks_too_far(data: Path, kind: str) -> None:
    name = shard_name(data, "samples")
    table = pq.read_table(data / name)
    footer = table.schema.metadata[b"llmperf"]
    column = {"text": "failure_detail", "list of text": "input_strategies", "numbers": "time_ns"}[
        kind
    ]
    huge: dict[str, object] = {
        "text": ["x" * 2**20] * 6_000,
        "list of text": [["x" * 2**20] * 6_000],
        "numbers": [[1.0] * 10**6] * 100,
    }
    values = huge[kind]
    assert isinstance(values, list)
    array = pa.array(values, pa.list_(pa.float64())) if kind == "numbers" else None
    if kind == "text":
        array = pa.DictionaryArray.from_arrays(pa.array([0] * 6_000, pa.int32()), ["x" * 2**20])
    elif kind == "list of text":
        words = pa.DictionaryArray.from_arrays(pa.array([0] * 6_000, pa.int32()), ["x" * 2**20])
        array = pa.ListArray.from_arrays(pa.array([0, 6_000], pa.int32()), words)
    del values, huge
    assert array is not None
    schema = table.schema.remove_metadata()
    columns = [
        array if field.name == column else pa.nulls(len(array), field.type) for field in schema
    ]
    made = pa.table(columns, names=schema.names).replace_schema_metadata({b"llmperf": footer})
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink, compression="zstd", store_schema=False)
    content = sink.getvalue().to_pybytes()
    assert len(content) < 2 * 2**20
    replace_shard(data, name, content)
    says_no(run_measured("dataset", "verify", data))
    for command in READERS[1:]:  # they need not read that column
        ended = run_measured(*command, data)
        assert is_polite(ended), ended.err
        assert ended.peak_bytes < GIB


@pytest.mark.slow
def test_a_ledger_that_never_answers(data: Path) -> None:
    folder = data / "ledger"
    folder.mkdir()
    db = sqlite3.connect(folder / "ledger-000009.sqlite")
    db.execute(
        "CREATE VIEW meta AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT 'epoch' AS key, max(i) AS value FROM n"
    )
    db.close()
    ended = run_measured("status", data)
    assert ended.code == 0
    assert is_polite(ended)
    assert ended.cpu_seconds < 10


@pytest.mark.parametrize(
    "change",
    [
        {"num_tasks": -5}, {"num_tasks": "many"}, {"num_tasks": 10**30}, {"run_id": "../../../x"}, {"config": [1]},
        {"device_classes": [{}]}, {"device_classes": 5}, {"merged_from": 7}, {"created_at": 5}, {"plan_hash": None},
        {"harness_version": []}, {"schema_version": -1e300},
    ],
)  # fmt: skip
def test_a_run_record_that_is_none(data: Path, change: dict[str, object]) -> None:
    document = json.loads((data / "run.json").read_text())
    (data / "run.json").write_text(json.dumps({**document, **change}))
    for command in READERS:
        says_no_here(*command, data)


@pytest.mark.parametrize("folder", slow_but_each(2, ["samples", "segments", "trash", "epochs"]))
def test_a_folder_that_is_a_link_is_neither_swept_nor_written(
    data: Path, tmp_path: Path, folder: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (data / folder).mkdir(exist_ok=True)
    shutil.move(data / folder, elsewhere)
    for name in ("a" * 32 + ".json", "x.parquet", ".tmp-1-x"):
        (elsewhere / name).write_text("precious")
    (data / folder).symlink_to(elsewhere)
    before, fs = snapshot(elsewhere), PosixFilesystem(data)
    with contextlib.suppress(StoreError):
        sweep(fs)
    assert snapshot(elsewhere) == before
    with pytest.raises(StoreError, match=f"{folder} is a link that leads out"):
        fs.put_if_absent(f"{folder}/new", b"")
    with pytest.raises(StoreError, match="leads out"):
        fs.remove(f"{folder}/x.parquet")
    with pytest.raises(StoreError, match="leads out"):
        fs.move(f"{folder}/x.parquet", "x.parquet")
    assert snapshot(elsewhere) == before


@pytest.mark.parametrize("what", ["folder", "file", "pipe"])
def test_an_event_log_is_no_link(data: Path, tmp_path: Path, what: str) -> None:
    target = tmp_path / "precious"
    events = data / "events"
    if what == "folder":
        target.mkdir()
        events.symlink_to(target)
    else:
        target.write_text("precious")
        events.mkdir()
        path = events / "host-7.jsonl"
        path.symlink_to(target) if what == "file" else os.mkfifo(path)
    before = snapshot(target)
    with pytest.raises(UnfitFileError, match="is a link or not a regular file"):
        open_event_log(events, "host/7")
    assert snapshot(target) == before


@pytest.mark.parametrize("what", ["link", "pipe", "log"])
def test_a_ledger_that_is_a_link_is_built_anew(data: Path, tmp_path: Path, what: str) -> None:
    ledger_location, target = SqliteLocation(data / "ledger"), tmp_path / "precious.sqlite"
    ledger_location.create(epoch=1, plan_hash="p", shards=(), done=()).close()
    shutil.copy(data / "ledger" / "ledger-000001.sqlite", target)
    before = snapshot(target)
    path = data / "ledger" / ("ledger-000001.sqlite" + ("-wal" if what == "log" else ""))
    path.unlink(missing_ok=True)
    os.mkfifo(path) if what == "pipe" else path.symlink_to(target)
    assert ledger_location.open(1, "p") is None
    ledger_location.retire(before=2)
    assert not list((data / "ledger").glob("ledger-*"))
    assert snapshot(target) == before


def test_sound_manifests_are_read(data: Path) -> None:
    assert parse_manifest(newest(data).read_bytes(), "x").shards
    assert make_device(0).device_id


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "command", slow_but_each(3, [(one,) for one in [*READERS, ("dataset", "repair")]])
)
@pytest.mark.parametrize("name", ["manifest-000099.json", "segments/x.json", "run.json"])
def test_a_link_to_nothing_among_the_lists(data: Path, name: str, command: tuple[str, ...]) -> None:
    (data / name).parent.mkdir(exist_ok=True)
    (data / name).unlink(missing_ok=True)
    (data / name).symlink_to("nowhere")
    done = llmperf(*command, data)
    if name == "segments/x.json" and "repair" not in command:
        assert done.code == 0, done.err
    else:
        assert (done.code, "is a link to nothing" in done.err + done.out) == (3, True), (done.out, done.err)  # fmt: skip
    assert (data / name).is_symlink()
