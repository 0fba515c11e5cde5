"""The page about a corpus: self-contained, escaped, complete, and the same for the same corpus."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmperf.cli.main import app
from llmperf.exits import CommandError, Exit
from llmperf.html_report import CorpusView, render_corpus_report
from workers.corpus.read import Corpus, read_sources, write_corpus

EVIL = "<script>alert(1)</script>&\"'\u202e"
SOURCE = """
typedef float real;
float helper(float x) { return x; }
__kernel void first(__global real *a, int n) { if (get_global_id(0) < n) a[get_global_id(1)] = helper(1); }
__kernel void second(__global T4 *b, read_only image2d_t p) { b[0] = N; }
"""


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    root = tmp_path / "suite_a"
    root.mkdir()
    (root / "two.cl").write_text(SOURCE)
    (root / "copy.cl").write_text(SOURCE.replace("first", "renamed").replace("second", "again"))
    (root / "broken.cl").write_text("__kernel )(")
    (root / "empty.cl").write_text("")
    return read_sources([root])


def test_the_page_says_what_the_corpus_holds(corpus: Corpus):
    page = render_corpus_report(CorpusView(corpus=corpus, title="mine"))
    for words in (
        "Corpus at a glance", "Dimensions, arguments and sizes", "Families", "What cannot be launched",
        "Inferred macros", "suite_a", corpus.sha256, "T4=float4", "N=16", "is an image", "empty file", "global buffer",
    ):  # fmt: skip
        assert words in page, words
    assert page == render_corpus_report(CorpusView(corpus=corpus, title="mine"))
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:text/csv)", page)
    assert f"<h1>mine: {len(corpus.kernels)} kernels</h1>" in page
    assert "Times are device event times" not in page


def test_foreign_text_is_escaped(corpus: Corpus):
    kernels = tuple(
        dataclasses.replace(one, name=EVIL, suite=EVIL, path=EVIL, source=one.source + EVIL)
        for one in corpus.kernels
    )
    evil = dataclasses.replace(corpus, kernels=kernels, skipped=((EVIL, EVIL),))
    page = render_corpus_report(CorpusView(corpus=evil, title=EVIL))
    assert "<script" not in page
    assert "\u202e" not in page


def test_a_corpus_of_nothing_but_failures_has_a_page(corpus: Corpus):
    failed = tuple(
        dataclasses.replace(one, signature=None)
        for one in corpus.kernels
        if one.failure is not None
    )
    page = render_corpus_report(CorpusView(corpus=dataclasses.replace(corpus, kernels=failed)))
    assert "the arguments of no kernel could be read" in page


def test_a_corpus_without_failures_says_so(tmp_path: Path):
    (tmp_path / "a.cl").write_text("__kernel void k(void) {}")
    page = render_corpus_report(CorpusView(corpus=read_sources([tmp_path])))
    assert "every kernel can be launched" in page
    assert "every file has a kernel" in page
    assert "no kernel needed any" in page


def test_the_commands(corpus: Corpus, tmp_path: Path):
    path, out = tmp_path / "c.parquet", tmp_path / "deep" / "r.html"
    write_corpus(path, corpus)
    runner = CliRunner()
    done = runner.invoke(app, ["report", str(path), "--out", str(out)])
    assert done.exit_code == 0
    assert done.stderr.count("written") == 1
    assert out.read_text("utf-8").startswith("<!DOCTYPE html>")
    found = json.loads(runner.invoke(app, ["corpus", "stats", str(path), "--json"]).stdout)
    assert found["num_kernels"] == len(corpus.kernels)
    assert found["macros"] == {"N=16": 2, "T4=float4": 2}
    assert found["skipped_by_reason"] == {"empty file": 1}
    shown = runner.invoke(app, ["corpus", "stats", str(path)]).stdout
    assert "num_families" in shown
    wrong = runner.invoke(
        app, ["report", str(path), "--out", str(out), "--evaluation", str(tmp_path)]
    )
    assert isinstance(wrong.exception, CommandError)
    assert wrong.exception.exit_code is Exit.USAGE
