"""When the readings of one launch config are enough.

Owns the stop rule of docs/explanation/measurement.md. The rule runs between any two launches, and a
launch may take only 5 µs. So the rule updates mean and spread with each reading, and computes a
median only if the launches may be so long that fewer readings are enough.
"""

from __future__ import annotations

import math
import statistics

from llmperf_common.records import StopReason
from workers.timing_rule import WALL_BUDGET_FACTOR, TimingRule

LONG_LAUNCH_NS = 5e6
"""Nanoseconds of a launch above which three readings are enough: such a launch averages over the
device's jitter."""
VERY_LONG_LAUNCH_NS = 20e6
"""Nanoseconds of a launch above which one reading is enough."""
READINGS_OF_A_LONG_LAUNCH = 3


class StopRule:
    """The warm readings of one launch config, and why no further reading is needed.

    Args:
        rule: the configured limits.
        launches_per_reading: number of launches of which each reading is the mean.

    >>> from workers.config import TimingConfig
    >>> stop = StopRule(TimingConfig().rule())
    >>> [stop.add(100.0, wall_s=0.0) for _ in range(5)][-2:]
    [None, <StopReason.RELATIVE_ERROR: 'relative_error'>]
    >>> StopRule(TimingConfig().rule()).add(3e7, wall_s=0.0)
    <StopReason.LONG_LAUNCH: 'long_launch'>
    """

    __slots__ = ("_count", "_has_long", "_mean", "_rule", "_squares", "_total", "readings")

    def __init__(self, rule: TimingRule, *, launches_per_reading: int = 1) -> None:
        self.readings: list[float] = []
        """The readings so far, ns per launch."""
        self._rule = rule
        self._count = launches_per_reading
        self._total = 0.0
        self._mean = 0.0
        self._squares = 0.0
        self._has_long = False

    def add(self, reading_ns: float, *, wall_s: float) -> StopReason | None:
        """Add a reading; return why it was the last one needed, or None if more are needed.

        Args:
            reading_ns: ns per launch.
            wall_s: wall time since the first reading began.
        """
        rule, readings = self._rule, self.readings
        readings.append(reading_ns)
        number = len(readings)
        off = reading_ns - self._mean  # Welford, Technometrics 4 (1962)
        self._mean += off / number
        self._squares += off * (reading_ns - self._mean)
        self._total += reading_ns
        self._has_long = self._has_long or reading_ns > LONG_LAUNCH_NS
        needed = rule.min_readings
        if self._has_long:
            needed = needed_readings(statistics.median(readings), rule)
        if number < needed:
            return None
        few = number < rule.min_readings
        if needed == 1 and few:
            return StopReason.LONG_LAUNCH
        if self.relative_standard_error <= rule.relative_standard_error:
            return StopReason.LONG_LAUNCH if few else StopReason.RELATIVE_ERROR
        if number >= rule.max_readings:
            return StopReason.MAX_READINGS
        budget_s = rule.sample_budget_ms / 1e3
        launched_s = self._total * self._count / 1e9
        if launched_s < budget_s and wall_s < WALL_BUDGET_FACTOR * budget_s:
            return None
        return StopReason.LONG_LAUNCH if few else StopReason.SAMPLE_BUDGET

    @property
    def relative_standard_error(self) -> float:
        """The standard error of the mean ÷ the mean; infinite for fewer than two readings.

        >>> from workers.config import TimingConfig
        >>> stop = StopRule(TimingConfig().rule())
        >>> _ = [stop.add(one, wall_s=0.0) for one in (90.0, 100.0, 110.0)]
        >>> round(stop.relative_standard_error, 4)
        0.0577
        """
        number = len(self.readings)
        if number < 2 or self._mean <= 0:
            return math.inf
        return math.sqrt(self._squares / ((number - 1) * number)) / self._mean


def needed_readings(median_ns: float, rule: TimingRule) -> int:
    """Return the fewest readings that a launch of this duration needs."""
    if median_ns > VERY_LONG_LAUNCH_NS:
        return 1
    if median_ns > LONG_LAUNCH_NS:
        return min(READINGS_OF_A_LONG_LAUNCH, rule.min_readings)
    return rule.min_readings
