"""The timing rule: stop rule, batches, refills, early outs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import LaunchConfig, StopReason, Strategy, Timing
from workers.config import TimingConfig
from workers.device.interface import DeviceFailure
from workers.device.replay_file import ReplayDevice
from workers.measure.timing import (
    TimedOutcome,
    launches_per_reading,
    time_config,
)
from workers.timing_rule import TimingRule

RULE = TimingConfig(max_readings=20, sample_budget_ms=100).rule()
DEVICE = ReplayDevice(timer_step_ns=32.0).record()
CONFIG = LaunchConfig(
    sample_id="s", global_size=(64,), local_size=(64,), args=(), regime=None,
    strategies=(Strategy.SIMPLE,), seed=11,
)  # fmt: skip


class ScriptedKernel:
    """A kernel and launcher whose times come from a list; it writes down what is done to it."""

    footprint_bytes = 0

    def __init__(
        self,
        times_ns: list[float],
        *,
        needs_refill: bool = False,
        fail_at: int | None = None,
        is_sticky: bool = True,
        at_once: int = 1,
        num_lost: int = 0,
    ) -> None:
        self.times: Iterator[float] = iter(times_ns)
        self.last = times_ns[-1]
        self.needs_refill = needs_refill
        self.fail_at = fail_at
        self.is_sticky = is_sticky
        self.at_once = at_once
        self.num_lost = num_lost
        self.log: list[str] = []

    def prepare(self, config: LaunchConfig) -> ScriptedKernel:
        assert config is CONFIG
        return self

    def release(self) -> None:
        self.log.append("release")

    def refill(self, *, seed: int, everything: bool = False) -> None:
        assert seed == CONFIG.seed or everything
        self.log.append("refill all" if everything else "refill")

    def launch(self, count: int = 1) -> float:
        self.log.append(f"launch {count}")
        if self.fail_at is not None and len(self.log) > self.fail_at:
            failure = Failure(code=FailureCode.DEVICE_FAULT, stage=Stage.LAUNCH, detail="x")
            raise DeviceFailure(failure, sticky=self.is_sticky)
        return next(self.times, self.last)

    def num_at_once(self, estimate_ns: float) -> int:
        return self.at_once

    def launch_each(self, count: int, *, refill_seed: int) -> list[float]:
        assert refill_seed == CONFIG.seed
        self.log.append(f"launch each of {count}")
        times = [next(self.times, self.last) for _ in range(count)]
        return times[self.num_lost :]

    def flush_cache(self) -> None:
        self.log.append("flush")

    def poison_output(self, byte: int) -> None:
        self.log.append(f"poison {byte}")

    def output_digest(self) -> str:
        return str(len(self.log))


def time_it(
    kernel: ScriptedKernel, rule: TimingRule = RULE, *, check: bool = False
) -> TimedOutcome:
    return time_config(kernel, CONFIG, rule, DEVICE, check_payload=check, clock=lambda: 0.0)


def timing_of(kernel: ScriptedKernel, rule: TimingRule = RULE) -> Timing:
    outcome = time_it(kernel, rule).outcome
    assert isinstance(outcome, Timing)
    return outcome


def test_steady_readings_stop_at_five() -> None:
    kernel = ScriptedKernel([90_000.0] + [50_000.0] * 50)
    timing = timing_of(kernel)
    assert timing.first_ns == 90_000
    assert timing.time_ns == (50_000.0,) * 5
    assert timing.stop_reason is StopReason.RELATIVE_ERROR
    assert timing.launches_per_reading == 1
    assert timing.cold_ns == (50_000.0,) * 3
    assert kernel.log == ["launch 1"] * 7 + ["flush", "launch 1"] * 3
    assert timing.checks.stationary is True
    assert timing.checks.above_floor is None


def test_a_kernel_that_reads_what_it_writes_is_refilled_before_each_launch() -> None:
    kernel = ScriptedKernel([100.0] * 99, needs_refill=True)
    timing = timing_of(kernel)
    assert timing.launches_per_reading == 1
    launches = [i for i, what in enumerate(kernel.log) if what.startswith("launch")]
    for index in launches[1:]:
        assert "refill" in kernel.log[max(0, index - 2) : index]


def test_short_launches_are_batched_and_labelled() -> None:
    timing = timing_of(ScriptedKernel([320.0] * 99))
    assert timing.launches_per_reading == 5  # 32 ns is 2 % of 1,600 ns


@pytest.mark.parametrize(
    ("time_ns", "num_readings", "reason"),
    [
        (4.9e6, 5, StopReason.RELATIVE_ERROR),
        (5.1e6, 3, StopReason.LONG_LAUNCH),
        (21e6, 1, StopReason.LONG_LAUNCH),
    ],
)
def test_long_launches_need_fewer_readings(
    time_ns: float, num_readings: int, reason: StopReason
) -> None:
    timing = timing_of(ScriptedKernel([time_ns] * 99))
    assert (len(timing.time_ns), timing.stop_reason) == (num_readings, reason)


def test_a_launch_above_the_limit_is_censored_after_one_launch() -> None:
    kernel = ScriptedKernel([300e6])
    outcome = time_it(kernel).outcome
    assert isinstance(outcome, Failure)
    assert outcome.code is FailureCode.OVER_TIME_BUDGET
    assert outcome.stage is Stage.LAUNCH
    assert "300.000 ms" in outcome.detail
    assert kernel.log == ["launch 1"]


def test_a_median_above_the_limit_is_censored_too() -> None:
    outcome = time_it(ScriptedKernel([200e6, 260e6])).outcome
    assert isinstance(outcome, Failure)
    assert outcome.code is FailureCode.OVER_TIME_BUDGET


def test_launches_at_once_are_taken_one_by_one_until_it_is_enough() -> None:
    kernel = ScriptedKernel([50_000.0] * 99, at_once=10)
    timing = timing_of(kernel)
    assert timing.time_ns == (50_000.0,) * 5
    assert timing.stop_reason is StopReason.RELATIVE_ERROR
    assert kernel.log == ["launch 1"] * 2 + ["launch each of 10"] + ["flush", "launch 1"] * 3


def test_where_launches_at_once_do_not_find_the_device_idle_each_is_waited_for() -> None:
    kernel = ScriptedKernel([50_000.0, 60_000.0] * 99, at_once=10, num_lost=7)
    timing = timing_of(kernel)
    assert len(timing.time_ns) == RULE.max_readings
    assert kernel.log.count("launch each of 10") == 1
    assert kernel.log.count("launch 1") == 2 + RULE.max_readings - 3 + 3


def test_batches_are_not_launched_at_once() -> None:
    kernel = ScriptedKernel([320.0] * 99, at_once=10)
    assert timing_of(kernel).launches_per_reading == 5
    assert "launch each of 10" not in kernel.log


def test_noise_stops_at_the_budget_or_at_the_most_readings() -> None:
    noisy = [1e6, 3e6] * 200
    assert timing_of(
        ScriptedKernel(noisy), TimingConfig(sample_budget_ms=20).rule()
    ).stop_reason is (StopReason.SAMPLE_BUDGET)
    timing = timing_of(
        ScriptedKernel(noisy), TimingConfig(sample_budget_ms=9999, max_readings=9).rule()
    )
    assert (len(timing.time_ns), timing.stop_reason) == (9, StopReason.MAX_READINGS)


def test_the_wall_clock_bounds_refills() -> None:
    ticks = iter(range(1000))
    outcome = time_config(
        ScriptedKernel([1e3, 9e3] * 99, needs_refill=True), CONFIG, RULE, DEVICE,
        check_payload=False, clock=lambda: float(next(ticks)),
    ).outcome  # fmt: skip
    assert isinstance(outcome, Timing)
    assert outcome.stop_reason is StopReason.SAMPLE_BUDGET
    assert len(outcome.time_ns) == RULE.min_readings


@pytest.mark.parametrize("is_sticky", [False, True])
def test_failures_come_back_as_values_and_sticky_is_told(is_sticky: bool) -> None:
    timed = time_it(ScriptedKernel([100.0], fail_at=4, is_sticky=is_sticky))
    assert timed.sticky is is_sticky
    assert isinstance(timed.outcome, Failure)
    assert timed.outcome.stage is Stage.LAUNCH


def test_a_failing_payload_check_says_its_stage() -> None:
    num_steps = 7 + 3 * 2
    timed = time_it(ScriptedKernel([90_000.0], fail_at=num_steps), check=True)
    assert isinstance(timed.outcome, Failure)
    assert timed.outcome.stage is Stage.CHECK


def test_payload_checks_are_optional() -> None:
    kernel = ScriptedKernel([90_000.0])
    outcome = time_it(kernel, check=True).outcome
    assert isinstance(outcome, Timing)
    assert outcome.checks.writes_output is True
    quiet = ScriptedKernel([90_000.0])
    time_it(quiet, replace(RULE, payload_checks=False), check=True)
    assert not [what for what in quiet.log if what.startswith("poison")]


@given(st.floats(0.5, 1e8), st.floats(1, 1000))
def test_batches_bring_the_step_below_its_share(estimate_ns: float, step_ns: float) -> None:
    count = launches_per_reading(estimate_ns, RULE, timer_step_ns=step_ns, needs_refill=False)
    assert 1 <= count <= 1000
    assert count * max(estimate_ns, step_ns) * RULE.batch_step_share >= step_ns * (1 - 1e-9)
    if count > 1:
        assert step_ns > RULE.batch_step_share * estimate_ns
    assert launches_per_reading(estimate_ns, RULE, timer_step_ns=None, needs_refill=False) == 1
    assert launches_per_reading(estimate_ns, RULE, timer_step_ns=step_ns, needs_refill=True) == 1
