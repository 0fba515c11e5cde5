"""The stop rule against its definition, reading by reading."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmperf_common.records import StopReason
from workers.config import TimingConfig
from workers.measure.stop_rule import StopRule, needed_readings
from workers.timing_rule import WALL_BUDGET_FACTOR, TimingRule

RULE = TimingConfig(max_readings=20, sample_budget_ms=100).rule()


def relative_standard_error(readings: list[float]) -> float:
    return statistics.stdev(readings) / len(readings) ** 0.5 / statistics.fmean(readings)


def defined(readings: list[float], rule: TimingRule, wall_s: float) -> StopReason | None:
    """docs/explanation/measurement.md, word for word."""
    needed = needed_readings(statistics.median(readings), rule)
    if len(readings) < needed:
        return None
    few = len(readings) < rule.min_readings
    if needed == 1 and few:
        return StopReason.LONG_LAUNCH
    if len(readings) > 1 and relative_standard_error(readings) <= rule.relative_standard_error:
        return StopReason.LONG_LAUNCH if few else StopReason.RELATIVE_ERROR
    if len(readings) >= rule.max_readings:
        return StopReason.MAX_READINGS
    budget_s = rule.sample_budget_ms / 1e3
    if sum(readings) / 1e9 < budget_s and wall_s < WALL_BUDGET_FACTOR * budget_s:
        return None
    return StopReason.LONG_LAUNCH if few else StopReason.SAMPLE_BUDGET


READINGS = st.floats(1.0, 1e8)
NEAR = st.tuples(st.floats(1e3, 3e7), st.lists(st.floats(0.9, 1.1), min_size=1, max_size=40)).map(
    lambda given: [given[0] * one for one in given[1]]
)


@given(st.lists(READINGS, min_size=1, max_size=40) | NEAR, st.floats(0, 1))
def test_each_reading_is_judged_as_defined(times_ns: list[float], wall_s: float) -> None:
    stop = StopRule(RULE)
    for number, time_ns in enumerate(times_ns, start=1):
        reason = stop.add(time_ns, wall_s=wall_s)
        seen = times_ns[:number]
        assert stop.readings == seen
        if number > 1:
            error = relative_standard_error(seen)
            assert stop.relative_standard_error == pytest.approx(error, rel=1e-6, abs=1e-9)
            if error == pytest.approx(RULE.relative_standard_error, rel=1e-6, abs=1e-9):
                return
        assert reason is defined(seen, RULE, wall_s)
        if reason is not None:
            return


def test_launches_of_a_batch_count_against_the_budget() -> None:
    rule = TimingConfig(sample_budget_ms=0.8, relative_standard_error=1e-9).rule()
    stop = StopRule(rule, launches_per_reading=1000)
    reasons = [stop.add(time_ns, wall_s=0.0) for time_ns in (100.0, 300.0) * 3]
    assert reasons[:5] == [None] * 4 + [StopReason.SAMPLE_BUDGET]
