"""Files of a stranger's run: small ones stay small in memory, and tables have the columns they need."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.measured import GIB
from tests.support.own_memory import peak_bytes
from trainer.data.foreign_files import MAX_JSON_BYTES, read_ascii, read_json_value, read_table

MIB = 2**20
_READ = """
import sys
from pathlib import Path
from trainer.data.foreign_files import read_json_value
read_json_value(Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
"""


def test_a_packed_text_with_one_emoji(tmp_path: Path) -> None:
    path = tmp_path / "training_range.json.gz"
    # In bytes, because the test's own str would take four bytes for each character.
    text = b'["' + b"a" * (60 * MIB) + '\U0001f600"]'.encode()
    path.write_bytes(gzip.compress(text, compresslevel=1))
    assert peak_bytes(_READ, path, 64 * MIB) < 0.8 * GIB


@pytest.mark.parametrize("name", ["model.json", "training_range.json.gz"])
def test_the_limit_of_a_json_file(tmp_path: Path, name: str) -> None:
    def write(text: bytes) -> None:
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)

    write(b'"' + b"a" * 98 + b'"')
    assert read_json_value(tmp_path / name, max_bytes=100) == "a" * 98
    write(b'"' + b"a" * 99 + b'"')
    with pytest.raises(ValueError, match="more than 100 bytes"):
        read_json_value(tmp_path / name, max_bytes=100)
    write(b'"' + b"a" * MAX_JSON_BYTES + b'"')
    with pytest.raises(ValueError, match=f"more than {32 * MIB} bytes"):
        read_json_value(tmp_path / name)


def test_a_text_outside_of_ascii(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("tree é", encoding="utf-8")
    with pytest.raises(ValueError, match="outside of ASCII"):
        read_ascii(tmp_path / "trees.txt", max_bytes=100)


WANTED = pa.schema(
    [pa.field("kernel_id", pa.string(), nullable=False), pa.field("time_ns", pa.float64())]
)
TABLE = pa.table({"kernel_id": ["a", "b"], "time_ns": [1.5, None], "source": ["x", "y"]})


def written(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "table.parquet")
    return folder / "table.parquet"


def test_only_wanted_columns_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE.append_column("seconds", pa.array([1, 2])))
    assert read_table(path, WANTED).equals(TABLE.select(["kernel_id", "time_ns"]))
    found = read_table(path, WANTED, others=("seconds", "minutes"))
    assert found.column_names == ["kernel_id", "time_ns", "seconds"]
    assert read_table(path, pa.schema([]), others=("minutes",)).num_columns == 0


def test_a_text_longer_than_its_reader_allows(tmp_path: Path) -> None:
    path = written(tmp_path, TABLE.set_column(0, "kernel_id", pa.array(["a", "b" * 65])))
    assert read_table(path, WANTED).num_rows == 2
    with pytest.raises(ValueError, match="column kernel_id has a text of 65 bytes, more than 64"):
        read_table(path, WANTED, max_text_bytes=64)


def test_a_column_that_nobody_wants_is_not_unpacked(tmp_path: Path) -> None:
    source = pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int8()), ["x" * MIB])
    bomb = pa.table({"kernel_id": ["a"] * 300, "time_ns": [1.0] * 300, "source": source})
    path = written(tmp_path, bomb)
    assert read_table(path, WANTED).num_rows == 300
    with pytest.raises(ValueError, match="decompressed it would take"):
        read_table(path, WANTED, others=("source",))
    # The names and types are checked before a column is unpacked.
    with pytest.raises(ValueError, match="column work is missing"):
        read_table(path, pa.schema([("source", pa.string()), ("work", pa.string())]))
    for kind in (pa.float64(), pa.bool_(), pa.timestamp("s"), pa.list_(pa.string())):
        with pytest.raises(ValueError, match="column source is dictionary<values=string"):
            read_table(path, pa.schema([("source", kind)]))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (TABLE.drop_columns(["time_ns"]), "column time_ns is missing"),
        (TABLE.append_column("time_ns", pa.array([1.0, 2.0])), "column time_ns is there twice"),
        (TABLE.set_column(0, "kernel_id", pa.array(["a", None])), "column kernel_id has nulls"),
        (TABLE.set_column(0, "kernel_id", pa.array([["a"], ["b"]])), "kernel_id is list<"),
        (TABLE.set_column(0, "kernel_id", pa.array([{"a": 1}] * 2)), "kernel_id is struct<"),
        (TABLE.set_column(0, "kernel_id", pa.nulls(2)), "column kernel_id has nulls"),
        (TABLE.set_column(1, "time_ns", pa.array(["fast", "slow"])), "time_ns is string, not double"),
        (TABLE.set_column(1, "time_ns", pa.array([b"1", b"x"])), "time_ns is binary, not double"),
        (TABLE.set_column(0, "kernel_id", pa.array([1.5, 2.5])), "kernel_id is double, not string"),
        (TABLE.set_column(0, "kernel_id", pa.array([True, False])), "kernel_id is bool, not string"),
        (TABLE.set_column(0, "kernel_id", pa.array([1, 2], pa.timestamp("s"))), "kernel_id is timestamp"),
        (TABLE.set_column(1, "time_ns", pa.array([True, False])), "time_ns is bool, not double"),
        (pa.table({}), "column kernel_id is missing"),
    ],
)  # fmt: skip
def test_other_columns_than_wanted(tmp_path: Path, table: pa.Table, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_table(written(tmp_path, table), WANTED)


def test_texts_in_a_dictionary_are_texts(tmp_path: Path) -> None:
    table = TABLE.set_column(0, "kernel_id", pa.array(["a", "b"]).dictionary_encode())
    assert read_table(written(tmp_path, table), WANTED).column("kernel_id").type == pa.string()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([1, 2], pa.int32()), pa.float64()),
        (pa.array([1.0, None]), pa.int64()),
        (pa.array(["a", "b"], pa.large_string()), pa.string()),
        (pa.array([[1], [2]], pa.large_list(pa.int8())), pa.list_(pa.int64())),
        (pa.array([[1], [2]], pa.list_(pa.int8(), 1)), pa.list_(pa.float64())),
        (pa.nulls(2), pa.list_(pa.string())),
        (pa.array([b"a", b"b"], pa.binary(1)), pa.binary()),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_types_of_one_kind_are_cast(tmp_path: Path, values: pa.Array, wanted: pa.DataType) -> None:
    path = written(tmp_path, pa.table({"a": values}))
    found = read_table(path, pa.schema([("a", wanted)])).column("a")
    assert found.type == wanted
    assert found.to_pylist() == values.to_pylist()


def test_lists_of_another_kind(tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"a": [["x"]]}))
    with pytest.raises(
        ValueError, match="column a is list<element: string>, not list<item: int64>"
    ):
        read_table(path, pa.schema([("a", pa.list_(pa.int64()))]))


def test_numbers_with_a_fraction_are_no_integers(tmp_path: Path) -> None:
    path = written(tmp_path, pa.table({"a": [1.5]}))
    with pytest.raises(ValueError, match="column a is double, not int64"):
        read_table(path, pa.schema([("a", pa.int64())]))


def test_a_text_that_is_not_utf8(tmp_path: Path) -> None:
    texts = pa.array([b"\xff\xfe"] * len(TABLE))
    column = pa.Array.from_buffers(pa.string(), len(TABLE), texts.buffers())
    at = TABLE.column_names.index("kernel_id")
    path = written(tmp_path, TABLE.set_column(at, "kernel_id", column))
    with pytest.raises(pa.ArrowInvalid, match="Invalid UTF8"):
        read_table(path, WANTED)
