"""The timing rule: one launch config in place becomes a ``Timing`` with every reading and why it stopped.

Owns warm-ups, batches, readings, the stop rule and cold readings. Does not own the clock of the device
(``workers/device``), what is judged about a timing (``workers/checks.py``), nor killing what hangs: the
parent does that. docs/explanation/measurement.md says why the rule is as it is.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Checks, Device, LaunchConfig, Outcome, StopReason, Timing
from workers.checks import above_floor, is_stationary, payload_checks
from workers.config import WALL_BUDGET_FACTOR, TimingConfig
from workers.device.interface import DeviceFailure, Launcher, LoadedKernel

LONG_LAUNCH_NS = 5e6
"""Above this, three readings are enough: the launch itself averages over the device's jitter."""
VERY_LONG_LAUNCH_NS = 20e6
"""Above this, one reading is enough."""
READINGS_OF_A_LONG_LAUNCH = 3
MAX_LAUNCHES_PER_READING = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOutcome:
    """What timing one config gave.

    ``sticky``: the device context is lost, the child must go. ``launch_ns``: how long a launch took, also where that
    was too long; None where none ended.
    """

    outcome: Outcome
    sticky: bool = False
    launch_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warmup:
    """What the launches before the first reading said."""

    first_ns: float
    estimate_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _TooLong:
    """A launch that took more than ``timing.max_launch_ms``."""

    what: str
    launch_ns: float


def time_config(
    loaded: LoadedKernel,
    config: LaunchConfig,
    rule: TimingConfig,
    device: Device,
    *,
    check_payload: bool,
    clock: Callable[[], float],
) -> TimedOutcome:
    """Time one launch config; a failure of the world comes back as a value.

    Args:
        loaded: the kernel on its device.
        config: what to launch.
        rule: how often.
        device: its record; peaks and timer step may be None (no floor check, no batches).
        check_payload: also judge outputs (``workers/checks.py``), which costs four more launches.
        clock: monotonic seconds.
    """
    try:
        launcher = loaded.prepare(config)
        timed = _time_launcher(launcher, config, rule, device, clock)
        if isinstance(timed, _TooLong):
            return TimedOutcome(outcome=_over_budget(timed, rule), launch_ns=timed.launch_ns)
        launch_ns = statistics.median(timed.time_ns)
        if check_payload and rule.payload_checks:
            timed = _with_payload_checks(launcher, config, timed)
    except DeviceFailure as error:
        return TimedOutcome(outcome=error.failure, sticky=error.sticky)
    return TimedOutcome(outcome=timed, launch_ns=launch_ns)


def stop_reason(
    readings: Sequence[float],
    rule: TimingConfig,
    *,
    launches_per_reading: int = 1,
    wall_s: float = 0.0,
) -> StopReason | None:
    """Return why no further reading is needed, or None to go on. A pure function of its arguments.

    Args:
        readings: warm readings so far, ns a launch.
        rule: the configured limits.
        launches_per_reading: launches that each reading is the mean of.
        wall_s: wall time since the first reading began.

    >>> stop_reason([100.0] * 4, TimingConfig()) is None
    True
    >>> stop_reason([100.0] * 5, TimingConfig())
    <StopReason.RELATIVE_ERROR: 'relative_error'>
    >>> stop_reason([3e7], TimingConfig())
    <StopReason.LONG_LAUNCH: 'long_launch'>
    """
    needed = needed_readings(statistics.median(readings), rule) if readings else 1
    if len(readings) < needed:
        return None
    few = len(readings) < rule.min_readings
    if needed == 1 and few:
        return StopReason.LONG_LAUNCH
    if relative_standard_error(readings) <= rule.relative_standard_error:
        return StopReason.LONG_LAUNCH if few else StopReason.RELATIVE_ERROR
    if len(readings) >= rule.max_readings:
        return StopReason.MAX_READINGS
    budget_s = rule.sample_budget_ms / 1e3
    launched_s = sum(readings) * launches_per_reading / 1e9
    if launched_s < budget_s and wall_s < WALL_BUDGET_FACTOR * budget_s:
        return None
    return StopReason.LONG_LAUNCH if few else StopReason.SAMPLE_BUDGET


def needed_readings(median_ns: float, rule: TimingConfig) -> int:
    """Return the fewest readings of a launch this long."""
    if median_ns > VERY_LONG_LAUNCH_NS:
        return 1
    if median_ns > LONG_LAUNCH_NS:
        return min(READINGS_OF_A_LONG_LAUNCH, rule.min_readings)
    return rule.min_readings


