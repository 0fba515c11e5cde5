"""From files to kernels, whatever the files are like; and the corpus on disk."""

import dataclasses
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.analysis import (
    Analysis,
    ContentsRule,
    Extent,
    IndexRole,
    IndexTarget,
    Polynomial,
    Term,
)
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ids import sha256_hex
from workers.corpus.files import FoundFiles, SourceFile
from workers.corpus.read import (
    Corpus,
    CorpusError,
    read_corpus,
    read_sources,
    write_corpus,
)
from workers.corpus.stats import corpus_stats
from workers.source.parse_pool import parse_sources

VADD = "__kernel void vadd(__global const float *a, __global float *b) { b[get_global_id(0)] = a[get_global_id(0)]; }\n"
TWO = "__kernel void one(__global int *x) { x[0] = 1; }\n__kernel void two(__global int *x) { x[0] = 2; }\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "suite_a"
    (root / "deep").mkdir(parents=True)
    (root / "vadd.cl").write_text(VADD)
    (root / "deep" / "two.cl").write_text(TWO)
    return root


def names(corpus: Corpus) -> list[str]:
    return sorted(kernel.name for kernel in corpus.kernels)


def test_a_folder_gives_every_kernel_once_sorted_by_id(folder: Path):
    (folder / "copy_of_vadd.cl").write_text(VADD)
    corpus = read_sources([folder])
    assert names(corpus) == ["one", "two", "vadd"]
    ids = [kernel.kernel_id for kernel in corpus.kernels]
    assert ids == sorted(ids)
    by_name = {kernel.name: kernel for kernel in corpus.kernels}
    assert by_name["one"].path == "deep/two.cl"
    assert by_name["vadd"].path == "copy_of_vadd.cl"
    assert {kernel.suite for kernel in corpus.kernels} == {"suite_a"}
    assert "two" not in by_name["one"].source
    assert all(kernel.signature and not kernel.failure for kernel in corpus.kernels)


def test_the_same_kernels_in_another_place_are_the_same_corpus(folder: Path, tmp_path: Path):
    first = read_sources([folder])
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    second = read_sources([moved / "vadd.cl", moved / "deep"], suite="named")
    assert second.sha256 == first.sha256
    assert {kernel.suite for kernel in second.kernels} == {"named"}
    assert read_sources([moved], build_options="-DX").sha256 != first.sha256


def test_ids_are_stable(folder: Path):
    (kernel,) = read_sources([folder / "vadd.cl"]).kernels
    assert kernel.kernel_id == "4f3b888b41797c61dfc7"
    assert kernel.family_id == kernel.kernel_id


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root / "missing", "does not exist"),
        (lambda root: root / "empty", "no .cl file"),
        (lambda root: root / "helpers", "no kernel found.*only.cl: no __kernel function"),
        (lambda root: root / "blank", "no kernel found.*blank.cl: empty file"),
        (lambda root: root / "fifo", "neither a file nor a folder"),
    ],
)
def test_a_source_without_anything_is_an_error(tmp_path: Path, make, words):
    for name in ("empty", "helpers", "blank"):
        (tmp_path / name).mkdir()
    (tmp_path / "helpers" / "only.cl").write_text("float f(float x) { return x; }")
    (tmp_path / "blank" / "blank.cl").write_text("")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(CorpusError, match=words):
        read_sources([make(tmp_path)])


def test_no_source_is_an_error():
    with pytest.raises(CorpusError, match="no source given"):
        read_sources([])


def test_a_bad_file_among_good_ones_is_one_failed_kernel(folder: Path):
    (folder / "latin.cl").write_bytes(b"// caf\xe9\n" + VADD.encode())
    (folder / "binary.cl").write_bytes(b"kernel\0void")
    (folder / "broken.cl").write_text("__kernel )(")
    (folder / "helper.cl").write_text("int f(void) { return 1; }")
    (folder / "blank.cl").write_text(" \n")
    corpus = read_sources([folder])
    failed = {kernel.name: kernel for kernel in corpus.kernels if kernel.failure}
    assert sorted(failed) == ["binary", "broken", "latin"]
    assert {kernel.failure.code for kernel in failed.values() if kernel.failure} == {
        FailureCode.BUILD_ERROR
    }
    assert failed["latin"].source == ""
    assert "UTF-8" in failed["latin"].failure.detail
    assert corpus.skipped == (("blank.cl", "empty file"), ("helper.cl", "no __kernel function"))
    before = failed["latin"]
    (folder / "latin.cl").write_bytes(b"// caf\xe8\n" + VADD.encode())
    after = next(one for one in read_sources([folder]).kernels if one.name == "latin")
    assert after.kernel_id != before.kernel_id
    assert after.source_sha256 != before.source_sha256


