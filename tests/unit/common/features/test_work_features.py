"""Features of counted work against values by hand, and models that may or may not be told of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from llmperf_common.features.features import (
    feature_names,
    features_from_records,
    features_from_tables,
    is_counted,
    uncounted_feature_names,
)
from llmperf_common.features.launch_columns import columns_from_records
from llmperf_common.features.work import OPTIONAL_WORK, WORK_KINDS, WORK_NAMES, Work
from llmperf_common.features.work_features import WORK_MEANINGS, work_terms_ns
from llmperf_common.records import Device
from llmperf_common.store.tables.rows import devices_table, kernels_table, samples_table
from tests.support.factories.synthetic_dataset import DEVICE, make_dataset
from tests.unit.common.features.test_features import launch, named, signature

GPU: Device = dataclasses.replace(
    DEVICE,
    compute_units=10,
    max_clock_mhz=1000.0,
    last_level_cache_bytes=2**20,
    peak_dram_gbps=100.0,
    peak_l2_gbps=200.0,
    peak_fp32_gflops=2560.0,
    peak_fp64_gflops=40.0,
    launch_floor_ns=1000.0,
)
"""Ten units at one clock a nanosecond; its double precision begins 2 operations a clock and unit."""


_FLAGS = {"is_exact": False, "without_barriers": False}


def work(**values: Any) -> Work:
    zeros: dict[str, Any] = dict.fromkeys(WORK_NAMES, 0.0)
    return Work(
        **{
            **zeros,
            "lane_efficiency": 1.0,
            "warp_peak": 1.0,
            "sampled_items": 1,
            **_FLAGS,
            **values,
        }
    )


def terms(
    one: Work, *, local: int = 64, groups: int = 100, elements: int = 1000
) -> dict[str, float]:
    asked = launch((groups * local,), (local,), elements=elements)
    columns = columns_from_records(signature(), [asked], GPU, (), [one])
    return {name: float(values[0]) for name, values in work_terms_ns(columns).items()}


def test_memory_terms_by_hand() -> None:
    found = terms(
        work(
            global_load_requests=1e4,
            global_load_sectors=8e4,
            global_store_sectors=2e4,
            global_store_requests=1e4,
        )
    )
    assert found["l2"] == 1e5 * 32 / 200
    # 100,000 sectors of four a clock take longer than 20,000 requests; ten units have work-groups.
    assert found["l1"] == 1e5 / 4 / 10
    assert found["dram"] == 0  # buffers of 24,000 bytes stay in the cache of 1 MiB
    large = terms(work(global_load_sectors=1e6, global_load_requests=1e6), elements=10**6)
    assert large["dram"] == 24e6 / 100  # not the 32 MB of the sectors: each byte of 24 MB once
    assert large["l1"] == 1e6 / 10


def test_few_work_groups_use_few_compute_units() -> None:
    one = work(global_load_requests=1e4, fp32_ops=1280.0)
    assert terms(one, groups=2)["l1"] == 1e4 / 2
    assert terms(one, groups=2)["compute"] == 1280 / 128 / 2


def test_compute_counts_idle_lanes_and_slow_double_precision() -> None:
    assert terms(work(fp32_ops=12800.0))["compute"] == 12800 / 128 / 10
    assert terms(work(fp32_ops=12800.0, lane_efficiency=0.25))["compute"] == 40
    assert terms(work(int_ops=6400.0, special_ops=1600.0))["compute"] == 10 + 10
    assert terms(work(fp64_ops=200.0))["compute"] == 200 / 2 / 10  # 64 a clock, did it have as many
    assert terms(work(fp64_ops=200.0)) == terms(work(fp64_ops=200.0, lane_efficiency=2.0))


def test_local_memory_and_atomics() -> None:
    assert terms(work(local_loads=3200.0, local_stores=3200.0))["local"] == 6400 / 32 / 10
    assert terms(work(global_atomics=3200.0))["atomic"] == 100
    assert terms(work(local_atomics=400.0))["atomic"] == 10


def test_latency_is_of_the_busiest_warp_and_rounds_repeat_it() -> None:
    items = 6400
    one = work(fp32_ops=10.0 * items, global_loads=2.0 * items, warp_peak=3.0)
    far = terms(one, elements=10**6)
    assert far["latency"] == pytest.approx(3 * (10 * 5 + 2 * 150))
    assert far["wave"] == far["latency"]
    assert terms(one)["latency"] == pytest.approx(3 * (10 * 5 + 2 * 10))  # small buffers
    # A unit holds 32 groups of 64: 641 groups of ten units take three rounds.
    many = work(fp32_ops=10.0 * 641 * 64)
    assert terms(many, groups=641)["wave"] == pytest.approx(3 * 50)


def test_shares_by_hand() -> None:
    asked = launch((640,), (64,), elements=1000)
    one = work(
        active_items=64.0,
        global_load_requests=10.0,
        global_load_sectors=320.0,
        item_spread=3.0,
        warp_peak=8.0,
        barriers=1280.0,
        relative_error=0.125,
        without_barriers=True,
    )
    row = named(features_from_records(signature(), [asked], GPU, work=[one]))
    assert row["counted_active_share"] == 0.1
    assert row["counted_sectors_a_load"] == 5
    assert row["counted_sectors_a_store"] == 0  # there is none
    assert row["counted_item_spread"] == 2
    assert row["counted_warp_peak"] == 3
    assert row["counted_barriers_each"] == pytest.approx(1, abs=1e-3)
    assert row["counted_barriers"] == pytest.approx(np.log2(1281))
    assert (row["counted_error"], row["counted_unsure"]) == (0.125, 1)
    assert row["counted_reuse"] == pytest.approx(np.log2(320 * 32 / 24_000))
    assert row["counted_time_ns"] >= row["counted_bound_ns"] == pytest.approx(np.log2(1000))


def test_lines_reuse_and_meeting_atomics_by_hand() -> None:
    asked = launch((640,), (64,), elements=1000)
    one = work(
        global_load_requests=10.0,
        global_load_lines=20.0,
        global_store_requests=4.0,
        global_store_lines=128.0,
        global_load_bytes=6000.0,
        global_store_bytes=2000.0,
        group_bytes=1000.0,
        global_atomics=640.0,
        global_atomic_addresses=20.0,
        global_atomic_peak=31.0,
    )
    row = named(features_from_records(signature(), [asked], GPU, work=[one]))
    assert row["counted_lines_a_load"] == 1
    assert row["counted_lines_a_store"] == 5
    assert row["counted_group_bytes"] == pytest.approx(np.log2(101))
    assert row["counted_group_reuse"] == 3
    assert row["counted_atomic_sharing"] == 5
    assert row["counted_atomic_peak"] == 5


LATER_FEATURES = {
    "counted_lines_a_load", "counted_lines_a_store", "counted_group_bytes", "counted_group_reuse",
    "counted_atomic_sharing", "counted_atomic_peak",
}  # fmt: skip


def test_rows_counted_before_lack_the_later_features_only() -> None:
    """They change no other feature, so that a model made without them predicts as before."""
    asked = launch((640,), (64,))
    now = work(global_load_requests=10.0, global_load_lines=20.0, group_bytes=5.0)
    before = dataclasses.replace(now, **dict.fromkeys(OPTIONAL_WORK))
    new, old = (
        features_from_records(signature(), [asked], GPU, work=[one])[0] for one in (now, before)
    )
    is_later = np.array([name in LATER_FEATURES for name in feature_names()])
    assert is_later.sum() == len(LATER_FEATURES)
    assert np.isnan(old[is_later]).all()
    assert np.isfinite(new[is_later]).all()
    np.testing.assert_array_equal(new[~is_later], old[~is_later])


def test_what_is_not_counted_is_nan_and_everything_else_as_before() -> None:
    asked = [launch((640,), (64,)), launch((1280,), (64,))]
    both = features_from_records(signature(), asked, GPU, work=[None, work(fp32_ops=5.0)])
    without = features_from_records(signature(), asked, GPU)
    names = feature_names()
    counted = [names.index(name) for name in WORK_MEANINGS]
    assert is_counted(both).tolist() == [False, True]
    assert np.isnan(both[0, counted]).all()
    assert np.isfinite(both[1, counted]).all()
    others = [names.index(name) for name in uncounted_feature_names()]
    assert sorted([*counted, *others]) == list(range(len(names)))
    np.testing.assert_array_equal(both[:, others], without[:, others])


def test_tables_and_records_give_equal_features() -> None:
    dataset = make_dataset(num_kernels=1, num_configs=4)
    task = dataset.tasks[0]
    some = [work(fp32_ops=100.0 + n, global_load_sectors=7.0 * n) for n in range(len(task.samples))]
    given = [one if n % 2 else None for n, one in enumerate(some)]
    of_type = pa.struct(
        [
            pa.field(name, {"bool": pa.bool_(), "int": pa.int64()}.get(kind, pa.float64()))
            for name, kind in WORK_KINDS.items()
        ]
    )
    column = pa.array([None if one is None else dataclasses.asdict(one) for one in given], of_type)
    samples = samples_table([task])
    if "work" in samples.column_names:
        samples = samples.drop_columns(["work"])
    found = features_from_tables(
        samples.append_column("work", column), kernels_table([task]), devices_table([DEVICE])
    )
    configs = [one.config for one in task.samples]
    expected = features_from_records(task.kernel.signature, configs, DEVICE, work=given)
    np.testing.assert_array_equal(found, expected)
    assert is_counted(found).tolist() == [one is not None for one in given]
    assert len(WORK_NAMES) == len(of_type)
