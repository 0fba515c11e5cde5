"""``llmperf report`` of an evaluation that was edited by hand gives a page or a message, and no traceback."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.errors import Exit
from tests.support.factories.report_factory import make_dataset, make_evaluation, make_metrics
from tests.support.in_process import Done, assert_refused, llmperf

METRICS = {"schema": 1, "model": "gbdt", "split": "family", "interval_level": 0.9}


@pytest.fixture(scope="module")
def predictions() -> pa.Table:
    return make_evaluation(make_dataset(60, 4)).predictions


@pytest.fixture
def folder(tmp_path: Path, predictions: pa.Table) -> Path:
    scored = tmp_path / "scored"
    scored.mkdir()
    pq.write_table(predictions, scored / "predictions.parquet")
    write_metrics(scored)
    return scored


def write_metrics(folder: Path, **values: Any) -> None:
    content = {**METRICS, "parts": make_metrics(), **values}
    (folder / "metrics.json").write_text(json.dumps(content))


def report(folder: Path) -> Done:
    return llmperf("report", folder, "--out", folder.with_name("page.html"))


@pytest.mark.parametrize("name", ["median_ns", "predicted_ns", "low_ns", "high_ns"])
@pytest.mark.parametrize("value", [1e308, 5e-324, math.inf, -math.inf, math.nan, -1.0, 0.0])
def test_times_that_no_launch_has_are_unusable(
    folder: Path, predictions: pa.Table, name: str, value: float
) -> None:
    column = predictions.column(name).to_pylist()
    number = predictions.column_names.index(name)
    for values in ([value, *column[1:]], [value] * len(column)):
        table = predictions.set_column(number, name, pa.array(values, pa.float64()))
        pq.write_table(table, folder / "predictions.parquet")
        done = report(folder)
        assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("name", "values", "type_"),
    [
        ("median_ns", ["fast"], "string"),
        ("predicted_ns", [[1.0]], "list"),
        ("model", [{"a": 1}], "struct"),
        ("kernel_id", [[1]], "list"),
    ],
)
def test_a_column_of_another_kind_is_named(
    folder: Path, predictions: pa.Table, name: str, values: list[Any], type_: str
) -> None:
    number = predictions.column_names.index(name)
    table = predictions.set_column(number, name, pa.array(values * predictions.num_rows))
    pq.write_table(table, folder / "predictions.parquet")
    assert_refused(report(folder), Exit.BAD_INPUT, f"column {name} is {type_}", str(folder))


@pytest.mark.parametrize("level", ["high", 1e308, -0.5, 1, [], {}])
def test_an_interval_level_that_is_none_is_named(folder: Path, level: Any) -> None:
    write_metrics(folder, interval_level=level)
    assert_refused(report(folder), Exit.BAD_INPUT, "interval_level", "is not between 0 and 1")


@pytest.mark.parametrize("model", [5, [], {}, True])
def test_a_model_that_is_no_name_is_named(folder: Path, model: Any) -> None:
    write_metrics(folder, model=model)
    assert_refused(report(folder), Exit.BAD_INPUT, "model is not a name")


@pytest.mark.parametrize(
    "value", [1e308, -1e308, 10**400, "many", [], [[]], {"value": 1e308}, None]
)
def test_metrics_of_odd_values_are_left_out(folder: Path, value: Any) -> None:
    parts = {
        "small": {"test": {"num_rows": value, "mape_percent": value, "median_ape_percent": value}}
    }
    for odd in (parts, {"small": value}, {}):
        write_metrics(folder, parts=odd, run=value, split=value)
        done = report(folder)
        assert done.code == 0, done.err
