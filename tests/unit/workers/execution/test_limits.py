"""What the configuration leaves open follows from the device."""

from __future__ import annotations

import pytest

from workers.config import CollectConfig, LedgerConfig, LimitsConfig, TimingConfig
from workers.execution.limits import GPU_RUN_CHILDREN, limits_on


@pytest.mark.parametrize(("processors", "run_children"), [(2, 4), (16, GPU_RUN_CHILDREN)])
def test_a_gpu_is_impatient_and_shared(
    monkeypatch: pytest.MonkeyPatch, processors: int, run_children: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    limits = limits_on(CollectConfig(), gpu=True, shared=True)
    assert limits.num_run_children == run_children
    assert limits.spin_timeout_s <= limits.config_timeout_s < 5
    assert limits.faults_to_end_strategy == 1
    assert limits.num_compile_children >= 1
    assert limits.num_analysis_children >= limits.num_compile_children
    assert limits.claim_ahead > limits.num_run_children + limits.num_analysis_children


def test_short_launches_make_a_gpu_less_patient_with_a_child_that_spins() -> None:
    """As in the preset ``400k``."""
    timing = TimingConfig(max_launch_ms=50.0, sample_budget_ms=10.0)
    limits = limits_on(CollectConfig(timing=timing), gpu=True, shared=True)
    assert (limits.spin_timeout_s, limits.config_timeout_s) == (0.75, 2.0)


def test_a_cpu_device_does_one_thing_at_a_time() -> None:
    limits = limits_on(CollectConfig(), gpu=False, shared=False)
    assert (limits.config_timeout_s, limits.num_compile_children) == (30, 1)
    assert limits.spin_timeout_s == limits.config_timeout_s
    assert limits.faults_to_end_strategy == limits.deaths_to_quarantine == 2
    assert limits.claim_ahead == 3


def test_what_is_set_holds_on_every_device() -> None:
    config = CollectConfig(
        limits=LimitsConfig(config_timeout_s=7, faults_to_end_strategy=3, compile_children=5),
        ledger=LedgerConfig(claim_ahead=9),
    )
    for gpu in (True, False):
        limits = limits_on(config, gpu=gpu, shared=gpu)
        assert limits.config_timeout_s == limits.spin_timeout_s == 7
        assert limits.faults_to_end_strategy == 3
        assert limits.num_compile_children == limits.num_analysis_children == 5
        assert limits.claim_ahead == 9


@pytest.mark.parametrize(("claim_ahead", "run_children"), [(None, 3), (1, 1), (4, 4), (64, 4)])
def test_a_cpu_device_has_a_run_child_for_each_task_of_a_small_group(
    claim_ahead: int | None, run_children: int
) -> None:
    config = CollectConfig(ledger=LedgerConfig(claim_ahead=claim_ahead))
    limits = limits_on(config, gpu=False, shared=False)
    assert limits.num_run_children == run_children
