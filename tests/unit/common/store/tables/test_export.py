"""Exporting: the same rows in Arrow IPC and CSV, never over another file."""

import csv
import json
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from llmperf_common.files import python_rows
from llmperf_common.files.outputs import OutputTaken
from llmperf_common.schemas import TABLES
from llmperf_common.store.tables.export import ExportFormat, _flat_schema, _flattened, export
from llmperf_common.store.tables.reader import Dataset, open_dataset
from llmperf_common.store.tables.shard import ShardError
from tests.support.factories.dataset_factory import make_dataset, mixed_outcome


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return open_dataset(make_dataset(tmp_path / "data", outcome_of=mixed_outcome))


def test_arrow_holds_the_same_tables(dataset, tmp_path):
    paths = export(dataset, tmp_path / "new" / "out", ExportFormat.ARROW)
    assert [path.name for path in paths] == ["samples.arrow", "kernels.arrow", "devices.arrow"]
    for path in paths:
        with pa.ipc.open_file(path) as reader:
            table = reader.read_all()
        assert table.equals(getattr(dataset, path.stem)())
        assert table.schema.equals(TABLES[path.stem])
    assert sorted(p.name for p in (tmp_path / "new" / "out").iterdir()) == sorted(
        p.name for p in paths
    )


def test_csv_holds_the_same_values_with_lists_as_json(dataset, tmp_path):
    paths = export(dataset, tmp_path / "out", ExportFormat.CSV)
    for path in paths:
        table = getattr(dataset, path.stem)()
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == table.num_rows
        for row, wanted in zip(rows, table.to_pylist(), strict=True):
            for field in table.schema:
                check_cell(row[field.name], wanted[field.name], field.type)


def test_csv_does_not_depend_on_how_many_rows_are_converted_at_once(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export(dataset, tmp_path / "whole", ExportFormat.CSV)
    monkeypatch.setattr(python_rows, "PART_BYTES", 1)
    in_parts = export(dataset, tmp_path / "parts", ExportFormat.CSV)
    assert [one.read_bytes() for one in in_parts] == [one.read_bytes() for one in whole]


def check_cell(text: str, value: object, kind: pa.DataType) -> None:
    if value is None:
        assert text == ""
    elif pa.types.is_nested(kind):
        plain = value
        assert json.loads(text) == plain
    elif pa.types.is_floating(kind):
        assert float(text) == value
    elif pa.types.is_boolean(kind):
        assert text == str(value).lower()
    elif not pa.types.is_timestamp(kind):
        assert text == str(value)


def test_another_tool_reads_the_csv(dataset, tmp_path):
    path = export(dataset, tmp_path, ExportFormat.CSV)[0]
    (count, longest) = duckdb.sql(
        f"SELECT count(*), max(median_ns) FROM read_csv('{path}') WHERE status = 'ok'"
    ).fetchall()[0]
    assert (count, longest) == (8, 4200.0)


def test_a_dataset_is_no_place_for_an_export(dataset, tmp_path):
    before = sorted((tmp_path / "data").rglob("*"))
    with pytest.raises(OutputTaken, match="is a dataset"):
        export(dataset, tmp_path / "data", ExportFormat.ARROW)
    assert sorted((tmp_path / "data").rglob("*")) == before


def test_nothing_to_export_gives_empty_tables(tmp_path):
    dataset = open_dataset(make_dataset(tmp_path / "data", kernels=0))
    for fmt in ExportFormat:
        for path in export(dataset, tmp_path / "out", fmt):
            assert path.exists()
    with pa.ipc.open_file(tmp_path / "out" / "samples.arrow") as reader:
        assert reader.read_all().num_rows == 0
    assert (tmp_path / "out" / "samples.csv").read_text().startswith('"sample_id"')


def test_an_existing_file_is_never_replaced(dataset, tmp_path):
    (tmp_path / "devices.csv").write_text("mine")
    with pytest.raises(OutputTaken, match=r"devices\.csv exists: choose another folder"):
        export(dataset, tmp_path, ExportFormat.CSV)
    assert (tmp_path / "devices.csv").read_text() == "mine"
    assert not (tmp_path / "samples.csv").exists(), "all names are checked first"


def test_a_damaged_shard_leaves_no_half_file(dataset, tmp_path):
    (dataset.fs.root / dataset.shards("samples")[1].name).unlink()
    with pytest.raises(ShardError, match="missing"):
        export(dataset, tmp_path / "out", ExportFormat.ARROW)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_file_in_the_way_of_the_folder_is_a_message(dataset, tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputTaken, match=r"out is a file, not a folder"):
        export(dataset, tmp_path / "out", ExportFormat.CSV)


def test_csv_holds_no_formula_and_its_texts_can_be_restored():
    names = ["=HYPERLINK(1)", "-5", "'a", "k", None]
    schema = pa.schema([("name", pa.string()), ("sizes", pa.list_(pa.int64()))])
    table = pa.table({"name": names, "sizes": [[1]] * 5}, schema=schema)
    flat = _flattened(table, _flat_schema(schema)).to_pydict()
    assert flat["name"] == ["'=HYPERLINK(1)", "-5", "''a", "k", None]
    assert [name and name.removeprefix("'") for name in flat["name"]] == names
    assert flat["sizes"] == ["[1]"] * 5