def relative_standard_error(readings: Sequence[float]) -> float:
    """Return the standard error of the mean ÷ the mean; infinite for fewer than two readings.

    >>> round(relative_standard_error([90.0, 100.0, 110.0]), 4)
    0.0577
    """
    if len(readings) < 2:
        return math.inf
    # Not statistics.stdev: its exact fractions take longer than a short launch does.
    mean = math.fsum(readings) / len(readings)
    if mean <= 0:
        return math.inf
    variance = math.fsum((one - mean) ** 2 for one in readings) / (len(readings) - 1)
    return math.sqrt(variance / len(readings)) / mean


def launches_per_reading(
    estimate_ns: float, rule: TimingConfig, *, timer_step_ns: float | None, needs_refill: bool
) -> int:
    """Return how many launches one reading must span so that the timer's step stays below its share.

    One where the step is fine enough or unknown, and one where the kernel reads what it writes: its
    second launch would do other work than its first.
    """
    if needs_refill or not timer_step_ns:
        return 1
    span_ns = timer_step_ns / rule.batch_step_share
    if estimate_ns >= span_ns:
        return 1
    return min(MAX_LAUNCHES_PER_READING, math.ceil(span_ns / max(estimate_ns, timer_step_ns)))


def _time_launcher(
    launcher: Launcher,
    config: LaunchConfig,
    rule: TimingConfig,
    device: Device,
    clock: Callable[[], float],
) -> Timing | _TooLong:
    warm = _warm_up(launcher, config, rule)
    if isinstance(warm, _TooLong):
        return warm
    count = launches_per_reading(
        warm.estimate_ns, rule,
        timer_step_ns=device.timer_step_ns, needs_refill=launcher.needs_refill,
    )  # fmt: skip
    readings: list[float] = []
    start_s = clock()
    reason: StopReason | None = None
    while reason is None:
        readings.append(_launch_on_fresh_input(launcher, config, count))
        reason = stop_reason(readings, rule, launches_per_reading=count, wall_s=clock() - start_s)
    median_ns = statistics.median(readings)
    if median_ns > rule.max_launch_ms * 1e6:
        return _TooLong(what="median", launch_ns=median_ns)
    cold = _cold_readings(launcher, config, rule)
    checks = Checks(
        stationary=is_stationary(readings, timer_step_ns=device.timer_step_ns),
        above_floor=above_floor(median_ns, launcher.footprint_bytes, device),
    )
    return Timing(
        time_ns=tuple(readings),
        first_ns=warm.first_ns,
        cold_ns=cold,
        launches_per_reading=count,
        stop_reason=reason,
        checks=checks,
    )


def _warm_up(launcher: Launcher, config: LaunchConfig, rule: TimingConfig) -> _Warmup | _TooLong:
    """Launch before the first reading. The first launch's inputs are fresh from ``prepare``.

    The first launch of a (kernel, local size) compiles inside the launch on PoCL (40-100 ms of wall,
    not of event time); it is a warm-up, so no reading ever holds that.
    """
    first_ns = launcher.launch()
    estimate_ns = first_ns
    for _ in range(1, rule.warmups):
        if estimate_ns > VERY_LONG_LAUNCH_NS:
            break
        estimate_ns = _launch_on_fresh_input(launcher, config, 1)
    if estimate_ns > rule.max_launch_ms * 1e6:
        return _TooLong(what="first launch", launch_ns=estimate_ns)
    return _Warmup(first_ns=first_ns, estimate_ns=estimate_ns)


def _cold_readings(
    launcher: Launcher, config: LaunchConfig, rule: TimingConfig
) -> tuple[float, ...]:
    """Time launches that find none of their data in the cache; one at least, then within the budget."""
    cold: list[float] = []
    while len(cold) < rule.cold_readings and sum(cold) < rule.sample_budget_ms * 1e6:
        if launcher.needs_refill:
            launcher.refill(seed=config.seed)
        launcher.flush_cache()
        cold.append(launcher.launch())
    return tuple(cold)


def _launch_on_fresh_input(launcher: Launcher, config: LaunchConfig, count: int) -> float:
    if launcher.needs_refill:
        launcher.refill(seed=config.seed)
    return launcher.launch(count)


def _with_payload_checks(launcher: Launcher, config: LaunchConfig, timing: Timing) -> Timing:
    try:
        payload = payload_checks(launcher, seed=config.seed)
    except DeviceFailure as error:
        raise DeviceFailure(
            dataclasses.replace(error.failure, stage=Stage.CHECK), sticky=error.sticky
        ) from error
    checks = dataclasses.replace(
        timing.checks,
        writes_output=payload.writes_output,
        deterministic=payload.deterministic,
        input_sensitive=payload.input_sensitive,
    )
    return dataclasses.replace(timing, checks=checks)


def _over_budget(found: _TooLong, rule: TimingConfig) -> Failure:
    return Failure(
        code=FailureCode.OVER_TIME_BUDGET,
        stage=Stage.LAUNCH,
        detail=f"{found.what} {found.launch_ns / 1e6:.3f} ms, timing.max_launch_ms is {rule.max_launch_ms:g}",
    )