def test_links_in_a_circle_end_and_hidden_folders_are_left_out(folder: Path):
    (folder / "deep" / "up").symlink_to("..")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.cl").write_text(VADD.replace("vadd", "hidden"))
    assert names(read_sources([folder])) == ["one", "two", "vadd"]


def test_a_byte_order_mark_is_no_source(tmp_path: Path):
    (tmp_path / "k.cl").write_bytes(b"\xef\xbb\xbf" + VADD.encode())
    assert read_sources([tmp_path / "k.cl"]).kernels[0].source == VADD


def test_a_corpus_comes_back_as_written_and_mixes_with_folders(folder: Path, tmp_path: Path):
    (folder / "image.cl").write_text("__kernel void img(read_only image2d_t x) {}")
    (folder / "helper.cl").write_text("int f(void) { return 1; }")
    corpus = read_sources([folder])
    path = tmp_path / "new" / "corpus.parquet"
    write_corpus(path, corpus)
    assert read_corpus(path) == corpus == read_sources([path])
    assert [entry.name for entry in path.parent.iterdir()] == ["corpus.parquet"]
    extra = tmp_path / "extra.cl"
    extra.write_text(VADD.replace("vadd", "extra"))
    assert names(read_sources([path, extra])) == ["extra", "img", "one", "two", "vadd"]


def test_an_analysis_is_kept_and_corpora_without_the_column_load(folder: Path, tmp_path: Path):
    (folder / "image.cl").write_text("__kernel void img(read_only image2d_t x) {}")
    corpus = read_sources([folder])
    form = Polynomial(constant=1, terms=(Term(factors=("global_size_0", "n"), coefficient=2),))
    analysis = Analysis(
        extents=(
            Extent(position=0, form=form, cap=form, validated=True),
            Extent(position=1, form=None, reason="not seen"),
        ),
        data_dependent=True,
        index_roles=(
            IndexRole(
                position=0,
                rule=ContentsRule.PREFIX,
                targets=(IndexTarget(position=1, form=form),),
            ),
        ),
    )
    first, *rest = corpus.kernels
    known = dataclasses.replace(
        corpus, kernels=(dataclasses.replace(first, analysis=analysis), *rest)
    )
    path = tmp_path / "corpus.parquet"
    write_corpus(path, known)
    assert read_corpus(path) == known
    (image,) = [one for one in read_corpus(path).kernels if one.name == "img"]
    assert image.signature
    assert image.failure
    table = pq.read_table(path)
    older = table.drop_columns(["analysis"]).replace_schema_metadata(
        {**table.schema.metadata, b"llmperf.corpus_version": b"1"}
    )
    pq.write_table(older, path)
    assert read_corpus(path) == corpus


def test_an_analysis_is_kept_whichever_corpus_has_it(folder: Path, tmp_path: Path):
    corpus = read_sources([folder], suite="b")
    analysis = Analysis(extents=(), data_dependent=False)
    analysed = [dataclasses.replace(one, analysis=analysis) for one in corpus.kernels]
    for suite in ("a", "c"):
        with_analysis = [dataclasses.replace(one, suite=suite) for one in analysed]
        write_corpus(tmp_path / "plain.parquet", corpus)
        write_corpus(
            tmp_path / "known.parquet", dataclasses.replace(corpus, kernels=tuple(with_analysis))
        )
        union = read_sources([tmp_path / "plain.parquet", tmp_path / "known.parquet"])
        assert [one.analysis for one in union.kernels] == [analysis] * 3
        assert {one.suite for one in union.kernels} == {min("b", suite)}


def test_files_that_cannot_be_read_are_a_kernel_each(monkeypatch: pytest.MonkeyPatch):
    files = tuple(
        SourceFile(path=path, suite=suite, sha256=sha256_hex(b""), text=None, problem="locked")
        for path, suite in (("a/k.cl", "s"), ("b/k.cl", "s"), ("b/k.cl", "t"))
    )
    monkeypatch.setattr(
        "workers.corpus.read.find_sources", lambda *_: FoundFiles(files=files, skipped=())
    )
    corpus = read_sources(["anything"])
    assert [one.name for one in corpus.kernels] == ["k"] * 3
    assert {one.failure.detail for one in corpus.kernels if one.failure} == {"locked"}


