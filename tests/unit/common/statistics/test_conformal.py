"""Intervals cover what they promise, and say when they cannot."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmperf_common.statistics.conformal import Conformal, calibrate, conformal_quantile, min_groups


def test_quantile_is_the_finite_sample_one():
    scores = np.arange(1.0, 20.0)  # 19 of them: rank ceil(20 x 0.9) = 18
    band = conformal_quantile(scores, None, 0.9)
    assert band.half_width_log2 == 18.0
    assert (band.num_rows, band.num_groups, band.guarantee) == (19, 19, "rows")


def test_nine_rows_are_the_fewest_for_ninety_percent():
    assert min_groups(0.9) == 9
    assert conformal_quantile(np.arange(9.0), None, 0.9).guarantee == "rows"
    few = conformal_quantile(np.arange(8.0), None, 0.9)
    assert few.guarantee == "none"
    assert few.half_width_log2 == 7.0


def test_groups_count_once_however_many_rows_they_have():
    # One family of 1,000 small errors and 18 of one large error each: rows would say small.
    scores = np.concatenate([np.full(1000, 0.1), np.full(18, 2.0)])
    groups = np.concatenate([np.zeros(1000), np.arange(1, 19)])
    assert conformal_quantile(scores, None, 0.9).half_width_log2 == 0.1
    assert conformal_quantile(scores, groups, 0.9).half_width_log2 == 2.0


def test_coverage_on_new_families_is_near_the_level():
    generator = np.random.default_rng(0)
    inside = []
    for _ in range(300):
        families = np.repeat(np.arange(41), 10)
        errors = generator.normal(0, 1, 41)[families] + generator.normal(0, 0.3, 410)
        conformal = calibrate(errors[:400], groups=families[:400], level=0.9)
        inside.append(np.mean(np.abs(errors[400:]) <= conformal.pooled.half_width_log2))
    assert 0.87 <= np.mean(inside) <= 0.96


def test_bins_have_their_own_width_and_fall_back():
    generator = np.random.default_rng(0)
    errors = np.concatenate([generator.normal(0, 0.1, 500), generator.normal(0, 1, 500), [5.0]])
    bins = np.array(["fully_utilised"] * 500 + ["idle_sm"] * 500 + ["rare"])
    conformal = calibrate(errors, bins=bins)
    assert set(conformal.bins) == {"fully_utilised", "idle_sm"}
    narrow, wide, rare, unknown = conformal.half_widths(
        ["fully_utilised", "idle_sm", "rare", "other"]
    )
    assert narrow < 0.3 < wide
    assert rare == unknown == conformal.pooled.half_width_log2
    low, high = conformal.interval_ns(np.array([10.0]), ["idle_sm"])
    assert low[0] * high[0] == pytest.approx(2.0**20)
    assert np.log2(high[0]) == pytest.approx(10 + wide)


def test_record_reads_back_equal():
    errors = np.random.default_rng(0).normal(0, 1, 300)
    conformal = calibrate(errors, bins=np.array(["a", "b", "b"] * 100), source="calibration")
    assert Conformal.from_json(json.loads(json.dumps(conformal.to_json()))) == conformal


@pytest.mark.parametrize(
    "content",
    [{}, {"schema": 2}, {"schema": 1, "level": 0.9}, {"schema": 1, "bins": 3, "pooled": {}}],
)
def test_damaged_records_are_refused(content):
    with pytest.raises(ValueError, match=r"conformal\.json"):
        Conformal.from_json(content)


@pytest.mark.parametrize(("scores", "level"), [([], 0.9), ([np.nan], 0.9), ([1.0], 1.0)])
def test_nonsense_is_refused(scores, level):
    with pytest.raises(ValueError, match="conformal"):
        conformal_quantile(np.array(scores, dtype=np.float64), None, level)


def test_a_spread_narrows_the_sure_rows_and_keeps_the_coverage():
    generator = np.random.default_rng(1)
    spread = np.exp(generator.normal(0, 1, (200, 410)))
    inside, sure, plain = [], [], []
    for draw in range(200):
        families = np.repeat(np.arange(41), 10)
        errors = generator.normal(0, 1, 410) * spread[draw]
        scaled = calibrate(
            (errors / spread[draw])[:400], groups=families[:400], level=0.9, by_spread=True
        )
        low, high = scaled.interval_ns(np.zeros(10), [""] * 10, spread[draw, 400:])
        inside.append(np.mean(np.abs(errors[400:]) <= np.log2(high)))
        sure.append(np.median(np.log2(high / low)))
        pooled = calibrate(errors[:400], groups=families[:400], level=0.9).pooled
        plain.append(2 * pooled.half_width_log2)
    assert 0.88 <= np.mean(inside) <= 0.95
    assert np.mean(sure) < 0.8 * np.mean(plain)


def test_intervals_by_spread_need_one_and_survive_json():
    scaled = calibrate(np.linspace(-1, 1, 40), by_spread=True)
    again = Conformal.from_json(json.loads(json.dumps(scaled.to_json())))
    assert again == scaled
    with pytest.raises(ValueError, match="the model gives no spread"):
        again.interval_ns(np.zeros(1), [""])


def test_an_earlier_conformal_json_is_read():
    now = calibrate(np.linspace(-1, 1, 40))
    before = {**now.to_json(), "schema": 1}
    del before["by_spread"]
    assert Conformal.from_json(before) == now
