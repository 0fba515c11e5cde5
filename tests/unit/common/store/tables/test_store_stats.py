"""The numbers of ``llmperf dataset stats``."""

import json
from dataclasses import asdict
from pathlib import Path

from llmperf_common.failures import FailureCode
from llmperf_common.store.tables.reader import open_dataset
from llmperf_common.store.tables.stats import dataset_stats
from tests.support.factories.dataset_factory import (
    make_dataset,
    make_failure,
    make_kernel,
    make_timing,
    mixed_outcome,
)


def test_counts_and_shares(tmp_path: Path):
    kernels = [make_kernel(0), make_kernel(1), make_kernel(2, suite="other")]
    path = make_dataset(tmp_path, kernels=kernels, outcome_of=mixed_outcome, num_planned_tasks=10)
    stats = dataset_stats(open_dataset(path))
    assert stats.num_samples == 12
    assert stats.by_status == {"ok": 8, "over_time_budget": 3, "hang": 1}
    assert stats.by_suite == {"tests": 8, "other": 4}
    assert stats.by_device_class == {"replay": 12}
    assert stats.by_regime == {"idle_sm": 6, "under_utilised": 3, "fully_utilised": 3}
    assert stats.by_strategy == {"memory_analysis": 9, "decoupled": 3}
    assert (stats.num_kernels, stats.num_families, stats.num_devices) == (3, 3, 1)
    assert (stats.num_planned_tasks, stats.num_done_tasks, stats.num_pending_tasks) == (10, 3, 7)
    assert stats.censored_share == 3 / 11
    assert stats.censored_share_by_regime == {
        "fully_utilised": 1.0,
        "idle_sm": 0.0,
        "under_utilised": 0.0,
    }
    assert stats.short_share == 1.0
    assert stats.ok_by_decade == {"3": 8}
    assert json.loads(json.dumps(asdict(stats))) == asdict(stats)


def test_percentiles_are_of_the_medians(tmp_path: Path):
    medians = [1e3, 1e4, 1e5, 1e6, 1e7]
    path = make_dataset(
        tmp_path,
        kernels=1,
        num_configs=5,
        outcome_of=lambda _, config: make_timing(medians[config]),
    )
    stats = dataset_stats(open_dataset(path))
    assert stats.median_ns_percentiles["50"] == 1e5
    assert stats.short_share == 0.2
    assert stats.ok_by_decade == {"3": 1, "4": 1, "5": 1, "6": 1, "7": 1}


def test_nothing_ok_and_nothing_at_all(tmp_path: Path):
    failed = make_dataset(
        tmp_path / "failed", outcome_of=lambda *_: make_failure(FailureCode.DEVICE_FAULT)
    )
    for path in (failed, make_dataset(tmp_path / "empty", kernels=0)):
        stats = dataset_stats(open_dataset(path))
        assert stats.median_ns_percentiles == stats.ok_by_decade == {}
        assert stats.short_share is stats.censored_share is None
        assert stats.censored_share_by_regime == {}
