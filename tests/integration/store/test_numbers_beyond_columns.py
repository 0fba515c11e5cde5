"""Kernels and corpora with numbers that no column of a dataset can hold: a run of them comes to its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf.exits import Exit
from llmperf_common.store.tables.reader import open_dataset
from tests.support.collecting import replay_file, write_kernels
from tests.support.in_process import Done, assert_refused, llmperf
from tests.support.sampling import slow_but_each
from workers.corpus.read import read_sources, write_corpus

HUGE = """
typedef struct {{ {member} x[{length}]; }} S;
__kernel void huge(__global S {argument}, __global int *b) {{ b[get_global_id(0)] = 1; }}
"""
FEWEST = ("--samples-per-kernel", "2", "--set", "timing.spin_up_ms=0")
Change = Callable[[dict[str, Any]], None]
TARGET = {"position": 0, "form": {"constant": 1}}
ROLE = {"position": 1, "rule": "bounded", "targets": [TARGET]}


def collect(corpus: Path, folder: Path) -> Done:
    device = replay_file(folder / "replay.json")
    return llmperf(
        "collect", "--corpus", corpus, "--out", folder / "out", "--device", device, *FEWEST
    )


@pytest.mark.slow
@pytest.mark.parametrize("argument", slow_but_each(2, ["*a", "(*a)[4]"]))
@pytest.mark.parametrize(
    ("member", "length"),
    slow_but_each(3, [("char", "3000000000"), ("char", "1L << 60"), ("int", "1 << 29")]),
)
def test_an_element_of_two_gib_costs_one_row(
    tmp_path: Path, member: str, length: str, argument: str
) -> None:
    corpus = write_kernels(tmp_path / "kernels", ["good"])
    source = HUGE.format(member=member, length=length, argument=argument)
    (corpus / "huge.cl").write_text(source, encoding="utf-8")
    done = collect(corpus, tmp_path)
    assert done.code == 0, done.err
    rows = open_dataset(tmp_path / "out").samples(["status", "failure_detail"]).to_pylist()
    assert sorted(row["status"] for row in rows) == ["ok", "ok", "unsupported"]
    assert "neither a buffer nor a number can replace" in str(
        [row["failure_detail"] for row in rows]
    )
    assert llmperf("dataset", "verify", tmp_path / "out").code == 0


def setting(value: Any, *path: str | int) -> Change:
    def change(document: dict[str, Any]) -> None:
        place: Any = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting(2**70, "static_local_bytes"), "static local bytes"),
        (setting(-1, "static_local_bytes"), "static local bytes"),
        (setting(0, "dims"), "0 dimensions"),
        (setting(2**40, "dims"), "dimensions"),
        (setting([2**70, 1, 1], "required_local_size"), "required local size"),
        (setting([1] * 9, "required_local_size"), "9 dimensions"),
        (setting([0, 1, 1], "required_local_size"), "required local size"),
        (setting(2**40, "arguments", 0, "element_bytes"), "element size of argument 0"),
        (setting(2**40, "arguments", 0, "vector_width"), "vector width of argument 0"),
        (setting(2**40, "arguments", 1, "position"), "position of argument 1"),
        (setting(float("nan"), "static_features", "x"), "static feature 'x'"),
        (
            setting([{"offset_bytes": 2**40, "scalar_type": "int", "count": 1}], "arguments", 0, "leaves"),
            "offset of a member",
        ),
    ],
)  # fmt: skip
def test_a_corpus_with_such_a_number_is_refused(tmp_path: Path, change: Change, words: str) -> None:
    done = collect(corpus_with(tmp_path, "signature", change), tmp_path)
    assert_refused(done, Exit.BAD_INPUT, "c.parquet", words, "build it again")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (setting(2**70, "extents", 0, "form", "constant"), "coefficient of an extent"),
        (setting(-(10**4000), "extents", 0, "form", "constant"), "coefficient of an extent"),
        (setting(["global_size_0"] * 100_000, "extents", 0, "form", "terms", 0, "factors"), "factors"),
        (setting([[2**40]], "overflowing_local_sizes"), "overflowing local size"),
        (setting({"contents": {"rule": "flags", "limit": 2**70}}, "inputs"), "limit of the contents"),
        (setting(2**31, "extents", 1, "position"), "an extent is of argument 2147483648"),
        (setting({"scalars": [{"position": 2**31, "value": "root"}]}, "inputs"), "a chosen scalar is of argument"),
        (setting([ROLE | {"position": 2**31}], "index_roles"), "an index role is of argument"),
        (setting([ROLE | {"targets": [TARGET | {"position": 2**31}]}], "index_roles"), "an index target is of argument"),
    ],
)  # fmt: skip
def test_a_corpus_with_such_an_analysis_is_refused(
    tmp_path: Path, change: Change, words: str
) -> None:
    done = collect(corpus_with(tmp_path, "analysis", change), tmp_path)
    assert_refused(done, Exit.BAD_INPUT, "c.parquet", words, "build it again")


def test_a_corpus_with_half_a_character_is_refused(tmp_path: Path) -> None:
    change = setting("\ud800", "arguments", 0, "name")
    done = collect(corpus_with(tmp_path, "signature", change), tmp_path)
    assert_refused(done, Exit.BAD_INPUT, "c.parquet", "half of a surrogate pair", "build it again")


def corpus_with(folder: Path, column: str, change: Change) -> Path:
    """Write a corpus of one kernel of which one document was changed; its identity does not depend on that."""
    path = folder / "c.parquet"
    write_corpus(path, read_sources([write_kernels(folder / "kernels", ["good"])]))
    table = pq.read_table(path)
    row = table.to_pylist()[0]
    form = {"constant": 1, "terms": [{"factors": ["global_size_0"], "coefficient": 1}]}
    analysis = {"extents": [{"position": 0, "form": form}, {"position": 1, "form": form}]}
    document = json.loads(row["signature"]) if column == "signature" else analysis
    change(document)
    row[column] = json.dumps(document)
    pq.write_table(pa.Table.from_pylist([row], schema=table.schema), path)
    return path