def test_families_are_those_of_all_sources_together(folder: Path, tmp_path: Path):
    first = tmp_path / "first.parquet"
    write_corpus(first, read_sources([folder]))
    copies = tmp_path / "copies"
    copies.mkdir()
    (copies / "copy.cl").write_text(
        VADD.replace("vadd", "renamed").replace("get_global_id(0)", "get_global_id( 0 )")
    )
    alone = read_sources([copies]).kernels[0]
    together = {one.name: one for one in read_sources([first, copies]).kernels}
    assert alone.family_id == alone.kernel_id
    assert together["renamed"].family_id == together["vadd"].family_id
    assert together["renamed"].family_id in {
        together["renamed"].kernel_id,
        together["vadd"].kernel_id,
    }


def damage_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def damage_to_text(path: Path) -> None:
    path.write_text("kernel_id,name\n")


def damage_rows(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)


def damage_source(path: Path) -> None:
    table = pq.read_table(path)
    changed = pa.array(["// no"] * table.num_rows)
    index = table.schema.get_field_index("source")
    pq.write_table(table.set_column(index, table.schema.field("source"), changed), path)


def damage_version(path: Path) -> None:
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, b"llmperf.corpus_version": b"99"}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def damage_columns(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["suite"]), path)


def damage_signature(path: Path) -> None:
    table = pq.read_table(path)
    index = table.schema.get_field_index("signature")
    wrong = pa.array(['{"dims": "many"}'] * table.num_rows)
    pq.write_table(table.set_column(index, table.schema.field("signature"), wrong), path)


def damage_origin(path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_bytes, "damaged"),
        (damage_to_text, "damaged"),
        (damage_rows, "do not match its hash"),
        (damage_source, "does not match its hash"),
        (damage_version, "version 99"),
        (damage_columns, "lacks the columns suite"),
        (damage_signature, "cannot be read"),
        (damage_origin, "not a corpus"),
        (Path.unlink, "does not exist"),
    ],
)
def test_a_damaged_corpus_says_so(folder: Path, tmp_path: Path, damage, words):
    path = tmp_path / "corpus.parquet"
    write_corpus(path, read_sources([folder]))
    damage(path)
    with pytest.raises(CorpusError, match=words):
        read_corpus(path)


def test_a_corpus_that_cannot_be_written_leaves_the_old_one(folder: Path, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CorpusError, match="cannot be written"):
        write_corpus(tmp_path / "file" / "corpus.parquet", read_sources([folder]))


def test_statistics(folder: Path):
    (folder / "image.cl").write_text("__kernel void img(read_only image2d_t x) {}")
    stats = corpus_stats(read_sources([folder]))
    shown = dataclasses.asdict(stats)
    assert {name: shown[name] for name in shown if name.startswith("num_")} == {
        "num_files": 3, "num_skipped": 0, "num_kernels": 4, "num_usable": 3, "num_signatures": 4, "num_families": 4,
        "num_with_macros": 0,
    }  # fmt: skip
    assert stats.kernels_by_suite == {"suite_a": 4}
    assert stats.kernels_by_dims == {"1": 4}
    assert stats.kernels_by_family_size["1"] == 4
    assert stats.arguments_by_kind == {"global_buffer": 4, "image": 1}
    assert stats.arguments_by_type == {"(none)": 1, "float": 2, "int": 2}
    assert stats.failures_by_code == {"unsupported": 1}
    assert stats.arguments_per_kernel["p100"] == 2
    assert stats.source_bytes["p100"] == len(VADD)


STUBBORN = """
import json, os, signal, sys, time
for line in sys.stdin:
    source = json.loads(line)["source"]
    if source == "crash": os.kill(os.getpid(), signal.SIGSEGV)
    if source == "leave": sys.exit(3)
    if source == "real time": os.kill(os.getpid(), 35)
    if source == "hang": time.sleep(60)
    print(json.dumps({"kernels": []}), flush=True)
"""


