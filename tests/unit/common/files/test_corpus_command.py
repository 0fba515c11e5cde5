"""``llmperf corpus build``: what it refuses to write over, and what it says of skipped files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from llmperf.cli.corpus import app
from llmperf.exits import CommandError, Exit, exit_code_of
from llmperf_common.files.outputs import OutputTaken

VADD = "__kernel void vadd(__global float *a) { a[get_global_id(0)] += 1; }\n"


def build(*words: str | Path) -> str:
    """Return what the command says; its error is raised."""
    done = CliRunner().invoke(app, ["build", *map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stderr


def refusal(*words: str | Path) -> str:
    with pytest.raises((CommandError, OutputTaken)) as refused:
        build(*words)
    assert exit_code_of(refused.value) is Exit.USAGE
    return str(refused.value)


def test_a_source_is_not_written_over(tmp_path: Path):
    source, link = tmp_path / "k.cl", tmp_path / "link.parquet"
    source.write_text(VADD)
    link.symlink_to(source)
    for out in (source, tmp_path / "." / "k.cl", link):
        assert "is one of the sources" in refusal(source, "--out", out)
    assert source.read_text() == VADD
    corpus = tmp_path / "c.parquet"
    build(source, "--out", corpus)
    build(source, "--out", corpus)
    assert "is one of the sources" in refusal(corpus, source, "--out", corpus)


def stamps(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """What changes when something is written; being read changes the time of access."""
    stats = {path: path.stat() for path in folder.iterdir()}
    return {path: (one.st_ino, one.st_size, one.st_mtime_ns) for path, one in stats.items()}


def test_what_is_no_corpus_is_not_written_over(tmp_path: Path):
    (tmp_path / "k.cl").write_text(VADD)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.parquet").write_text("mine")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    before = stamps(tmp_path)
    for name in ("notes.txt", "text.parquet", "other.parquet"):
        assert "exists and holds no corpus" in refusal(tmp_path / "k.cl", "--out", tmp_path / name)
    assert "is a folder" in refusal(tmp_path / "k.cl", "--out", tmp_path / "folder")
    assert stamps(tmp_path) == before


def test_it_says_how_many_more_files_were_skipped(tmp_path: Path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "k.cl").write_text(VADD)
    for number in range(25):
        (tmp_path / "s" / f"{number:02d}.cl").write_text("\n")
    said = build(tmp_path / "s", "--out", tmp_path / "c.parquet").splitlines()
    assert said[1:3] == ["skipped 00.cl: empty file", "skipped 01.cl: empty file"]
    assert said[-2:] == ["skipped 19.cl: empty file", "skipped 5 more"]
