"""The page of claims, the lab reports and the raw rows belong together."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
RESULTS = BENCHMARKS / "RESULTS.md"
REPORTS = sorted((BENCHMARKS / "reports").glob("2*.md"))
RAW = sorted(path for path in (BENCHMARKS / "raw").iterdir() if path.name != "README.md")
MOST_RAW_BYTES = 2_000_000
MOST_CSV_BYTES = 30_000
ROW_FILE = re.compile(r"\b(2\d{3}-\d\d-\d\d-[\w-]+\.(?:csv|parquet))\b")
HISTORY = re.compile(r"git show\s+\w+:\S+")


def claims() -> list[tuple[int, list[str]]]:
    """The rows of the claims' tables with their line, without heads."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    cells = [
        (number, [cell.strip() for cell in line.strip("|").split(" |")])
        for number, line in enumerate(lines, start=1)
        if line.startswith("|")
    ]
    return [(number, row) for number, row in cells if row[0] != "claim" and "---" not in row[0]]


def test_each_claim_has_a_figure_a_command_and_a_report() -> None:
    text = RESULTS.read_text(encoding="utf-8")
    labels = set(re.findall(r"^\[(\w+)\]: reports/\S+\.md$", text, flags=re.MULTILINE))
    rows = claims()
    assert len(rows) >= 60
    for number, row in rows:
        assert len(row) == 7, f"line {number}: {len(row)} columns"
        claim, bar, measured, verdict, command, when, report = row
        if "**open**" in verdict:
            assert measured in ("not measured", "not decided"), f"line {number}"
            continue
        assert claim, f"line {number}"
        assert re.search(r"\d|none", measured), f"line {number}: no figure"
        assert command, f"line {number}: no command"
        assert when, f"line {number}: neither commit nor date"
        assert bar or not verdict, f"line {number}: a verdict without a bar"
        named = re.findall(r"\[(\w+)\]", report)
        assert named, f"line {number}: no report"
        assert set(named) <= labels, f"line {number}: {report}"


def test_each_report_is_dated_and_in_the_index() -> None:
    index = (BENCHMARKS / "reports" / "README.md").read_text(encoding="utf-8")
    for path in REPORTS:
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d-[a-z0-9-]+\.md", path.name), path
        assert f"]({path.name})" in index, path


def test_each_row_file_is_named_by_a_report_and_each_named_one_exists() -> None:
    pages = [RESULTS, *REPORTS, BENCHMARKS / "raw" / "README.md"]
    named = {
        name
        for path in pages
        for name in ROW_FILE.findall(HISTORY.sub("", path.read_text(encoding="utf-8")))
    }
    assert named == {path.name for path in RAW}


def test_raw_rows_stay_small() -> None:
    assert sum(path.stat().st_size for path in RAW) <= MOST_RAW_BYTES
    for path in RAW:
        if path.suffix == ".csv":
            assert path.stat().st_size <= MOST_CSV_BYTES, f"{path}: benchmarks.data.raw_rows"


@pytest.mark.parametrize("path", [one for one in RAW if one.suffix == ".parquet"], ids=str)
def test_each_parquet_file_is_zstd_and_has_rows(path: Path) -> None:
    footer = pq.read_metadata(path)
    assert footer.num_rows > 0
    columns = footer.row_group(0)
    assert {columns.column(at).compression for at in range(footer.num_columns)} == {"ZSTD"}
