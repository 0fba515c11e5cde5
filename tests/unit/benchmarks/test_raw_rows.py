"""Rows of a measurement come back from Parquet as they were in CSV."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks.data import raw_rows
from benchmarks.data.raw_rows import read_rows, write_parquet

TABLE = (
    'kernel_id,sample_id,00_ours,share,"kept buffers, ns",note\n'
    "b0,0012,5008.0,0.25,5000000000,\n"
    "a1,12e3,4992.0,1.5,,one\n"
    "a1,0001,,0.125,1,one\n"
)
BACK = [
    ("a1", "12e3", "4992", "1.5", "", "one"),
    ("a1", "0001", "", "0.125", "1", "one"),
    ("b0", "0012", "5008", "0.25", "5000000000", ""),
]


def test_a_table_comes_back(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    rows = read_rows(tmp_path / "t.csv")
    write_parquet(tmp_path / "t.parquet", rows, ["kernel_id", "00_ours"])
    back = read_rows(tmp_path / "t.parquet")
    assert [tuple(row.values()) for row in back] == BACK
    assert list(back[0]) == list(rows[0])
    schema = pq.read_schema(tmp_path / "t.parquet")
    assert [str(one.type) for one in schema] == [
        *("string", "string", "int32", "double", "int64", "string"),
    ]


@pytest.mark.parametrize("cell", ["012", "1e3", "0x10", "1_000", "+5", "1.50", "-0", "nan "])
def test_text_that_a_number_would_change_stays_text(tmp_path: Path, cell: str) -> None:
    write_parquet(tmp_path / "t.parquet", [{"a": cell}, {"a": "7"}])
    assert [row["a"] for row in read_rows(tmp_path / "t.parquet")] == [cell, "7"]


def test_rows_keep_their_order_unless_sorted(tmp_path: Path) -> None:
    rows = [{"a": str(value)} for value in (3, 1, 2)]
    write_parquet(tmp_path / "t.parquet", rows)
    assert read_rows(tmp_path / "t.parquet") == rows


def test_bad_input_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"no column b: there are a"):
        write_parquet(tmp_path / "t.parquet", [{"a": "1"}], ["b"])
    with pytest.raises(ValueError, match="no rows"):
        write_parquet(tmp_path / "t.parquet", [])
    with pytest.raises(ValueError, match=r"read from \.csv and \.parquet"):
        read_rows(tmp_path / "t.txt")
    monkeypatch.setattr("sys.argv", ["raw_rows", str(tmp_path / "none.csv")])
    assert raw_rows.main() == 3
    assert "none.csv" in capsys.readouterr().err


def test_the_command_writes_beside_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text(TABLE, encoding="utf-8")
    words = ["raw_rows", str(tmp_path / "t.csv"), "--sort", "kernel_id", "00_ours"]
    monkeypatch.setattr("sys.argv", words)
    assert raw_rows.main() == 0
    assert "t.parquet" in capsys.readouterr().out
    assert [tuple(row.values()) for row in read_rows(tmp_path / "t.parquet")] == BACK
