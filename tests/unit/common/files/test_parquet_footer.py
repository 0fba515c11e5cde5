"""A footer is read as pyarrow reads it, and damage to it is a ValueError: where pyarrow would end the process, too."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.files import parquet_memory
from llmperf_common.files.parquet_footer import MAX_FOOTER_BYTES, ColumnChunk, column_chunks
from llmperf_common.files.parquet_memory import check_memory

TABLE = pa.table(
    {
        "text": ["a", "bb", None] * 40,
        "flag": [True, False, None] * 40,
        "nested": [{"x": [1, 2], "y": {"z": b"q"}}] * 120,
        "number": [0.5] * 120,
    }
)


def written(**options: object) -> bytes:
    file = io.BytesIO()
    pq.write_table(TABLE, file, row_group_size=50, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    "options",
    [{}, {"write_page_index": True}, {"write_statistics": False, "version": "1.0"}, {"store_decimal_as_integer": True, "use_content_defined_chunking": True}],
)  # fmt: skip
def test_the_chunks_are_those_that_pyarrow_reads(options: dict[str, object]) -> None:
    data = written(**options)
    facts = pq.ParquetFile(io.BytesIO(data)).metadata
    theirs = [facts.row_group(g).column(c) for g in range(facts.num_row_groups) for c in range(facts.num_columns)]  # fmt: skip
    assert len(theirs) == 3 * 5
    assert list(column_chunks(memoryview(data))) == [
        ColumnChunk(
            path=one.path_in_schema,
            is_text=one.physical_type == "BYTE_ARRAY",
            num_values=one.num_values,
            uncompressed_bytes=one.total_uncompressed_size,
        )
        for one in theirs
    ]


def test_a_flipped_byte_of_a_footer_ends_no_process() -> None:
    """Of pyarrow 26 one in some hundred of them does, when it is asked for a column chunk."""
    data = written()
    length = int.from_bytes(data[-8:-4], "little")
    refused = 0
    for place in range(len(data) - 8 - length, len(data), 3):
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        try:
            check_memory(pa.py_buffer(bytes(changed)))
        except (ValueError, OSError, pa.ArrowException):
            refused += 1
    assert refused > 10


@pytest.mark.parametrize(
    ("footer", "says"),
    [
        (b"\x49\xff\xff\xff\xff\x0f", "cut short"),  # a list of 2^32 structs
        (b"\x49\xfc\x80", "damaged"),
        (b"\x4c" * 40, "nested too deeply"),
        (b"\x4b\x00", "unknown type 11"),
        (b"\x46" + b"\xff" * 12, "more than 64 bits"),
        (b"\x49\x1c\x19\x1c\x00\x00\x00", "damaged"),  # a chunk without metadata
    ],
)
def test_absurd_footers(footer: bytes, says: str) -> None:
    data = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(ValueError, match=says):
        list(column_chunks(memoryview(data)))


@pytest.mark.parametrize("length", [100, MAX_FOOTER_BYTES + 1, 2**32 - 1])
def test_a_footer_longer_than_its_file_or_than_any_of_ours(length: int) -> None:
    data = b"PAR1" + bytes(20) + length.to_bytes(4, "little") + b"PAR1"
    with pytest.raises(ValueError, match="exceeds"):
        list(column_chunks(memoryview(data)))


NULLS = {
    "a list of a fixed length": pa.list_(pa.float64(), 20_000_000),
    "such lists in each other": pa.list_(pa.struct([("y", pa.list_(pa.list_(pa.int8(), 10), 2))])),
    "a tensor": pa.fixed_shape_tensor(pa.float64(), [20_000_000]),
    "a wide binary": pa.binary(200_000_000),
    "many levels": pa.list_(pa.list_(pa.list_(pa.list_(pa.list_(pa.list_(
        pa.list_(pa.list_(pa.list_(pa.list_(pa.int8())))))))))),
}  # fmt: skip


@pytest.mark.parametrize("kind", NULLS.values(), ids=NULLS)
def test_nulls_that_take_any_memory_are_refused_unread(kind: pa.DataType) -> None:
    """A null of a fixed length takes that length; a file of 2 KB took 5 GiB."""
    schema = pa.schema([("a", pa.int64()), ("x", kind)])
    stream = io.BytesIO()
    pq.write_table(schema.empty_table(), stream)
    data = pa.py_buffer(stream.getvalue())
    with pytest.raises(ValueError, match="column 'x'"):
        check_memory(data)
    check_memory(data, ["a"])


def test_each_level_of_lists_counts() -> None:
    kind = pa.list_(pa.list_(pa.list_(pa.list_(pa.int8()))))
    stream = io.BytesIO()
    pq.write_table(pa.table({"x": pa.nulls(12_000_000, kind)}), stream)
    with pytest.raises(ValueError, match="decompressed it would take"):
        check_memory(pa.py_buffer(stream.getvalue()))


def packed(table: pa.Table) -> pa.Buffer:
    stream = pa.BufferOutputStream()
    pq.write_table(table, stream)
    return stream.getvalue()


def test_distinct_texts_have_a_lower_limit_than_repeated_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Arrow takes four times the bytes of distinct texts while it reads them."""
    monkeypatch.setattr(parquet_memory, "ALWAYS_ALLOWED_TEXT_BYTES", 4 * 2**20)
    monkeypatch.setattr(parquet_memory, "MAX_RATIO", 1)
    distinct = packed(pa.table({"a": [1] * 5, "x": [f"{n}" + "a" * 2**20 for n in range(5)]}))
    with pytest.raises(ValueError, match="decompressed it would take 5 MiB"):
        check_memory(distinct)
    check_memory(distinct, ["a"])
    check_memory(packed(pa.table({"x": ["a" * 2**20] * 100})))
    monkeypatch.setattr(parquet_memory, "MAX_RATIO", 10**6)
    check_memory(distinct)


