"""Shards whose hashes are right but whose lists hold nulls, or whose devices cannot exist."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from llmperf.cli.main import app
from llmperf_common.ids import sha256_hex
from llmperf_common.schemas import SAMPLES
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.shard import ShardError
from llmperf_common.store.tables.table_problems import columns_without_values
from llmperf_common.store.upkeep.compact import CompactionTarget, compact
from llmperf_common.store.upkeep.problems import ProblemKind
from llmperf_common.store.upkeep.row_checks import Surroundings, check_samples
from llmperf_common.store.upkeep.verify import verify
from tests.support.factories.dataset_factory import make_dataset, make_kernel, mixed_outcome
from tests.unit.common.store.upkeep.test_verify import rewrite, with_value


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    return make_dataset(folder, kernels=[make_kernel(0)], outcome_of=mixed_outcome)


@pytest.fixture
def path(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "data")


NULLS = {
    "samples.args": [None],
    "samples.global_size": [64, None],
    "kernels.args": [None],
    "devices.max_work_item_sizes": [None],
}


@pytest.mark.parametrize("name", NULLS)
def test_a_list_with_a_null_is_refused_by_every_reader(path: Path, name: str) -> None:
    table, _, column = name.partition(".")
    rewrite(path, table, with_value(column, 0, NULLS[name]))
    words = f"{table}: column '{column}' has a null in a list (row 1)"
    (problem,) = [one for one in verify(path).problems if one.kind is ProblemKind.DAMAGED]
    assert words in problem.what
    with pytest.raises(ShardError, match=r"restore the file from a backup, or run `llmperf"):
        list(open_dataset(path).iter_table(table))
    done = CliRunner().invoke(app, ["report", str(path), "--out", str(path / "r.html")])
    assert isinstance(done.exception, ShardError)
    assert words in str(done.exception)


SIZES = "has an NDRange without 1 to 3 positive sizes"
PLACE = "has an argument whose position is not from 0 to 1,023"
NUMBER = "has an argument whose number of elements is not from 0 to 281,474,976,710,656"
ARGUMENT = {"position": 0, "kind": "global_buffer", "elements": 64}
IMPOSSIBLE = {
    "negative": ("samples", "global_size", [-5], SIZES),
    "zero": ("samples", "local_size", [0], SIZES),
    "four": ("samples", "global_size", [1, 1, 1, 1], SIZES),
    "shorter": ("samples", "local_size", [], "differs in length from global_size"),
    "huge": ("samples", "args", [{**ARGUMENT, "elements": 2**48 + 1}], NUMBER),
    "below zero": ("samples", "args", [{**ARGUMENT, "elements": -1}], NUMBER),
    "far": ("samples", "args", [{**ARGUMENT, "position": 2000}], PLACE),
    "far in the kernel": ("kernels", "args", [{"position": 2000, "name": "a"}], PLACE),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_cell_is_refused_by_every_reader(path: Path, name: str) -> None:
    table, column, value, what = IMPOSSIBLE[name]
    rewrite(path, table, with_value(column, 0, value))
    words = f"{table}: column '{column}' {what} (row 1)"
    assert any(words in one.what for one in verify(path).problems)
    with pytest.raises(ShardError, match=r"restore the file from a backup, or run `llmperf"):
        list(open_dataset(path).iter_table(table))


def test_an_ok_row_without_ndrange_is_refused(path: Path) -> None:
    empty = [with_value(name, 0, []) for name in ("global_size", "local_size")]
    rewrite(path, "samples", lambda table: empty[1](empty[0](table)))
    with pytest.raises(ShardError, match="'global_size' is empty where the status is 'ok'"):
        open_dataset(path).samples()


def test_the_row_with_a_null_deep_in_a_list_is_named() -> None:
    leaf = {"offset_bytes": 0, "scalar_type": "int", "count": 1}
    kind = pa.list_(
        pa.struct([("leaves", pa.list_(pa.struct([(name, pa.string()) for name in leaf])))])
    )
    rows = [[], [{"leaves": None}], [{"leaves": [{}]}], [{"leaves": []}, {"leaves": [None]}], None]
    chunks = pa.chunked_array([pa.array(rows[:2], kind), pa.array(rows[2:], kind)])
    found = columns_without_values("kernels", pa.table({"args": chunks}))
    assert found == ["kernels: column 'args' has nulls"]
    found = columns_without_values("kernels", pa.table({"args": chunks.slice(0, 4)}))
    assert found == ["kernels: column 'args' has a null in a list (row 4)"]


ARGUMENTS: dict[str, Callable[[dict[str, object]], dict[str, object] | None]] = {
    "null": lambda _one: None,
    "no kind": lambda one: {**one, "kind": None},
    "another kind": lambda one: {**one, "kind": "x"},
    "no position": lambda one: {**one, "position": None},
    "negative": lambda one: {**one, "position": -1},
    "far": lambda one: {**one, "position": 2**31 - 1},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_row_with_an_impossible_argument_is_named(template: Path, name: str) -> None:
    table = open_dataset(template).samples()
    around = Surroundings(tasks=None, devices=None, harness_version=None)
    assert check_samples(table, "samples/a", around) == []
    args = table.column("args")[1].as_py()
    table = with_value("args", 1, [ARGUMENTS[name](args[0]), *args[1:]])(table)
    problems = check_samples(table.select(SAMPLES.names), "samples/a", around)
    sample = table.column("sample_id")[1].as_py()
    what = f"1 row: an argument is null, or has no kind or no possible position ({sample})"
    assert what in [one.what for one in problems]


DEVICES = {
    "launch_floor_ns": float("inf"),
    "peak_dram_gbps": float("nan"),
    "compute_units": 0,
    "max_work_item_sizes": [-1],
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_that_cannot_exist_is_a_problem(path: Path, name: str) -> None:
    rewrite(path, "devices", with_value(name, 0, DEVICES[name]))
    (problem,) = verify(path).problems
    assert problem.kind is ProblemKind.DAMAGED
    assert name in problem.what


CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "rows": (
        lambda one: one["rows"].update(samples=10**15),
        r"says 1000000000000000 rows of samples, but its shards have \d+$",
    ),
    "tasks": (lambda one: one.update(tasks=9), "says 9 tasks, but its shards have 1$"),
    "no number": (lambda one: one.update(tasks=[1]), r"says \[1\] tasks, but"),
    "epoch": (lambda one: one.update(epoch=10**18), "its epoch 1000000000000000000 is a number"),
    "tasks of another kind": (lambda one: one.update(tasks=True), "says True tasks, but"),
    "epoch of another kind": (
        lambda one: one.update(epoch=True),
        r"is damaged \(TypeError: True is not a whole number\)",
    ),
    "time of another kind": (lambda one: one.update(published_s=1.5), "1.5 is not a whole number"),
    "version of another kind": (lambda one: one.update(version=True), "True is not a whole number"),
    "earlier version of another kind": (
        lambda one: one.update(earlier=[[True, 0]]),
        "True is not a whole number",
    ),
    "epoch below": (lambda one: one.update(epoch=-1), "its epoch -1 is a number"),
    "dropped": (
        lambda one: one.update(dropped=[each["name"] for each in one["shards"]]),
        "2 shards: listed, and also dropped or replaced",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_a_problem(path: Path, name: str) -> None:
    change, what = CONTRADICTIONS[name]
    newest = max(path.glob("manifest-*.json"))
    document = json.loads(newest.read_text())
    change(document)
    newest.write_text(json.dumps(document))
    found = [one for one in verify(path).problems if one.kind is ProblemKind.MANIFEST]
    assert any(one.name == newest.name and re.search(what, one.what) for one in found), found


@pytest.mark.parametrize("name", ["num_tasks", "schema_version", "harness_version"])
def test_a_number_of_a_run_that_is_true_is_a_problem(path: Path, name: str) -> None:
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run | {name: True}))
    (problem,) = verify(path).problems
    assert problem.kind is ProblemKind.RUN
    assert "whole number" in problem.what


def test_a_number_of_tasks_that_no_run_plans_is_a_problem(path: Path) -> None:
    run = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(run | {"num_tasks": 10**17}))
    (problem,) = verify(path).problems
    assert problem.kind is ProblemKind.RUN
    assert problem.what == "plans 100,000,000,000,000,000 tasks, more than any run can"


@pytest.mark.parametrize("table", ["kernels", "samples"])
def test_compact_says_that_a_shard_has_no_footer(tmp_path: Path, table: str) -> None:
    path = make_dataset(tmp_path)
    entry = next(one for one in open_dataset(path).shards(table))
    name = path / entry.name
    pq.write_table(pq.read_table(name).replace_schema_metadata(None), name)
    newest = max(path.glob("manifest-*.json"))
    document = json.loads(newest.read_text())
    (listed,) = [one for one in document["shards"] if one["name"] == entry.name]
    data = name.read_bytes()
    listed.update(bytes=len(data), sha256=sha256_hex(data))
    newest.write_text(json.dumps(document))
    with pytest.raises(ShardError, match="has no footer of LLMPerf") as refused:
        compact(path, target=CompactionTarget())
    assert "KeyError" not in str(refused.value)


@pytest.mark.parametrize("table", ["devices", "samples"])
@pytest.mark.parametrize("device", ["../../../x", "", "x" * 300, "x\ny", "x/y"])
def test_a_device_id_that_is_none_is_a_problem(path: Path, table: str, device: str) -> None:
    rewrite(path, table, with_value("device_id", 0, device))
    found = [one for one in verify(path).problems if one.kind is ProblemKind.ID]
    (told,) = [one for one in found if one.name.startswith(f"{table}/")]
    assert re.fullmatch(r"device_id '.* is not an id: only [^\n]*", told.what)
    assert len(told.what) < 300


def test_of_many_device_ids_that_are_none_one_is_shown(path: Path) -> None:
    rewrite(path, "samples", with_value("device_id", 0, "../a"))
    rewrite(path, "samples", with_value("device_id", 1, "../b"))
    (told,) = [one for one in verify(path).problems if one.kind is ProblemKind.ID]
    assert told.what.startswith("device_id '../a' is not an id")
    assert told.what.endswith(" (and 1 more)")
