"""Measurement tables on a collected dataset: what they leave out, and that the corpus brings it back."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.data.measurements.comparing import differences
from benchmarks.data.measurements.exporting import export_tables
from benchmarks.data.measurements.rebuilding import rebuild
from benchmarks.data.measurements.tables import first_line, unquoted
from llmperf_common.store.files.filesystem import StoreError
from llmperf_common.store.files.location import open_filesystem
from llmperf_common.store.tables.reader import Dataset, open_dataset
from llmperf_common.store.upkeep.merge import merge
from llmperf_common.store.upkeep.verify import verify
from tests.support.collecting import Collect, replay_file, write_kernels
from trainer.data.dataset import load_data

OPTIONS = ("--samples-per-kernel", "6", "--set", "timing.spin_up_ms=0", "--seed", "0")
BEHAVIOURS = [
    {"kernel": "k2", "action": "build_error"},
    {"kernel": "k3", "action": "fault"},
    {"kernel": "k4", "action": "slow", "seconds": 0.001},
]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs and what they give together: good kernels, and one that does not build, one that faults."""
    root = tmp_path_factory.mktemp("collected")
    device = replay_file(root / "r.json", behaviours=BEHAVIOURS)
    write_kernels(root / "first", [f"k{i}" for i in range(6)])
    write_kernels(root / "second", [f"other{i}" for i in range(3)])
    (root / "second" / "broken.cl").write_text("__kernel void broken(__global int *a) { a[0] = ; }")
    for name in ("first", "second"):
        done = Collect(root / name, root / f"{name}-data", device, OPTIONS).run()
        assert done.returncode == 0, done.stderr
        with tarfile.open(root / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(root / name, name)
    merge(
        [root / "first-data", root / "second-data"],
        root / "data",
        assign_families=lambda kernels: {one[0]: kernels[0][0] for one in kernels},
    )
    return root


@pytest.fixture(scope="module")
def tables(collected: Path) -> Path:
    out = collected / "tables"
    export_tables(open_dataset(collected / "data"), out, rows_a_file=10)
    return out


def corpora(collected: Path) -> list[Path]:
    return [collected / "first.tar.xz", collected / "second"]


@pytest.mark.slow
def test_the_dataset_comes_back_from_tables_and_corpus(collected: Path, tables: Path) -> None:
    out = collected / "again"
    report = rebuild(tables, corpora(collected), str(out))
    before, after = open_dataset(collected / "data"), open_dataset(out)
    assert report.missing == {}
    assert (report.num_tasks, report.num_samples) == (before.num_tasks, before.num_samples)
    assert verify(out).problems == ()
    assert changed_columns(before, after) <= {"samples.failure_detail", "kernels.build"}
    assert sorted(load_data(out).log2_ns) == sorted(load_data(collected / "data").log2_ns)
    assert after.sentinel() == before.sentinel()
    assert after.run == before.run


def changed_columns(one: Dataset, other: Dataset) -> set[str]:
    return {line.split(":", 1)[0] for line in differences(one, other)}


@pytest.mark.slow
def test_no_file_holds_a_source(tables: Path) -> None:
    kernels = pq.read_table(tables / "kernels.parquet")
    assert "source" not in kernels.column_names
    assert all((row["build"] or {}).get("log") is None for row in kernels.to_pylist())
    for path in tables.iterdir():
        text = path.read_bytes() if path.suffix == ".json" else b""
        rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else []
        assert b"get_global_id" not in text
        assert "get_global_id" not in json.dumps(rows, default=str)
    samples = [pq.read_table(path) for path in sorted(tables.glob("samples-*.parquet"))]
    assert len(samples) > 1
    assert not {"sample_id", "seed", "iqr_ns"} & {n for one in samples for n in one.column_names}
    owners = [set(one.column("task_id").to_pylist()) for one in samples]
    assert sum(map(len, owners)) == len(set().union(*owners)), "a task lies in one file"


@pytest.mark.slow
def test_a_kernel_that_no_corpus_has_keeps_a_null_source(
    collected: Path, tables: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "second"
    write_kernels(changed, ["other0", "other1"])
    (changed / "other1.cl").write_text("__kernel void other1(__global float *a) { a[0] = 1.0f; }")
    out = tmp_path / "again"
    report = rebuild(tables, [collected / "first.tar.xz", changed], str(out))
    assert report.missing == {"second": 3}
    rows = open_dataset(out).kernels(["name", "source"]).to_pylist()
    assert {row["name"] for row in rows if row["source"] is None} == {"other1", "other2", "broken"}
    assert verify(out).problems == ()


@pytest.mark.slow
def test_seeds_that_do_not_follow_from_the_plan_are_kept(collected: Path, tmp_path: Path) -> None:
    before = open_dataset(collected / "data")
    export_tables(before, tmp_path / "tables", plan_seed=7)
    assert "seed" in pq.read_schema(tmp_path / "tables" / "samples-00.parquet").names
    rebuild(tmp_path / "tables", corpora(collected), str(tmp_path / "again"))
    assert "samples.seed" not in changed_columns(before, open_dataset(tmp_path / "again"))


@pytest.mark.slow
def test_bad_input_is_told(collected: Path, tables: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not empty"):
        rebuild(tables, corpora(collected), str(collected / "data"))
    with pytest.raises(StoreError, match="exists"):
        export_tables(open_dataset(collected / "data"), tables)
    damaged = tmp_path / "tables"
    damaged.mkdir()
    for path in tables.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / "kernels.parquet").write_bytes(b"PAR1")
    done = module("rebuild", damaged, "--corpus", collected / "first", "--out", tmp_path / "again")
    assert done.returncode == 3
    assert "kernels.parquet is not the file that tables.json names" in done.stderr
    (damaged / "devices.parquet").unlink()
    with pytest.raises(StoreError, match=r"devices.parquet is missing"):
        rebuild(damaged, [], str(tmp_path / "again"))
    done = module("rebuild", tables, "--corpus", tmp_path / "none.tar", "--out", tmp_path / "again")
    assert done.returncode == 3
    assert "none.tar" in done.stderr
    assert open_filesystem(tmp_path / "again").names() in ([], [".run.lock"])


@pytest.mark.slow
def test_the_command_line_goes_there_and_back(collected: Path, tmp_path: Path) -> None:
    assert module("export", collected / "first-data", tmp_path / "tables").returncode == 0
    sources = ("--corpus", collected / "first")
    done = module("rebuild", tmp_path / "tables", *sources, "--out", tmp_path / "again")
    assert done.returncode == 0, done.stderr
    assert "of 6 tasks" in done.stdout
    compared = module("compare", tmp_path / "again", tmp_path / "again")
    assert (compared.returncode, compared.stdout) == (0, "the same\n")
    assert module("compare", tmp_path / "again", collected / "second-data").returncode == 1


def module(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "benchmarks.data.measurements", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_texts_lose_what_they_quote() -> None:
    assert (
        unquoted("no exact form; furthest at line 3: a[i]") == "no exact form; furthest at line 3"
    )
    assert unquoted("the probes failed: build_error: x.cl:3: y") == "the probes failed: build_error"
    assert unquoted("killed after 60 s") == "killed after 60 s"
    assert unquoted("") == ""
    assert unquoted(None) is None
    assert (
        first_line("build: 3:19: error: ambiguous\n  return f(a);")
        == "build: 3:19: error: ambiguous"
    )
