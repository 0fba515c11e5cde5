"""Features: records and tables give the same numbers, and each means what its name says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from llmperf_common.features.features import (
    combine,
    feature_meanings,
    feature_names,
    features_from_records,
    features_from_tables,
)
from llmperf_common.features.launch_columns import columns_from_records
from llmperf_common.features.regimes import regime_of
from llmperf_common.features.roofline import Bound, bound_of
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.records import (
    Access,
    ArgumentKind,
    DeviceClass,
    LaunchArgument,
    Regime,
    Signature,
)
from llmperf_common.store.tables.rows import devices_table, kernels_table, samples_table
from tests.support.factories.synthetic_dataset import (
    BANDWIDTH_BYTES_PER_NS,
    DEVICE,
    FLOOR_NS,
    OPS_PER_NS,
    buffer_argument,
    local_argument,
    make_dataset,
    make_launch,
    make_sample,
    make_timing,
    scalar_argument,
)


def signature(**features: float) -> Signature:
    return Signature(
        arguments=(
            buffer_argument(0, "x", Access.READ, element_bytes=16),
            buffer_argument(1, "y", Access.READ_WRITE),
            local_argument(2, "tile"),
            scalar_argument(3, "n"),
            scalar_argument(4, "alpha", "float"),
        ),
        dims=2,
        required_local_size=None,
        static_local_bytes=0,
        static_features=features,
    )


def launch(global_size, local_size, *, n=100, elements=1000):
    base = make_launch(make_dataset(num_kernels=1, num_configs=4).kernels[0].kernel, (64,), (64,))
    args = (
        LaunchArgument(position=0, kind=ArgumentKind.GLOBAL_BUFFER, elements=elements),
        LaunchArgument(position=1, kind=ArgumentKind.GLOBAL_BUFFER, elements=2 * elements),
        LaunchArgument(position=2, kind=ArgumentKind.LOCAL_BUFFER, elements=64),
        LaunchArgument(position=3, kind=ArgumentKind.SCALAR, value=n),
        LaunchArgument(position=4, kind=ArgumentKind.SCALAR, value=1e9),
    )
    return dataclasses.replace(base, global_size=global_size, local_size=local_size, args=args)


def named(matrix: np.ndarray, row: int = 0) -> dict[str, float]:
    return dict(zip(feature_names(), matrix[row].tolist(), strict=True))


def mixed_tasks():
    """Two kernels of unlike signatures on two devices, one of them without peaks."""
    dataset = make_dataset(num_kernels=2, num_configs=8)
    bare = dataclasses.replace(
        DEVICE, device_id="e" * 20, device_class="bare", peak_dram_gbps=None, launch_floor_ns=None
    )
    odd = signature(weighted_float_ops=3.0, open_float_ops=2.0, a_future_name=5.0)
    kernel = dataclasses.replace(dataset.kernels[1].kernel, kernel_id="k" * 20, signature=odd)
    generator = np.random.default_rng(0)
    samples = tuple(
        make_sample(dataclasses.replace(config, sample_id=str(index)), make_timing(1e4, generator))
        for index, config in enumerate(
            [launch((64, 32), (16, 2)), launch((4096,), (128,), n=7), launch((8, 8, 8), (2, 2, 2))]
        )
    )
    other = dataclasses.replace(
        dataset.tasks[0],
        task_id="t" * 20,
        kernel=kernel,
        device_id=bare.device_id,
        device_class=bare.device_class,
        samples=samples,
        num_planned=len(samples),
    )
    return [dataset.tasks[0], other, dataset.tasks[1]], {DEVICE.device_id: DEVICE, "e" * 20: bare}


@pytest.mark.parametrize("chunked", [False, True])
def test_records_and_tables_give_equal_features(chunked):
    tasks, devices = mixed_tasks()
    samples = samples_table(tasks)
    if chunked:
        samples = pa.concat_tables([samples.slice(0, 5), samples.slice(5, 6), samples.slice(11)])
    from_tables = features_from_tables(
        samples, kernels_table(tasks), devices_table(list(devices.values()))
    )
    from_records = np.concatenate(
        [
            features_from_records(
                task.kernel.signature,
                [sample.config for sample in task.samples],
                devices[task.device_id],
            )
            for task in tasks
        ]
    )
    assert from_tables.shape == (19, len(feature_names()))
    assert from_tables.dtype == np.float64
    np.testing.assert_array_equal(from_tables, from_records)


def test_every_name_has_a_meaning_and_every_static_feature_is_used():
    meanings = feature_meanings()
    assert tuple(meanings) == feature_names()
    assert all(meanings.values())
    assert {f"static_{name}" for name in STATIC_FEATURES} <= set(meanings)


def test_sizes_buffers_and_scalars_by_hand():
    row = named(features_from_records(signature(), [launch((64, 32), (16, 2))], DEVICE))
    assert row["log2_work_items"] == 11
    assert row["log2_work_groups"] == 6
    assert row["log2_local_items"] == 5
    assert [row[f"log2_global_{axis}"] for axis in range(3)] == [6, 5, 0]
    assert [row[f"log2_local_{axis}"] for axis in range(3)] == [4, 1, 0]
    assert row["dims"] == 2
    assert row["log2_groups_per_unit"] == 2  # 64 groups on 16 units
    assert row["log2_waves"] == 2
    assert row["wave_fill"] == 1
    assert row["log2_buffer_bytes"] == pytest.approx(np.log2(1 + 16_000 + 8_000))
    assert row["log2_read_bytes"] == pytest.approx(np.log2(1 + 24_000))
    assert row["log2_written_bytes"] == pytest.approx(np.log2(1 + 8_000))
    assert row["log2_largest_buffer_bytes"] == pytest.approx(np.log2(1 + 16_000))
    assert row["log2_local_bytes"] == pytest.approx(np.log2(1 + 256))
    # The float scalar 1e9 is no size: only n counts.
    assert row["log2_scalar_max"] == row["log2_scalar_min"] == pytest.approx(np.log2(101))
    assert row["log2_scalar_product"] == pytest.approx(np.log2(100))


def test_open_loops_multiply_by_the_scalar():
    static = {"weighted_float_ops": 10.0, "open_float_ops": 8.0}
    one = named(features_from_records(signature(**static), [launch((64,), (64,), n=1)], DEVICE))
    many = named(features_from_records(signature(**static), [launch((64,), (64,), n=1000)], DEVICE))
    assert one["work_float_ops"] == pytest.approx(np.log2(1 + 10 * 64))
    assert many["work_float_ops"] == pytest.approx(np.log2(1 + (10 + 8 * 999) * 64))
    assert many["total_float_ops"] == one["total_float_ops"]


def test_unknown_is_nan_never_zero():
    row = named(features_from_records(signature(float_ops=3.0), [launch((64,), (64,))], DEVICE))
    assert row["static_float_ops"] == 2
    assert np.isnan(row["static_int_ops"])
    assert np.isnan(row["log2_peak_fp64_gflops"])


def test_a_device_class_without_peaks_gives_nan_terms():
    bare = DeviceClass(
        name="synth",
        compute_units=16,
        max_work_group_size=1024,
        max_work_item_sizes=(1024, 1024, 64),
        max_allocation_bytes=2**30,
        global_memory_bytes=2**30,
        local_memory_bytes=49152,
    )
    row = named(features_from_records(signature(), [launch((64,), (64,))], bare))
    assert row["log2_compute_units"] == 4
    assert np.isnan(row["log2_dram_term_ns"])
    assert np.isnan(row["log2_launch_floor_ns"])
    assert row["regime_idle_sm"] == 1


def test_analytic_terms_by_hand():
    static = {"weighted_float_ops": 100.0, "weighted_global_bytes": 0.0}
    big = launch((2**20,), (64,), n=0, elements=2**22)  # 24 B x 2**22: beyond the cache
    row = named(features_from_records(signature(**static), [big], DEVICE))
    bytes_ = 24 * 2**22
    assert row["log2_dram_term_ns"] == pytest.approx(
        np.log2(bytes_ / BANDWIDTH_BYTES_PER_NS), abs=1e-6
    )
    assert row["log2_compute_term_ns"] == pytest.approx(np.log2(100 * 2**20 / OPS_PER_NS))
    assert row["log2_latency_term_ns"] == np.log2(FLOOR_NS)
    assert row["log2_roofline_ns"] == pytest.approx(row["log2_dram_term_ns"], abs=1e-6)


@pytest.mark.parametrize(
    ("ops", "elements", "items", "bound"),
    [
        (1.0, 100, 64, Bound.LATENCY),
        (1.0, 2**24, 2**20, Bound.BANDWIDTH),
        (1e5, 2**10, 2**20, Bound.COMPUTE),
    ],
)
def test_bound_is_the_largest_term(ops, elements, items, bound):
    static = signature(weighted_float_ops=ops)
    config = launch((items,), (64,), n=1, elements=elements)
    for device in (DEVICE, dataclasses.replace(DEVICE, peak_dram_gbps=None, launch_floor_ns=None)):
        columns = columns_from_records(static, [config], device, tuple(STATIC_FEATURES))
        assert bound_of(columns) == [bound]


def test_regimes_and_their_one_hots_agree():
    sizes = [15, 16, 319, 320, 5000]
    assert [regime_of(groups, 16) for groups in sizes] == [
        Regime.IDLE_SM,
        Regime.UNDER_UTILISED,
        Regime.UNDER_UTILISED,
        Regime.FULLY_UTILISED,
        Regime.FULLY_UTILISED,
    ]
    assert regime_of(1, 1) is Regime.IDLE_SM
    for groups in sizes:
        row = named(features_from_records(signature(), [launch((groups * 64,), (64,))], DEVICE))
        hot = [name for name in Regime if row[f"regime_{name.value}"] == 1]
        assert hot == [regime_of(groups, 16)]


def test_work_features_grow_with_the_global_size():
    static = dict.fromkeys(STATIC_FEATURES, 3.0)
    launches = [launch((2**power,), (64,), n=2**power) for power in range(8, 24)]
    matrix = features_from_records(signature(**static), launches, DEVICE)
    growing = [
        column
        for column, name in enumerate(feature_names())
        if name.startswith(("total_", "work_", "log2_work", "log2_compute_term"))
    ]
    assert len(growing) > 10
    assert np.all(np.diff(matrix[:, growing], axis=0) > 0)


def test_a_row_alone_equals_the_row_among_others():
    tasks, _ = mixed_tasks()
    configs = [sample.config for sample in tasks[0].samples]
    together = features_from_records(tasks[0].kernel.signature, configs, DEVICE)
    for row, config in enumerate(configs):
        alone = features_from_records(tasks[0].kernel.signature, [config], DEVICE)
        np.testing.assert_array_equal(alone[0], together[row])


def test_arguments_that_the_kernel_does_not_declare_count_nothing():
    tasks, devices = mixed_tasks()
    odd = dataclasses.replace(tasks[1].kernel.signature, arguments=())
    task = dataclasses.replace(tasks[1], kernel=dataclasses.replace(tasks[1].kernel, signature=odd))
    table = features_from_tables(
        samples_table([task]), kernels_table([task]), devices_table(list(devices.values()))
    )
    records = features_from_records(odd, [s.config for s in task.samples], devices["e" * 20])
    np.testing.assert_array_equal(table, records)
    assert named(table)["log2_buffer_bytes"] == 0


def test_rows_that_cannot_be_joined_or_have_no_ndrange_are_refused():
    dataset = make_dataset(num_kernels=1, num_configs=4)
    with pytest.raises(ValueError, match=r"\(\) must have 1 to 3|\[\] must have 1 to 3"):
        features_from_tables(dataset.samples_table, dataset.kernels_table, dataset.devices_table)
    with pytest.raises(ValueError, match=r"task_id .* in no row of kernels"):
        features_from_tables(
            dataset.samples_table, dataset.kernels_table.slice(0, 0), dataset.devices_table
        )


def test_no_rows_give_no_features():
    dataset = make_dataset(num_kernels=1, num_configs=4)
    none = features_from_tables(
        dataset.samples_table.slice(0, 0), dataset.kernels_table, dataset.devices_table
    )
    assert none.shape == (0, len(feature_names()))


def test_combine_takes_other_static_names():
    columns = columns_from_records(
        signature(mine=3.0, weighted_mine=7.0),
        [launch((64,), (64,))],
        DEVICE,
        ("mine", "weighted_mine"),
    )
    names = feature_names({"mine": "?", "weighted_mine": "?"})
    row = dict(zip(names, combine(columns)[0].tolist(), strict=True))
    assert row["static_mine"] == 2
    assert row["total_mine"] == pytest.approx(np.log2(1 + 7 * 64))
