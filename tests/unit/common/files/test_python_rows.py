"""Rows become Python values a few at a time: small tables can take gigabytes in Python."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest

from llmperf_common.files import python_rows as module
from llmperf_common.files.python_rows import parts, python_bytes, python_rows, row_problem

WIDE = "\U0001f600" + "a" * 100_000
COLUMNS: dict[str, pa.Array] = {
    "a text with one wide character": pa.array([WIDE] * 30),
    "short texts": pa.array([f"{number}" for number in range(50_000)]),
    "repeated texts": pa.array([WIDE] * 30).dictionary_encode(),
    "empty lists": pa.array([[[]] * 50_000]),
    "numbers": pa.array([[2**40 + number for number in range(50_000)]]),
    "nulls in structs": pa.array(
        [[{"a": None, "b": None}] * 50_000],
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ),
    "wide structs": pa.array([{f"n{number}": 0.5 for number in range(200)}] * 300),
    "maps": pa.array([[("k", "v" * 50)]] * 20_000, pa.map_(pa.string(), pa.string())),
    "lists of a fixed length": pa.array([[1, 2, 3]] * 20_000, pa.list_(pa.int64(), 3)),
}


def memory_of(table: pa.Table) -> int:
    """Return the bytes that the rows of a table take in Python."""
    tracemalloc.start()
    rows = table.to_pylist()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == len(table)
    return taken


@pytest.mark.parametrize("name", COLUMNS)
def test_the_estimate_is_at_least_what_python_takes(name: str) -> None:
    table = pa.table({"column": COLUMNS[name]})
    taken = memory_of(table)
    assert taken <= python_bytes(table) <= 8 * taken


@pytest.mark.parametrize("name", ["short texts", "maps", "lists of a fixed length"])
def test_parts_are_small_and_together_the_table(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 100_000)
    table = pa.table({"column": COLUMNS[name]})
    found = list(parts(table))
    assert len(found) > 10
    assert all(python_bytes(part) <= 100_000 for part in found)
    assert pa.concat_tables(found).equals(table)
    assert list(python_rows(table)) == table.to_pylist()


def test_rows_of_a_batch_and_of_an_empty_table() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, None]})
    assert list(python_rows(batch)) == [{"a": 1}, {"a": None}]
    assert list(python_rows(pa.table({"a": pa.array([], pa.string())}))) == []


def test_a_row_that_would_take_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 2**20)
    monkeypatch.setattr(module, "PART_BYTES", 2**20)
    lists: list[list[list[Any]]] = [[], [], [[]] * 100_000, []]
    table = pa.table({"a": pa.array(lists, pa.list_(pa.list_(pa.int32())))})
    words = "row 3 would take 6 MiB of memory, more than the 1 MiB that are allowed"
    assert row_problem(table) == words
    assert row_problem(table.slice(0, 2)) is None
    with pytest.raises(ValueError, match=words):
        list(python_rows(table))


def test_a_text_of_a_view_counts_as_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["\U0001f600" * 5_000, *["x" * 1_000] * 99]
    plain, viewed = (
        pa.table({"a": pa.array(texts, kind)}) for kind in (pa.string(), pa.string_view())
    )
    assert python_bytes(viewed) == python_bytes(plain)
    monkeypatch.setattr(module, "PART_BYTES", 100_000)
    monkeypatch.setattr(module, "MAX_ROW_BYTES", 100_000)
    assert list(python_rows(viewed)) == plain.to_pylist()
