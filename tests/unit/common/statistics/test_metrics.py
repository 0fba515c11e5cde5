"""Metrics against hand-made numbers, scipy and laws."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llmperf_common.statistics.metrics import (
    Scored,
    absolute_percentage_error,
    censored_share,
    encode,
    log2_ratio,
    metrics_table,
    noise_floor_median_ape_percent,
    summarise,
)
from llmperf_common.statistics.ranking import choice_regret, spearman_by_group


def scored(measured, predicted, *, kernel=None, family=None, choice=None, low=None, high=None):
    measured = np.asarray(measured, dtype=np.float64)
    zeros = np.zeros(len(measured), dtype=np.int64)

    def codes(values):
        return zeros if values is None else np.asarray(values, dtype=np.int64)

    return Scored(
        measured_ns=measured,
        predicted_ns=np.asarray(predicted, dtype=np.float64),
        low_ns=None if low is None else np.asarray(low, dtype=np.float64),
        high_ns=None if high is None else np.asarray(high, dtype=np.float64),
        kernel=codes(kernel),
        family=codes(family),
        choice=zeros - 1 if choice is None else codes(choice),
    )


def test_errors_by_hand():
    measured, predicted = np.array([100.0, 200.0]), np.array([50.0, 300.0])
    assert absolute_percentage_error(measured, predicted).tolist() == [50.0, 50.0]
    assert log2_ratio(np.array([8.0]), np.array([2.0])).tolist() == [-2.0]


def test_block_by_hand():
    block = summarise(scored([100, 100, 400], [110, 50, 400], kernel=[0, 0, 1], family=[0, 0, 1]))
    assert block["mape_percent"] == pytest.approx((10 + 50 + 0) / 3)
    assert block["median_ape_percent"] == pytest.approx(10)
    assert block["macro_mape_percent"] == pytest.approx((30 + 0) / 2)
    assert block["macro_median_ape_percent"] == pytest.approx((30 + 0) / 2)
    assert block["median_log2_ratio"] == pytest.approx(0)
    expected = np.sqrt((np.log2(1.1) ** 2 + 1 + 0) / 3)
    assert block["rmse_log2"] == pytest.approx(expected)
    assert (block["num_rows"], block["num_kernels"], block["num_families"]) == (3, 2, 2)


def test_spearman_equals_scipy_with_ties():
    generator = np.random.default_rng(0)
    first = generator.integers(0, 6, 300).astype(float)
    second = first + generator.integers(0, 6, 300)
    group = generator.integers(0, 12, 300)
    codes, rho = spearman_by_group(first, second.astype(float), group, 5)
    assert len(codes) == 12
    for code, value in zip(codes, rho, strict=True):
        inside = group == code
        assert value == pytest.approx(stats.spearmanr(first[inside], second[inside]).statistic)


def test_spearman_leaves_out_small_and_flat_groups_and_counts_constant_predictions_as_zero():
    measured = np.array([1.0, 2, 3, 5, 5, 5, 1, 2, 1, 2, 3])
    predicted = np.array([1.0, 2, 3, 1, 2, 3, 1, 2, 7, 7, 7])
    group = np.array([0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3])
    codes, rho = spearman_by_group(measured, predicted, group, 3)
    assert codes.tolist() == [0, 3]
    assert rho.tolist() == [1.0, 0.0]


def test_a_ranking_says_over_how_many_kernels_it_is():
    rows = scored(range(1, 11), range(1, 11), kernel=[0] * 5 + [1] * 4 + [2])
    assert summarise(rows)["num_ranked"] == 1
    assert summarise(rows, min_configs=3)["num_ranked"] == 2
    assert summarise(scored([], []))["num_ranked"] == 0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_metrics_do_not_depend_on_row_order(rows):
    kernel, measured, predicted = (np.array(column) for column in zip(*rows, strict=True))
    order = np.random.default_rng(1).permutation(len(rows))
    choice = kernel // 2
    one = summarise(
        scored(measured, predicted, kernel=kernel, family=kernel, choice=choice), min_configs=2
    )
    other = summarise(
        scored(
            measured[order],
            predicted[order],
            kernel=kernel[order],
            family=kernel[order],
            choice=choice[order],
        ),
        min_configs=2,
    )
    for key, value in one.items():
        assert other[key] == pytest.approx(value), key


def test_regret_of_the_chosen_local_size():
    measured = np.array([10.0, 20.0, 30.0, 5.0, 8.0, 7.0, 9.0])
    predicted = np.array([2.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0])
    choice = np.array([0, 0, 0, 1, 1, 2, -1])
    regret = choice_regret(measured, predicted, choice)
    assert regret.group.tolist() == [0, 1]  # one row is no choice, -1 is none
    assert regret.chosen.tolist() == pytest.approx([1.0, 6.5 / 5 - 1])  # a tie costs its mean
    assert regret.random.tolist() == pytest.approx([1.0, 6.5 / 5 - 1])
    best = choice_regret(measured, measured, choice)
    assert best.chosen.tolist() == [0.0, 0.0]


def test_coverage_counts_the_ends_as_inside():
    block = summarise(scored([1, 2, 3, 4], [1, 2, 3, 4], low=[1, 3, 2, 1], high=[1, 4, 3, 2]))
    assert block["coverage"] == 0.5
    assert "coverage" not in summarise(scored([1, 2], [1, 2]))


def test_perfect_predictions():
    values = np.arange(1.0, 21.0)
    block = summarise(scored(values, values, kernel=np.arange(20) // 10))
    assert block["mape_percent"] == 0
    assert block["rmse_log2"] == 0
    assert block["spearman_mean"] == pytest.approx(1)


def test_bootstrap_is_over_families_and_seeded():
    generator = np.random.default_rng(0)
    family = np.repeat(np.arange(30), 20)
    # All rows of a family share their error: 600 rows are 30 independent errors.
    ratio = np.repeat(generator.normal(0, 1, 30), 20)
    measured = 2.0 ** generator.uniform(10, 20, 600)
    rows = scored(measured, measured * 2**ratio, kernel=family, family=family)
    block = summarise(rows, replicates=400, seed=3)
    again = summarise(rows, replicates=400, seed=3)
    assert block == again
    low, high = block["ci"]["rmse_log2"]
    assert low < block["rmse_log2"] < high
    # The standard error of 30 draws; over rows it would be about a fifth of that.
    assert high - low > 0.3
    other = summarise(rows, replicates=400, seed=4)
    assert other["ci"]["rmse_log2"] != block["ci"]["rmse_log2"]


def test_bootstrapped_median_equals_a_plain_resampling():
    family = np.array([0, 0, 1, 2, 2, 2])
    measured = np.full(6, 100.0)
    predicted = np.array([101.0, 120, 150, 103, 107, 190])
    block = summarise(scored(measured, predicted, family=family), replicates=2000, seed=0)
    ape = absolute_percentage_error(measured, predicted)
    generator = np.random.default_rng(0)
    draws = generator.multinomial(3, [1 / 3] * 3, size=2000)
    medians = [np.median(np.repeat(ape, counts[family])) for counts in draws]
    expected = np.quantile(medians, [0.025, 0.975])
    assert block["ci"]["median_ape_percent"] == pytest.approx(expected.tolist())


def test_a_median_between_two_values_lies_in_its_interval():
    ones, widths = [1.0] * 4, [8.0, 30, 8, 30]
    rows = scored(ones, ones, family=[0, 0, 1, 1], low=ones, high=widths)
    block = summarise(rows, replicates=50)
    assert block["interval_width_ratio"] == 19
    assert block["ci"]["interval_width_ratio"] == [19, 19]


def test_one_family_has_no_interval():
    block = summarise(scored([1, 2], [1, 3]), replicates=10)
    assert block["ci"]["mape_percent"] is None


def test_no_rows_give_nulls():
    block = summarise(scored([], []), replicates=10)
    assert block["num_rows"] == 0
    assert block["mape_percent"] is None
    assert block["spearman_mean"] is None


def test_table_has_long_launches_and_slices():
    rows = scored([5_000, 20_000], [5_000, 40_000], family=[0, 1])
    with_slices = Scored(
        **{name: getattr(rows, name) for name in rows.__slots__ if name != "slices"},
        slices={"suite": np.array(["own", "shoc"])},
    )
    table = metrics_table(with_slices, replicates=5)
    assert table["all"]["num_rows"] == 2
    assert table["from_10_us"]["mape_percent"] == 100
    assert table["by"]["suite"]["own"]["mape_percent"] == 0
    assert table["by"]["suite"]["shoc"]["mape_percent"] == 100


def test_encode_is_equal_exactly_where_all_columns_are():
    codes = encode(["a", "a", "b", "a"], [1, 2, 1, 1])
    assert codes[0] == codes[3]
    assert len({codes[0], codes[1], codes[2]}) == 3


def test_censored_share():
    share = censored_share({"idle_sm": 9, "fully_utilised": 3}, {"fully_utilised": 1})
    assert share["all"] == pytest.approx(1 / 13)
    assert share["by"] == {"idle_sm": 0.0, "fully_utilised": 0.25}
    assert censored_share({}, {})["all"] is None


def test_noise_floor_is_half_the_iqr():
    floor = noise_floor_median_ape_percent(np.array([100.0, 100, 100]), np.array([2.0, 4, np.nan]))
    assert floor == pytest.approx(1.5)
    assert noise_floor_median_ape_percent(np.array([1.0]), np.array([np.nan])) is None


def test_symmetric_figures_by_hand():
    measured = [100.0, 100, 100, 100]
    predicted = [50.0, 200, 120, 1000]  # factors 2, 2, 1.2, 10
    block = summarise(scored(measured, predicted, kernel=[0, 0, 0, 1], family=[0, 0, 0, 1]))
    assert block["share_within_1_25"] == 0.25
    assert block["share_within_1_5"] == 0.25
    assert block["share_within_2"] == 0.75
    assert block["median_factor"] == 2.0
    assert block["p90_factor"] == 10.0
    assert block["macro_share_within_2"] == 0.5
    assert block["macro_median_factor"] == pytest.approx(6)
    assert block["median_kernel_mape_percent"] == pytest.approx(((50 + 100 + 20) / 3 + 900) / 2)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30))
@settings(deadline=None)
def test_low_and_high_guesses_of_one_factor_are_equally_wrong(factors):
    measured, ratio = np.full(len(factors), 1e4), np.array(factors)
    low, high = (summarise(scored(measured, measured * r)) for r in (ratio, 1 / ratio))
    for name in ("share_within_1_25", "share_within_1_5", "median_factor", "p90_factor"):
        assert low[name] == pytest.approx(high[name])


def test_coverage_counts_each_family_once():
    # Nine rows of family 0 lie within, and the one of family 1 does not.
    measured = np.array([10.0] * 9 + [99.0])
    found = summarise(
        dataclasses.replace(
            scored(
                measured, measured, low=np.full(10, 5), high=np.full(10, 20), family=[0] * 9 + [1]
            ),
            interval_level=0.9,
        ),
        replicates=50,
    )
    assert found["coverage"] == 0.9
    assert found["family_coverage"] == 0.5
    assert found["families_covered"] == 0.5
    assert found["ci"]["family_coverage"] == [0.0, 1.0]


def test_the_90th_percentile_has_an_interval_over_families():
    generator = np.random.default_rng(0)
    family = np.repeat(np.arange(60), 10)
    bias = 2 ** generator.normal(0, 1, 60)[family]
    block = summarise(scored(np.full(600, 1e4), 1e4 * bias, family=family), replicates=300)
    low, high = block["ci"]["p90_factor"]
    assert low < block["p90_factor"] < high
    assert stats.lognorm(s=np.log(2)).ppf(0.95) == pytest.approx(block["p90_factor"], rel=0.5)
