"""Datasets with numbers that no measurement gives: refused at load, naming table, column and row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from tests.support.factories.synthetic_dataset import make_dataset
from trainer.data.dataset import TrainingData, data_from_tables
from trainer.data.foreign_files import reading
from trainer.errors import BadInput

DATASET = make_dataset(num_kernels=3, num_configs=8)
SAMPLES, KERNELS, DEVICES = (
    DATASET.samples_table,
    DATASET.kernels_table,
    DATASET.devices_table,
)
ROW = int(np.flatnonzero([one == "ok" for one in SAMPLES.column("status").to_pylist()])[0])
SAMPLE = SAMPLES.column("sample_id")[ROW].as_py()


def with_cell(
    table: pa.Table, column: str, row: int, change: Callable[[object], object]
) -> pa.Table:
    place = table.schema.get_field_index(column)
    values = table.column(column).to_pylist()
    values[row] = change(values[row])
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(values, field.type))


def load(
    samples: pa.Table = SAMPLES, kernels: pa.Table = KERNELS, devices: pa.Table = DEVICES
) -> TrainingData:
    with reading("the dataset"):
        return data_from_tables(samples, kernels, devices, identity={})


@pytest.mark.parametrize("value", [1e308, 5e-324, -1.0, float("inf"), float("nan"), None])
def test_a_median_that_is_no_time(value: float | None) -> None:
    with pytest.raises(BadInput) as caught:
        load(with_cell(SAMPLES, "median_ns", ROW, lambda _old: value))
    words = f"table samples, column median_ns, row of sample {SAMPLE}: "
    assert str(caught.value).startswith(words)
    assert "(1 such rows): an ok row needs a time from 1e-09 to 1e+18 ns; correct" in str(
        caught.value
    )


def test_a_time_of_zero_says_nothing() -> None:
    """A timer with coarse steps may have read it; the row is left out."""
    left = load(with_cell(SAMPLES, "median_ns", ROW, lambda _old: 0.0))
    assert len(left) == len(load()) - 1
    assert SAMPLE not in left.texts("sample_id")


def test_a_failed_row_needs_no_time() -> None:
    row = SAMPLES.column("status").to_pylist().index("device_fault")
    assert len(load(with_cell(SAMPLES, "median_ns", row, lambda _old: float("inf")))) == len(load())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("launch_floor_ns", float("inf")),
        ("peak_fp64_gflops", float("nan")),
        ("peak_dram_gbps", 1e308),
        ("compute_units", 0),
        ("max_work_item_sizes", [None]),
        ("max_work_item_sizes", [0]),
    ],
)
def test_a_device_that_cannot_exist(column: str, value: object) -> None:
    with pytest.raises(BadInput, match=f"table devices, row of device 'd+': .*{column}.*: correct"):
        load(devices=with_cell(DEVICES, column, 0, lambda _old: value))


@pytest.mark.parametrize(
    ("column", "member", "value", "words"),
    [
        ("args", "position", None, "column args of samples has an argument without a position"),
        ("args", "position", 2**31 - 1, "column args of samples has an argument without a pos"),
        ("args", "position", -1, "column args of samples has an argument without a position"),
    ],
)
def test_an_argument_that_cannot_be(column: str, member: str, value: object, words: str) -> None:
    def change(old: object) -> object:
        assert isinstance(old, list)
        return [*old[:2], {**old[2], member: value}]

    with pytest.raises(BadInput, match=words):
        load(with_cell(SAMPLES, column, ROW, change))


@pytest.mark.parametrize("size", [0, -64, None])
def test_a_size_that_cannot_be(size: int | None) -> None:
    with pytest.raises(BadInput, match=r"NDRange \[.*\] must have positive sizes"):
        load(with_cell(SAMPLES, "global_size", ROW, lambda _old: [size]))


def test_a_static_feature_that_cannot_be() -> None:
    def change(old: object) -> object:
        assert isinstance(old, dict)
        return {**old, "weighted_float_ops": float("inf")}

    with pytest.raises(BadInput, match=r"feature \w+ is inf, because .* static feature"):
        load(kernels=with_cell(KERNELS, "static_features", 0, change))
