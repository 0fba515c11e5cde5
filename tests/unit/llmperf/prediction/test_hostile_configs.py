"""Files of launches that would take gigabytes or minutes, or that would mean something else."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf.prediction import config_rows, configs
from llmperf.prediction.answers import csv_text, documents
from llmperf.prediction.configs import Config, read_configs
from llmperf.prediction.model import Launch
from llmperf.prediction.record import Prediction
from llmperf_common.files import python_rows
from tests.support.own_memory import peak_bytes
from trainer.errors import BadInput

LAUNCH = '{"global_size": 64, "local_size": 8}'
KEYS = ", ".join(f'"k{number}": 1' for number in range(20_000))
HEADER = ",".join(f"c{number}" for number in range(30_000))

LARGE = {
    "keys": ("{" + KEYS + ', "k19999": 1}', "line 1: an object has 20,001 keys: at most 1,000"),
    "array": ("[{" + KEYS + ', "k19999": 1}]', "an object has 20,001 keys"),
    "columns": (f"{HEADER},global_size,local_size\n", "line 1: 30,002 columns: at most 1,000"),
    "values": (
        "[" + "{}," * 5_000_000 + "{}]",
        "the JSON array is too large (it has more than 4000000 values)",
    ),
    "line": ('{"id": [' + "[]," * 400_000 + "1]}", "line 1: longer than 1 MiB"),
    "row": ("global_size,local_size\n" + '"\n",' * 400_000, "the row is longer than 1 MiB"),
    "lines": (f"{LAUNCH}\n" + "\n" * 5_000_000, "more than 4,000,000 lines"),
}


@pytest.mark.timeout(15)
@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_is_refused_within_seconds(tmp_path: Path, name: str) -> None:
    text, words = LARGE[name]
    (tmp_path / "launches").write_text(text)
    with pytest.raises(BadInput) as caught:
        read_configs(tmp_path / "launches")
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_thousand_keys_with_one_twice(tmp_path: Path) -> None:
    keys = ", ".join(f'"k{number}": 1' for number in range(999))
    (tmp_path / "launches").write_text("{" + keys + ', "k998": 1}')
    with pytest.raises(BadInput, match="the key 'k998' appears twice in one object: keep one"):
        read_configs(tmp_path / "launches")


_READ = """
import sys
from llmperf.prediction.configs import read_configs
from trainer.errors import BadInput
try:
    read_configs(sys.argv[1])
except BadInput as error:
    assert "write them to several files" in str(error), error
