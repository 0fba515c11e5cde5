"""Whether a collector is farther from runs of ours than they are from one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.collecting.run_offsets import (
    errors_percent,
    excess_percent,
    kinds_apart,
    main,
    read_medians,
)
from benchmarks.data.raw_rows import read_rows, write_parquet


def runs(*, other_bias: float, seed: int = 0) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Three runs with 2 % of noise over 40 kernels of 30 configs, and another collector's, longer by a factor."""
    chance = np.random.default_rng(seed)
    true_ns = chance.uniform(1e4, 1e5, 1200)
    noisy = [true_ns * chance.normal(1.0, 0.02, 1200) for _ in range(4)]
    kernels = [f"k{index // 30}" for index in range(1200)]
    return kernels, np.stack(noisy[:3], axis=1), noisy[3] * (1 + other_bias)


def test_one_more_run_is_within_the_floor() -> None:
    low, middle, high = excess_percent(*runs(other_bias=0.0))
    assert low < 0 < high
    assert abs(middle) < 0.2


def test_a_biased_clock_is_not() -> None:
    low, middle, _ = excess_percent(*runs(other_bias=0.03))
    assert 0 < low < middle


def test_errors_are_in_per_cent_of_the_reference() -> None:
    assert errors_percent(np.array([200.0]), np.array([150.0])) == pytest.approx([25.0])


def test_only_configs_that_all_have_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "medians.csv"
    table.write_text(
        "kernel_id,sample_id,one,two,plain\n"
        "a,1,20000,20200,20000\n"
        "a,2,30000,,30000\n"
        "b,3,40000,40400,40800\n"
        "b,4,5000,5000,5000\n",
        encoding="utf-8",
    )
    found = read_medians(table)
    assert found.values.shape == (3, 3)
    compact = tmp_path / "medians.parquet"
    write_parquet(compact, read_rows(table))
    again = read_medians(compact)
    assert (again.columns, again.kernels) == (found.columns, found.kernels)
    assert np.array_equal(again.values, found.values)
    monkeypatch.setattr("sys.argv", ["run_offsets", str(table), "--other", "plain"])
    main()
    out = capsys.readouterr().out
    assert out.startswith("2 configs of 2 kernels")
    assert "plain: MAPE to the runs less theirs to one another" in out


def runs_of_two_kinds(*, bias_ns: float = 0.0, by_config: float = 0.0, seed: int = 0) -> np.ndarray:
    """Four runs of each kind; each run has an offset of its own for all its configs, some 0.3 us.

    ``bias_ns`` is the second kind's in all configs, ``by_config`` a share of some configs' times, up and down.
    """
    chance = np.random.default_rng(seed)
    true_ns = chance.uniform(1e4, 1e5, 2000)
    own = chance.choice([-1.0, 0.0, 0.0, 1.0], 2000) * by_config
    columns = [
        true_ns * (1 + own * (run >= 4))
        + chance.normal(0.0, 300.0)
        + chance.normal(0.0, 300.0, 2000)
        + bias_ns * (run >= 4)
        for run in range(8)
    ]
    return np.stack(columns, axis=1)


def test_runs_that_differ_by_their_process_only_are_of_one_kind() -> None:
    found = [kinds_apart(runs_of_two_kinds(seed=seed), range(4), range(4, 8)) for seed in range(20)]
    assert {one.least_p for one in found} == {2 / 70}, "a way to deal and its twin"
    assert kinds_apart(runs_of_two_kinds(), range(3), range(3, 8)).least_p == 1 / 56
    assert sum(one.offset_p < 0.05 for one in found) <= 3
    assert sum(one.excess_p < 0.05 for one in found) <= 3
    assert sum(one.shape_p < 0.05 for one in found) <= 3
    assert all(abs(one.shape_percent) < 0.05 for one in found)
    assert all(one.repeats is not None and abs(one.repeats) < 0.2 for one in found)


def test_a_kind_that_is_longer_is_told_from_the_other() -> None:
    found = kinds_apart(runs_of_two_kinds(bias_ns=1500.0), range(4), range(4, 8))
    assert found.offset_ns == pytest.approx(1500.0, abs=400.0)
    assert found.offset_p <= 2 / 70
    assert found.excess_percent > 0.5
    assert found.excess_p <= 2 / 70
    assert abs(found.shape_percent) < 0.05, "but for that they are alike"


def test_configs_that_differ_up_and_down_are_told_though_no_offset_is_left() -> None:
    found = kinds_apart(runs_of_two_kinds(by_config=0.03), range(4), range(4, 8))
    assert found.offset_p > 0.05
    assert found.excess_p <= 2 / 70
    assert found.shape_percent > 0.5
    assert found.shape_p <= 2 / 70
    assert found.repeats is not None
    assert found.repeats > 0.7


def test_kinds_are_told_by_their_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "medians.csv"
    names = ["ours", "plain", "plain", "ours"]
    header = ",".join(f"{number:02}_{name}" for number, name in enumerate(names))
    rows = [f"k{row},{row},{20000 + row},20200,20400,{20300 - row}" for row in range(9)]
    table.write_text("\n".join([f"kernel_id,sample_id,{header}", *rows]) + "\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["run_offsets", str(table), "--by-kind"])
    main()
    out = capsys.readouterr().out
    assert "plain less ours: +150 ns" in out
    assert "no p below 0.333" in out
