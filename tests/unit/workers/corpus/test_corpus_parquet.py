"""A corpus file whose metadata or columns are not what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.analysis import Analysis, InputChoice
from llmperf_common.ids import sha256_hex
from tests.support.factories.dataset_factory import make_kernel
from tests.support.measured import GIB
from tests.support.own_memory import peak_bytes
from workers.corpus import parquet
from workers.corpus.parquet import is_corpus
from workers.corpus.read import (
    Corpus,
    CorpusError,
    corpus_sha256,
    read_corpus,
    read_sources,
    write_corpus,
)

VADD = "__kernel void vadd(__global float *a) { a[get_global_id(0)] += 1; }\n"
_READ = """
import sys
from workers.corpus.parquet import CorpusError, read_corpus
try:
    read_corpus(sys.argv[1])
except CorpusError as error:
    assert "texts take more" in str(error)
else:
    raise SystemExit("the corpus was read")
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """One kernel."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "k.cl").write_text(VADD)
    return read_sources([folder])


def with_metadata(key: bytes, value: bytes) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata({**table.schema.metadata, key: value})


def without_values(name: str) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        return table.set_column(index, name, pa.array([None] * table.num_rows, pa.string()))

    return change


def with_text(name: str, num_bytes: int) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        texts = pa.array(["B" * num_bytes] * table.num_rows, pa.string())
        return table.set_column(index, table.schema.field(index), texts)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_metadata(b"llmperf.skipped", b"[1]"), "cannot be read"),
        (with_metadata(b"llmperf.skipped", b'[["a"]]'), "cannot be read"),
        (with_metadata(b"llmperf.skipped", b'{"a": 1}'), "cannot be read"),
        (with_metadata(b"llmperf.skipped", b"\xff"), "cannot be read"),
        (with_metadata(b"llmperf.skipped", b"[" * 100_000), "cannot be read"),
        (with_metadata(b"llmperf.corpus_sha256", b"\xff"), "do not match its hash"),
        (without_values("source"), "has no source"),
        (without_values("suite"), "has no suite"),
        (with_text("suite", 65_537), "its suite has 65537 bytes, more than 65536"),
        (with_text("source_sha256", 65_537), "its source_sha256 has 65537 bytes"),
        (with_text("source", 2**23 + 1), "its source has 8388609 bytes, more than 8388608"),
        (with_text("signature", 2**23 + 1), "its signature has 8388609 bytes"),
    ],
)
def test_what_was_not_written_is_an_error_with_a_message(
    corpus: Corpus, tmp_path: Path, change: Callable[[pa.Table], pa.Table], words: str
):
    path = tmp_path / "c.parquet"
    write_corpus(path, corpus)
    pq.write_table(change(pq.read_table(path)), path)
    with pytest.raises(CorpusError, match=words):
        read_corpus(path)


def test_a_corpus_is_told_from_other_files(corpus: Corpus, tmp_path: Path):
    path = tmp_path / "c.parquet"
    assert not is_corpus(path)
    write_corpus(path, corpus)
    assert is_corpus(path)
    path.write_bytes(path.read_bytes()[:-4])
    assert not is_corpus(path)


def test_what_many_kernels_have_in_common_is_in_memory_once(tmp_path):
    """A plan of many kernels lies in every worker's memory."""
    kernels = tuple(sorted((make_kernel(i) for i in range(1200)), key=lambda one: one.kernel_id))
    path = tmp_path / "corpus.parquet"
    write_corpus(path, Corpus(kernels=kernels, sha256=corpus_sha256(kernels)))
    found = read_corpus(path).kernels
    assert found == kernels
    first, last = found[0].signature, found[-1].signature
    assert first is not None
    assert last is not None
    assert all(a is b for a, b in zip(first.arguments, last.arguments, strict=True))
    assert {id(name) for name in first.static_features} == {id(n) for n in last.static_features}


def with_sources(folder: Path, sources: list[str]) -> Path:
    """Write a corpus of one kernel for each source."""
    kernels = sorted(
        (
            replace(make_kernel(i), source=text, source_sha256=sha256_hex(text.encode()))
            for i, text in enumerate(sources)
        ),
        key=lambda one: one.kernel_id,
    )
    write_corpus(
        folder / "c.parquet", Corpus(kernels=tuple(kernels), sha256=corpus_sha256(kernels))
    )
    return folder / "c.parquet"


def test_kernels_of_one_file_share_its_text(tmp_path: Path) -> None:
    path = with_sources(tmp_path, [VADD * 1000] * 20)
    assert len({id(one.source) for one in read_corpus(path).kernels}) == 1


def test_texts_count_as_python_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one emoji, a text takes four bytes for each character."""
    monkeypatch.setattr(parquet, "ALWAYS_ALLOWED_TEXT_BYTES", 2 * 2**20)
    monkeypatch.setattr(parquet, "MAX_RATIO", 1)
    plain = [f"//{number} " + "x" * 100_000 for number in range(10)]
    assert len(read_corpus(with_sources(tmp_path, plain)).kernels) == 10
    with pytest.raises(CorpusError, match="texts take more than the 2 MiB of memory"):
        read_corpus(with_sources(tmp_path, [f"{text}\U0001f600" for text in plain]))


def test_a_small_corpus_of_long_texts_takes_less_than_a_gibibyte(tmp_path: Path) -> None:
    """15 sources of 8 MiB, each with an emoji, took 1.2 GiB."""
    sources = [f"//{number}\U0001f600" + "x" * (2**23 - 100) for number in range(15)]
    path = with_sources(tmp_path, sources)
    del sources
    assert path.stat().st_size < 2**20
    assert peak_bytes(_READ, path) < 0.95 * GIB


@pytest.mark.parametrize(("share", "is_read"), [(1 + 2e-15, True), (1.1, False), (-0.1, False)])
def test_a_share_that_rounding_put_above_one_is_read(
    corpus: Corpus, tmp_path: Path, *, share: float, is_read: bool
) -> None:
    analysis = Analysis(extents=(), data_dependent=False, inputs=InputChoice(plain_share=share))
    kernels = [replace(one, analysis=analysis) for one in corpus.kernels]
    write_corpus(tmp_path / "c.parquet", replace(corpus, kernels=kernels))
    if is_read:
        (kernel,) = read_corpus(tmp_path / "c.parquet").kernels
        assert kernel.analysis is not None
        assert kernel.analysis.inputs.plain_share == share
        return
    with pytest.raises(CorpusError, match=f"a share of work-items is {share}"):
        read_corpus(tmp_path / "c.parquet")


def test_the_name_of_a_suite_is_not_longer_than_a_dataset_allows(tmp_path: Path) -> None:
    (tmp_path / "k.cl").write_text(VADD)
    with pytest.raises(CorpusError, match="the name of the suite has 65537 bytes"):
        read_sources([tmp_path], suite="s" * 65_537)