"""


@pytest.mark.timeout(60)
def test_a_small_parquet_file_of_many_rows(tmp_path: Path) -> None:
    column = pa.repeat(pa.scalar(64), 60_000)
    names = ["global_size", "local_size", *(f"a{number}" for number in range(20))]
    pq.write_table(pa.table(dict.fromkeys(names, column)), tmp_path / "launches")
    assert (tmp_path / "launches").stat().st_size < 100_000
    assert peak_bytes(_READ, tmp_path / "launches") < 185 * 2**20  # of which the launches take 40


def test_the_launches_of_a_file_have_a_limit_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configs, "_MAX_KEPT_BYTES", 2**20)
    one = json.dumps({"global_size": 64, "local_size": 8, "id": "\U0001f600" * 1000}) + "\n"
    (tmp_path / "launches").write_text(one * 200)
    assert len(read_configs(tmp_path / "launches")) == 200
    (tmp_path / "launches").write_text(one * 400)
    with pytest.raises(BadInput, match=r"line \d+: the launches up to here take more than"):
        read_configs(tmp_path / "launches")


def test_parquet_is_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_rows, "_BATCH_ROWS", 3)
    sizes = list(range(1, 9))
    table = pa.table({"global_size": sizes, "local_size": sizes})
    pq.write_table(table, tmp_path / "launches", row_group_size=4)
    found = read_configs(tmp_path / "launches")
    assert [one.launch.global_size for one in found] == [(size,) for size in sizes]
    assert found[-1].launch.name.endswith("launches, row 8")


@pytest.mark.parametrize(
    "args", ["[1,2]", "[[[],5]]", "[[1,2,3]]", '["ab"]', '[["a", 1]]', "5", "null", '"a"']
)
def test_args_in_a_table_that_are_no_object(tmp_path: Path, args: str) -> None:
    with (tmp_path / "launches").open("w", newline="") as stream:
        csv.writer(stream).writerows([["global_size", "local_size", "args"], [64, 64, args]])
    with pytest.raises(BadInput, match=r"line 2: args .* is not an object: write argument names"):
        read_configs(tmp_path / "launches")


@pytest.mark.parametrize(
    "args",
    [
        pa.array([[1, 2]]),
        pa.array([["ab"]]),
        pa.array([[{"a": 1, "b": 2}]]),
        pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())),
        pa.array([b"ab"]),
    ],
    ids=lambda column: str(column.type),
)
def test_args_of_parquet_that_are_no_object(tmp_path: Path, args: pa.Array) -> None:
    pq.write_table(
        pa.table({"global_size": [64], "local_size": [64], "args": args}), tmp_path / "launches"
    )
    with pytest.raises(BadInput, match=r"row 1: args .* is not an object: write argument names"):
        read_configs(tmp_path / "launches")


@pytest.mark.parametrize("value", ["[1]", '{"a": 1}', "null", '"6_4"', '"\u0664"', "1" + "0" * 20])
def test_an_argument_that_is_no_number(tmp_path: Path, value: str) -> None:
    text = LAUNCH.replace("8}", f'8, "args": {{"n": {value}}}}}')
    (tmp_path / "launches").write_text(text)
    with pytest.raises(
        BadInput, match=r"line 1: argument 'n' .*: give a number of at most 64 bits"
    ):
        read_configs(tmp_path / "launches")


@pytest.mark.parametrize("size", ["6_4", "\u0666\u0664", "\uff16", "64,6_4", "+64", "0x40", ""])
def test_a_size_is_of_ascii_digits(tmp_path: Path, size: str) -> None:
    launch = {"global_size": size, "local_size": 8}
    (tmp_path / "launches").write_text(json.dumps(launch), encoding="utf-8")
    with pytest.raises(BadInput, match=r"line 1: global_size .*: give one to three positive whole"):
        read_configs(tmp_path / "launches")


@pytest.mark.parametrize("name", ['"' + "a" * 1001 + '"', "1" + "0" * 30])
def test_an_id_that_is_too_long(tmp_path: Path, name: str) -> None:
    (tmp_path / "launches").write_text(LAUNCH.replace("{", f'{{"id": {name}, '))
    with pytest.raises(BadInput, match=r"line 1: id .*(1,001 characters|at most 64 bits)"):
        read_configs(tmp_path / "launches")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_may_end_its_lines_as_any_system_does(tmp_path: Path, end: str) -> None:
    lines = ["id,global_size,local_size", f'"a{end}b",64,8', "c,32,8", ""]
    (tmp_path / "launches").write_text(end.join(lines), newline="")
    found = read_configs(tmp_path / "launches")
    assert [one.id for one in found] == [f"a{end}b", "c"]
    assert found[1].launch.name.endswith("line 4")


IDS = ['=HYPERLINK("http://evil")', "@x", "-5", "'=a", "plain", "+1e3", "-1+1", "\t=1"]


def test_csv_of_predictions_holds_no_formula_and_its_ids_can_be_restored() -> None:
    asked = [
        Config(id=name, launch=Launch(global_size=64, local_size=8)) for name in [*IDS, -5, None]
    ]
    one = Prediction(
        kernel="k", device="d", time_ns=1.0, bound="latency", ood=False, work="none", warnings=[],
        interval={"level": None, "low_ns": None, "high_ns": None},
    )  # fmt: skip
    text = csv_text(documents(asked, [one] * len(asked)))
    found = [row["id"] for row in csv.DictReader(io.StringIO(text))]
    assert found[:4] == ['\'=HYPERLINK("http://evil")', "'@x", "-5", "''=a"]
    assert [name.removeprefix("'") for name in found] == [*IDS, "-5", ""]


_NUM_VALUES = 2_000_000
_DEEP = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
inner = pa.array(np.zeros(int(sys.argv[2]), np.int8))
for _ in range(int(sys.argv[3])):
    inner = pa.StructArray.from_arrays([inner], ["a"])
ends = pa.array([0, len(inner)], pa.int32())
columns = {"global_size": [64], "local_size": [64], sys.argv[4]: pa.ListArray.from_arrays(ends, inner)}
pq.write_table(pa.table(columns), sys.argv[1], compression="zstd")
"""
_REFUSE = """
import sys
from llmperf.prediction.configs import read_configs
from trainer.errors import BadInput
try:
    read_configs(sys.argv[1])
except BadInput as error:
    print(error, file=sys.stderr)
else:
    raise AssertionError
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("column", "num_structs"), [("n", 5), ("n", 0), ("id", 0), ("args", 2), ("args", 1)]
)
def test_a_small_parquet_file_of_one_deeply_nested_row(
    tmp_path: Path, column: str, num_structs: int
) -> None:
    path = tmp_path / "launches"
    facts = [str(path), str(_NUM_VALUES), str(num_structs), column]
    subprocess.run([sys.executable, "-c", _DEEP, *facts], check=True)
    assert path.stat().st_size < 4_000
    assert peak_bytes(_REFUSE, path) < 250 * 2**20


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("n", [[5]], "give one number for each launch, or remove the column"),
        ("n", [{"a": 5}], "give one number for each launch, or remove the column"),
        ("n", [[None]], "give one number for each launch, or remove the column"),
        ("id", [[1]], "give texts or whole numbers"),
        ("global_size", [[[64]]], "give whole numbers, or lists of them"),
        ("local_size", [[{"a": 64}]], "give whole numbers, or lists of them"),
        ("args", [{"n": {"a": {"b": 1}}}], "give JSON texts, or structs or maps of numbers"),
    ],
)
def test_a_parquet_column_of_a_type_that_no_value_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: list[Any], says: str
) -> None:
    columns = {"global_size": [64], "local_size": [64], column: value}
    pq.write_table(pa.table(columns), tmp_path / "launches")
    monkeypatch.setattr(config_rows, "python_rows", None)  # nothing is converted
    with pytest.raises(BadInput, match=f"column '{column}' has values of the type .*: {says}"):
        read_configs(tmp_path / "launches")


def test_a_parquet_row_that_is_too_large_has_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_rows, "_BATCH_ROWS", 2)
    monkeypatch.setattr(python_rows, "PART_BYTES", 1)
    monkeypatch.setattr(python_rows, "MAX_ROW_BYTES", 2**20)
    sizes = [64] * 4 + [[1] * 100_000]
    columns = {"global_size": [one if isinstance(one, list) else [one] for one in sizes]}
    pq.write_table(pa.table({**columns, "local_size": [64] * 5}), tmp_path / "launches")
    with pytest.raises(BadInput, match=r"row 5 would take .* more than the 1 MiB"):
        read_configs(tmp_path / "launches")
