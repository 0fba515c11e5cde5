"""A run's predictions that are not what a training writes give one message, and no traceback."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from llmperf_common.text_limits import MAX_TEXT_BYTES
from tests.support.factories.synthetic_dataset import take_out, trained
from trainer.errors import BadInput
from trainer.prediction import calibrate
from trainer.prediction.calibrate import few_shot_of_run
from trainer.prediction.calibration_rows import USED_PREDICTIONS
from trainer.run.loaded import LoadedRun, load_run

TEXTS = ("kernel_id", "family_id", "split", "model", "device_class")
TIMES = ("median_ns", "predicted_ns")
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def run(tmp_path: Path) -> LoadedRun:
    """A run of an earlier release, which has no ``few_shot.json``."""
    folder = shutil.copytree(trained()[2].folder, tmp_path / "run")
    take_out(folder, "few_shot.json")
    return load_run(folder)


def change(run: LoadedRun, changed: Change) -> None:
    path = run.folder / "predictions.parquet"
    pq.write_table(changed(pq.read_table(path)), path)


def column(name: str, make: Callable[[list], pa.Array]) -> Change:
    def changed(table: pa.Table) -> pa.Table:
        at = table.column_names.index(name)
        return table.set_column(at, name, make(table.column(name).to_pylist()))

    return changed


def first(value: object, type_: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda values: pa.array([value, *values[1:]], type_)


def every(value: object, type_: pa.DataType) -> Callable[[list], pa.Array]:
    return lambda values: pa.array([value] * len(values), type_)


CHANGES: dict[str, tuple[Change, str]] = {
    **{
        f"no {name}": (lambda table, name=name: table.drop_columns([name]), f"{name} is missing")
        for name in (*TEXTS, *TIMES)
    },
    **{
        f"a null in {name}": (column(name, first(None, pa.string())), f"{name} has nulls")
        for name in TEXTS
    },
    **{f"a null in {name}": (column(name, first(None, pa.float64())), f"{name} has nulls") for name in TIMES},
    **{f"lists in {name}": (column(name, every(["a"], pa.list_(pa.string()))), f"{name} is list") for name in (*TEXTS, *TIMES)},
    **{f"texts in {name}": (column(name, every("long", pa.string())), f"{name} is string") for name in TIMES},
    **{
        f"{value} in {name}": (column(name, every(value, pa.float64())), f"{name} of .* is not the time of a launch")
        for name in TIMES
        for value in (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e308, 5e-324)
    },
    "no row": (lambda table: table.slice(0, 0), "no prediction of gbdt"),
    "no row of the model": (column("model", every("other", pa.string())), "no prediction of gbdt"),
    "no calibration": (column("split", every("test", pa.string())), "no prediction of gbdt"),
    "one launch": (
        lambda table: table.filter(pa.array(np.asarray(table.column("split")) == "calibration")).slice(0, 1),
        "no kernel with two launches|no prediction of gbdt",
    ),
    "other files": (lambda _table: pa.table({}), "kernel_id is missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_predictions_that_no_training_writes(run: LoadedRun, name: str) -> None:
    changed, says = CHANGES[name]
    change(run, changed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=says) as refused:
            few_shot_of_run(run)
    assert str(run.folder) in str(refused.value)
    assert "predictions.parquet" in str(refused.value)
    assert re_done(str(refused.value))


def re_done(message: str) -> bool:
    """Whether the message says what to do."""
    return "train the run again" in message or "collect more launches" in message


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 100, b"{}"])
def test_predictions_that_are_no_table(run: LoadedRun, content: bytes) -> None:
    (run.folder / "predictions.parquet").write_bytes(content)
    with pytest.raises(
        BadInput, match=r"predictions.parquet cannot be read .*: train the run again"
    ):
        few_shot_of_run(run)


def test_other_types_and_columns_that_mean_the_same(run: LoadedRun) -> None:
    wanted = few_shot_of_run(run)

    def changed(table: pa.Table) -> pa.Table:
        table = table.select(USED_PREDICTIONS.names)
        types = [pa.large_string()] * len(TEXTS) + [pa.float64()] * len(TIMES)
        return table.cast(pa.schema(list(zip(table.column_names, types, strict=True))))

    change(run, changed)
    assert few_shot_of_run(run) == wanted


def test_one_long_id_takes_no_memory_for_each_row(run: LoadedRun) -> None:
    """numpy would make an array of rows x longest id x 4 bytes."""
    change(run, column("kernel_id", first("x" * MAX_TEXT_BYTES, pa.string())))
    assert few_shot_of_run(run)


def test_a_very_long_id_is_refused(run: LoadedRun) -> None:
    change(run, column("kernel_id", first("x" * (MAX_TEXT_BYTES + 1), pa.string())))
    with pytest.raises(BadInput, match=r"kernel_id has a text of .* bytes.*: train the run again"):
        few_shot_of_run(run)


@pytest.mark.parametrize("limit", ["_MOST_KERNELS", "_MOST_LAUNCHES"])
def test_too_many_kernels_or_launches(
    run: LoadedRun, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(calibrate, limit, 1)
    with pytest.raises(BadInput, match=r"launches of .* are more than .*: train the run again"):
        few_shot_of_run(run)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, -1.0, math.nan])
def test_a_level_that_is_none(run: LoadedRun, level: float) -> None:
    odd = replace(run, conformal=replace(run.conformal, level=level))
    with pytest.raises(BadInput, match=r"conformal.json: its level .* train the run again"):
        few_shot_of_run(odd)
