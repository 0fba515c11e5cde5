"""``predict --configs``: the formats, what is said of a bad row, the answers in order, and what is written."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from llmperf import api
from llmperf.cli.main import app
from llmperf.cli.predict_configs import predict_configs
from llmperf.prediction.analysing import Analyst
from llmperf.prediction.answers import SCHEMA, out_file
from llmperf.prediction.configs import Config, read_configs
from llmperf.prediction.model import Model
from llmperf_common.config import ConfigError
from llmperf_common.files.outputs import OutputTaken
from tests.support.factories.synthetic_dataset import trained
from trainer.errors import BadInput
from trainer.run.loaded import load_run

VADD = """
__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n) {
    int i = get_global_id(0);
    if (i < n) c[i] = a[i] + b[i];
}
"""
LAUNCHES = [
    {"id": "first", "global_size": [4096], "local_size": [64], "args": {"n": 100}},
    {"global_size": [64, 32], "local_size": [8, 4]},
]
CSV = 'id,global_size,local_size,n\nfirst,4096,64,100\n\n,"64,32",8x4,\n'


@pytest.fixture(scope="module")
def model() -> Model:
    run = load_run(trained()[2].folder)
    return Model(run, Analyst(run.kernels, may_probe=False))


def forms(folder: Path) -> dict[str, Path]:
    """The same two launches in each format, under names that say nothing."""
    found = {
        "lines": "\n\n".join(map(json.dumps, LAUNCHES)),
        "array": json.dumps(LAUNCHES, indent=1),
        "table": "\ufeff" + CSV,
    }
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
    columns = {
        "id": ["first", None],
        "global_size": [[4096], [64, 32]],
        "local_size": [[64], [8, 4]],
        "arg.n": [100, None],
    }
    pq.write_table(pa.table(columns), folder / "parquet")
    return {name: folder / name for name in (*found, "parquet")}


def told(configs: list[Config]) -> list[tuple]:
    return [
        (
            one.id,
            one.launch.global_size,
            one.launch.local_size,
            {name: int(value) for name, value in (one.launch.args or {}).items()},
        )
        for one in configs
    ]


def test_all_formats_say_the_same(tmp_path: Path):
    wanted = [("first", (4096,), (64,), {"n": 100}), (None, (64, 32), (8, 4), {})]
    places = {}
    for name, path in forms(tmp_path).items():
        found = read_configs(path)
        assert told(found) == wanted, name
        places[name] = found[1].launch.name.rpartition(", ")[2]
    assert places == {"lines": "line 3", "array": "entry 2", "table": "line 4", "parquet": "row 2"}


@pytest.mark.parametrize("kind", [pa.list_(pa.int64(), 2), pa.large_list(pa.int32())], ids=str)
def test_sizes_of_a_fixed_length(tmp_path: Path, kind: pa.DataType):
    """As polars (Array) and numpy write them."""
    sizes = {"global_size": [[64, 32]], "local_size": [[8, 4]]}
    table = pa.table({name: pa.array(values, kind) for name, values in sizes.items()})
    pq.write_table(table, tmp_path / "launches.parquet")
    assert told(read_configs(tmp_path / "launches.parquet")) == [(None, (64, 32), (8, 4), {})]


def test_arguments_of_all_launches_give_way_to_those_of_one(tmp_path: Path):
    found = read_configs(forms(tmp_path)["lines"], {"n": "7", "a": "9"})
    assert [one.launch.args for one in found] == [{"n": 100, "a": "9"}, {"n": "7", "a": "9"}]


GOOD = '{"global_size": 64, "local_size": 8}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no launch: write one per line"),
        ("[]", "holds no launch"),
        (GOOD + '{"global_size": 64', r"line 2: .*\(column 19\): write one JSON object per line"),
        ("[1,\n2,,]", r"line 2: .*\(column 3\): correct the JSON array"),
        (f"[{GOOD}, 5]", "entry 2: 5 is not an object: give a launch as"),
        (GOOD + '{"global_size": 64, "local_size": 8, "n": 3}', "line 2: unknown key 'n'.* args"),
        (GOOD + '{"global_size": 64}', "line 2: no local_size: give a launch as"),
        (GOOD.replace("64", '"many"'), "line 1: global_size many: give one to three positive"),
        (GOOD.replace("64", "[1, 2, 3, 4]"), r"line 1: global_size \[1, 2, 3, 4\]: give one"),
        (GOOD.replace("8", "true"), "line 1: local_size True: give one"),
        (GOOD.replace("8", "8.5"), r"line 1: local_size 8\.5: give one"),
        (GOOD.replace("8", "0"), "line 1: local_size 0: give one"),
        (GOOD.replace("8", '8, "args": [1]'), r"line 1: args \[1\] is not an object"),
        (GOOD.replace("8", '8, "id": [1]'), r"line 1: id \[1\]: give a text or a whole number"),
        ("64 8\n", r"line 1: no column global_size; its columns are 64 8"),
        ("global_size,local_size,n,n\n", "line 1: column 'n' appears twice"),
        ("global_size,local_size\n64,8\n64,64,8\n", "line 3: 3 cells, but 2 columns: quote"),
        ('global_size,local_size\n64,"8\n', "correct the CSV"),
        ("global_size,local_size\n64,\n", "line 2: no local_size"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, message: str):
    path = tmp_path / "configs"
    path.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        read_configs(path)
    assert str(caught.value).startswith(str(path))
    assert caught.value.exit_code == 3


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path):
    with pytest.raises(BadInput, match="No such file or directory: name a readable file"):
        read_configs(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"global_size,local_size,\xe9\n")
    with pytest.raises(BadInput, match="byte 23 is not UTF-8"):
        read_configs(tmp_path / "latin")
    (tmp_path / "cut").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadInput, match="cut: no readable Parquet file"):
        read_configs(tmp_path / "cut")


def ask(model: Model, configs: str, out: Path | None = None, *, as_json: bool = False) -> None:
    predict_configs(
        lambda: model, VADD, configs, out, kernel=None, device=None, args={}, as_json=as_json
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"global_size": 64, "local_size": 7}, "--local-size 7: .* does not divide"),
        ({"global_size": 64, "local_size": 8, "args": {"m": 1}}, "--arg m: the kernel's arguments"),
        ({"global_size": 64, "local_size": 8, "args": {"n": 2**40}}, "--arg n=.*: 'int' holds"),
    ],
)
def test_a_launch_that_cannot_be_is_named_before_any_is_predicted(model, tmp_path, second, message):
    path = tmp_path / "c.jsonl"
    path.write_text(GOOD + json.dumps(second) + "\n" + GOOD)
    with pytest.raises(BadInput, match=f"c.jsonl, line 2: {message}"):
        ask(model, str(path), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    launches = [{"global_size": 64, "local_size": 8}, second]
    with pytest.raises(BadInput, match=f"^launch 2: {message}"):
        model.predict_many(VADD, launches)


def many(num: int) -> list[dict]:
    return [
        {"global_size": 64 * (1 + number * 7 % 50), "local_size": (8, 16, 32, 64)[number % 4]}
        for number in range(num)
    ]


def test_thousands_are_answered_in_order_like_each_alone(model):
    launches = many(9000)  # more than one turn of the model
    together = model.predict_many(VADD, launches)
    assert len(together) == len(launches)
    for number in (0, 1, 4999, 8191, 8192, 8999):
        alone = model.predict(VADD, **launches[number])
        assert math.isclose(together[number].time_ns, alone.time_ns, rel_tol=1e-12)
        assert {**alone, "local_size_best": []} == together[number]


def test_progress_is_told_while_it_lasts(monkeypatch: pytest.MonkeyPatch):
    run = load_run(trained()[2].folder)
    lines: list[str] = []
    slow = Model(run, Analyst(run.kernels, may_probe=False, progress=lines.append))
    monkeypatch.setattr("trainer.prediction.predict._PROGRESS_INTERVAL_S", 0.0)
    monkeypatch.setattr("trainer.prediction.predict._MOST_LAUNCHES", 4)
    slow.predict_many(VADD, many(10))
    told = [line.split(" launches ") for line in lines]
    assert [num for num, what in told if what.startswith("predicted")] == ["4 of 10", "8 of 10"]
    checked = [num for num, what in told if what == "checked"]
    assert checked == 2 * [f"{num} of 10" for num in range(1, 10)]  # by the API, by the model


def test_stdin_gives_one_document(model, monkeypatch, capsys):
    text = "".join(json.dumps(one) + "\n" for one in LAUNCHES).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    ask(model, "-", as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["kernel", "device", "predictions"]
    first, second = document["predictions"]
    assert (first["id"], first["args"]) == ("first", {"n": 100})
    assert "id" not in second
    assert second["global_size"] == [64, 32]
    assert {"time_ns", "interval", "ood", "bound", "warnings"} <= second.keys()
    assert "local_size_best" not in second


def test_without_a_terminal_the_answer_is_csv(model, tmp_path, capsys):
    ask(model, str(forms(tmp_path)["table"]))
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [row["id"] for row in rows] == ["first", ""]
    assert [row["global_size"] for row in rows] == ["4096", "64,32"]
    assert all(float(row["time_ns"]) > 0 for row in rows)
    assert "launches have warnings of their own (launch 1: " in said.err


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_file_is_written_and_replaced_only_if_it_was_ours(model, tmp_path, suffix, capsys):
    out = tmp_path / "new" / f"out{suffix}"
    configs = str(forms(tmp_path)["array"])
    for _ in range(2):
        ask(model, configs, out)
    assert "2 predictions written to" in capsys.readouterr().err
    expected = [one.time_ns for one in model.predict_many(VADD, [
        {key: value for key, value in one.items() if key != "id"} for one in LAUNCHES
    ])]  # fmt: skip
    match suffix:
        case ".csv":
            found = [float(row["time_ns"]) for row in csv.DictReader(out.read_text().splitlines())]
        case ".parquet":
            table = pq.read_table(out)
            assert table.schema.names == SCHEMA.names
            found = table.column("time_ns").to_pylist()
        case _:
            found = [json.loads(line)["time_ns"] for line in out.read_text().splitlines()]
    assert found == expected
    out.write_text("mine\n")
    with pytest.raises(OutputTaken, match="exists and holds no predictions of llmperf"):
        out_file(out)
    with pytest.raises(ConfigError, match=r"must end in one of \.csv, \.parquet, \.jsonl"):
        out_file(tmp_path / "out.xlsx")


def test_the_function_of_the_api_is_that_of_a_model(model):
    found = api.predict_many(VADD, many(3), model=trained()[2].folder, kernel="vadd")
    assert [one.time_ns for one in found] == [
        one.time_ns for one in model.predict_many(VADD, many(3))
    ]


def test_measured_launches_correct_many_predictions_as_they_correct_one(monkeypatch, tmp_path):
    source, configs = tmp_path / "vadd.cl", tmp_path / "configs.jsonl"
    source.write_text(VADD)
    configs.write_text(json.dumps(LAUNCHES[0]))
    asked = []

    def load_model(model, **more):
        asked.append(more["measured"])
        raise BadInput("enough")

    monkeypatch.setattr(api, "load_model", load_model)
    words = ["predict", str(source), "--configs", str(configs), "--measured", "data"]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, BadInput)
    assert asked == ["data"]


def test_the_steps_of_many_predictions_are_announced(
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("llmperf.cli.predict_configs._MANY", 2)
    (tmp_path / "launches").write_text(GOOD * 2)
    ask(model, str(tmp_path / "launches"), tmp_path / "out.csv")
    said = capsys.readouterr().err
    assert said.startswith("2 launches read; predicting them takes minutes\n")
    assert "all launches predicted; writing them\n" in said