FIXED = pa.list_(pa.int64(), 3)
LARGEST = pa.list_(pa.int64(), 16)


@pytest.mark.parametrize("kind", [FIXED, pa.fixed_shape_tensor(pa.int64(), [3])], ids=str)
def test_short_lists_of_a_fixed_length_are_allowed(kind: pa.DataType) -> None:
    sizes = pa.array([[1, 2, 3]] * 1000, FIXED)
    check_memory(packed(pa.table({"global_size": sizes if kind == FIXED else pa.ExtensionArray.from_storage(kind, sizes)})))  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [(LARGEST, 2_000_000), (pa.struct([("y", LARGEST)]), 1_500_000), (pa.list_(LARGEST), 1_500_000)],
    ids=str,
)  # fmt: skip
def test_nulls_of_a_fixed_length_count_as_its_values(kind: pa.DataType, num_rows: int) -> None:
    """They took 16 times the memory of as many numbers."""
    with pytest.raises(ValueError, match="decompressed it would take 366 MiB"):
        check_memory(packed(pa.table({"x": pa.nulls(num_rows, kind)})))


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), FIXED], ids=str)
def test_a_nested_column_does_not_make_the_others_larger(kind: pa.DataType) -> None:
    """A million launches, the most that ``predict --configs`` takes, have 220 MiB at most."""
    sizes = pa.array([[256, 1, 1]] * 1_000_000, kind)
    numbers = pa.array([7] * 1_000_000)
    columns = {f"arg.{number}": numbers for number in range(20)}
    check_memory(packed(pa.table({"global_size": sizes, "local_size": sizes, **columns})))


def test_columns_of_one_name_count_as_the_largest() -> None:
    deep = pa.list_(pa.list_(pa.list_(pa.list_(pa.int8()))))
    columns = [pa.nulls(12_000_000, deep), pa.nulls(12_000_000, pa.int8())]
    for order in (columns, columns[::-1]):
        with pytest.raises(ValueError, match="decompressed it would take"):
            check_memory(packed(pa.Table.from_arrays(order, ["x", "x"])))


def test_a_column_with_the_path_of_another_is_refused() -> None:
    data = packed(pa.table({"aaaa": pa.nulls(9, pa.list_(pa.int8())), "bbbb": [1] * 9}))
    before, name, after = data.to_pybytes().rpartition(b"bbbb")  # in the footer's column chunk
    check_memory(data)
    with pytest.raises(ValueError, match="not in the order of its schema"):
        check_memory(pa.py_buffer(before + b"aaaa" + after))
    assert name