def test_a_crashing_or_hanging_parser_costs_one_source_each():
    sources = ["", "crash", "", "hang", "leave", "", "", "real time"]
    found = parse_sources(
        sources, num_children=2, timeout_s=1.0, command=(sys.executable, "-c", STUBBORN)
    )
    codes = [one.code if isinstance(one, Failure) else one for one in found]
    crash, timeout = FailureCode.COMPILER_CRASH, FailureCode.BUILD_TIMEOUT
    assert codes == [(), crash, (), timeout, crash, (), (), crash]
    assert isinstance(found[1], Failure)
    assert isinstance(found[4], Failure)
    assert isinstance(found[7], Failure)
    assert "signal 35" in found[7].detail
    assert "SIGSEGV" in found[1].detail
    assert "status 3" in found[4].detail
    assert found[1].stage is Stage.SIGNATURE


BUSY = """
import json, sys, time
for line in sys.stdin:
    source = json.loads(line)["source"]
    end = time.process_time() + float(source or 0)
    while time.process_time() < end:
        piece = time.process_time() + 0.01
        while time.process_time() < piece: pass
        if source == "0.6": time.sleep(0.02)  # as on a core shared with others
    print(json.dumps({"kernels": []}), flush=True)
"""


def test_a_parser_on_a_busy_machine_gets_its_cpu_time():
    found = parse_sources(
        ["0.6", "5"], num_children=2, timeout_s=1.2, command=(sys.executable, "-c", BUSY)
    )
    assert found[0] == ()
    assert isinstance(found[1], Failure)
    assert found[1].code is FailureCode.BUILD_TIMEOUT


def test_many_sources_come_back_in_order_from_several_children():
    sources = [f"__kernel void k{i}(__global int *x) {{ x[0] = {i}; }}" for i in range(200)]
    found = parse_sources(sources, num_children=2)
    assert [one[0].name for one in found if isinstance(one, tuple)] == [f"k{i}" for i in range(200)]


def test_an_expression_nested_beyond_reason_is_coded():
    deep = "__kernel void k(__global int *x) { x[0] = " + "-(" * 800 + "1" + ")" * 800 + "; }"
    wide = "__kernel void k(__global int *x) { x[0] = " + "x[1] + " * 4000 + "1; }"
    for answer in parse_sources([deep, wide, VADD]):
        assert isinstance(answer, (tuple, Failure))


KILLED = """
import json, os, pathlib, signal, sys
for line in sys.stdin:
    mark = pathlib.Path(sys.argv[1], json.loads(line)["source"])
    if mark.name == "always" or (mark.name == "once" and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps({"kernels": []}), flush=True)
"""


def test_a_parser_that_somebody_else_kills_is_tried_once_more(tmp_path):
    found = parse_sources(
        ["once", "always", "a"],
        num_children=1,
        command=(sys.executable, "-c", KILLED, str(tmp_path)),
    )
    assert (found[0], found[2]) == ((), ())
    assert isinstance(found[1], Failure)
    assert found[1].code is FailureCode.COMPILER_CRASH


def test_a_child_that_dies_after_its_answer_does_not_fail_the_next_source(tmp_path):
    child = tmp_path / "child.py"
    child.write_text(
        "import sys, json, os, signal\n"
        "for line in sys.stdin:\n"
        "    source = json.loads(line)['source']\n"
        "    print(json.dumps({'kernels': []}), flush=True)\n"
        "    if source == 'evil': os.kill(os.getpid(), signal.SIGSEGV)\n",
        encoding="utf-8",
    )
    found = parse_sources(
        ["a", "evil", "b", "c"],
        num_children=1,
        command=[sys.executable, str(child)],
    )
    assert found == [(), (), (), ()]


@pytest.mark.parametrize("reserved_gib", [0, 5])
def test_what_a_child_begins_with_does_not_count_as_a_sources(reserved_gib: int) -> None:
    reserving = (
        f"import mmap, runpy; held = mmap.mmap(-1, {reserved_gib} * 2**30 + 4096, prot=mmap.PROT_READ);"
        " runpy.run_module('workers.source.parse_child', run_name='__main__')"
    )
    [found] = parse_sources(
        ["kernel void k(global int *x) { x[0] = 1; }"],
        command=(sys.executable, "-c", reserving, str(os.getpid())),
    )
    assert not isinstance(found, Failure), found
    assert [one.name for one in found] == ["k"]
