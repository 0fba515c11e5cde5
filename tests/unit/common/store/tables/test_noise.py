"""When a run counts as noisy: the rows and readings that are judged, and the limits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from llmperf_common.records import SentinelReading
from llmperf_common.store.tables.noise import noise_of, relative_iqrs


def rows(*values: tuple[str, float | None, float | None]) -> pa.Table:
    status, median_ns, iqr_ns = zip(*values, strict=True)
    return pa.table(
        {
            "status": pa.array(status),
            "median_ns": pa.array(median_ns, pa.float64()),
            "iqr_ns": pa.array(iqr_ns, pa.float64()),
        }
    )


def readings(device: str, *times_ns: float) -> list[SentinelReading]:
    return [
        SentinelReading(device_id=device, at_us=number, median_ns=time_ns)
        for number, time_ns in enumerate(times_ns)
    ]


def test_only_ok_rows_with_enough_readings_of_their_own_are_judged() -> None:
    table = rows(
        ("ok", 2e5, 1e4),
        ("ok", 5e4, 5e4),  # the host's microseconds
        ("ok", 3e7, 0.0),  # one reading has no quartiles
        ("hang", None, None),
        ("ok", 1e6, float("nan")),
    )
    assert relative_iqrs(table).tolist() == pytest.approx([0.05])
    assert relative_iqrs(table.drop_columns("iqr_ns")).tolist() == []


@pytest.mark.parametrize(("iqr", "is_noisy"), [(0.005, False), (0.029, False), (0.031, True)])
def test_the_limit_of_the_median_row(iqr: float, is_noisy: bool) -> None:
    noise = noise_of(np.full(50, iqr, np.float32), ())
    assert (noise.warning is not None) == is_noisy


def test_a_few_rows_say_nothing() -> None:
    assert noise_of(np.full(19, 0.5, np.float32), readings("d", 1, 9, 1, 9)).warning is None


def test_the_device_that_drifted_most_is_told() -> None:
    steady, drifting = readings("a", *[100.0] * 30), readings("b", 100, 100, 100, 140, 140, 140)
    noise = noise_of(np.empty(0, np.float32), [*steady, *drifting])
    assert noise.num_readings == 6
    assert noise.sentinel_drift == pytest.approx(0.4)
    assert noise.warning is not None
    assert "40% longer at times" in noise.warning
    between = noise_of(np.empty(0, np.float32), [*steady, *readings("b", *[200.0] * 30)])
    assert between.warning is None, "two devices of different speed do not drift"
