"""The timing rule: one launch config becomes a ``Timing`` with every reading and its stop reason.

Owns warm-ups, batches, readings and cold readings. Does not own the rule that says when readings
are enough (``workers/measure/stop_rule.py``), the device's clock (``workers/device``) or the checks
of a timing (``workers/measure/checks.py``). The parent process kills a launch that hangs.
docs/explanation/measurement.md gives the reasons for the rule.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from llmperf_common.failures import CensorReason, Failure, FailureCode, Stage
from llmperf_common.records import Checks, Device, LaunchConfig, Outcome, StopReason, Timing
from workers.device.interface import DeviceFailure, Launcher, LoadedKernel
from workers.measure.checks import above_floor, is_stationary, payload_checks
from workers.measure.stop_rule import StopRule
from workers.timing_rule import TimingRule

MAX_LAUNCHES_PER_READING = 1000
ONE_WARMUP_NS = 1e6
"""If the first launch takes longer than this number of ns, it is the only warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOutcome:
    """The result of timing one config.

    ``sticky``: the device context is lost, so the child must end. ``launch_ns``: duration of one
    launch, even if that was too long; None if no launch ended.
    """

    outcome: Outcome
    sticky: bool = False
    launch_ns: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warmup:
    """Times of the launches before the first reading, ns."""

    first_ns: float
    estimate_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _TooLong:
    """A launch that took longer than ``timing.max_launch_ms``."""

    what: str
    launch_ns: float


def time_config(
    loaded: LoadedKernel,
    config: LaunchConfig,
    rule: TimingRule,
    device: Device,
    *,
    check_payload: bool,
    clock: Callable[[], float],
) -> TimedOutcome:
    """Time one launch config; a device failure is returned as the outcome.

    Args:
        loaded: the kernel on its device.
        config: what to launch.
        rule: the configured limits.
        device: the device's record. If it has no peak, there is no floor check; if it has no timer
            step, launches are not batched.
        check_payload: also run the payload checks, which cost up to four more launches.
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


def launches_per_reading(
    estimate_ns: float, rule: TimingRule, *, timer_step_ns: float | None, needs_refill: bool
) -> int:
    """Return how many launches a reading must span so that the timer's step is small enough.

    The step may be at most ``timing.batch_step_share`` of a reading. The number is 1 if the step is
    fine enough or unknown. It is also 1 for a kernel that reads what it writes, because its second
    launch would do different work from its first.
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
    rule: TimingRule,
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
    readings, reason = _warm_readings(launcher, config, rule, warm.estimate_ns, count, clock)
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


def _warm_readings(
    launcher: Launcher,
    config: LaunchConfig,
    rule: TimingRule,
    estimate_ns: float,
    count: int,
    clock: Callable[[], float],
) -> tuple[list[float], StopReason]:
    """Take readings of ``count`` launches each until the stop rule says enough.

    Launches that end before the host can enqueue the next one are enqueued several at a time, which
    saves waiting. Each launch still finds the device idle; ``Launcher.launch_each`` ensures that.
    """
    stop = StopRule(rule, launches_per_reading=count)
    at_once = launcher.num_at_once(estimate_ns) if count == 1 else 1
    start_s = clock()
    while True:
        if at_once > 1:
            taken = launcher.launch_each(at_once, refill_seed=config.seed)
            if len(taken) < at_once:
                at_once = 1
        else:
            taken = [_launch_on_fresh_input(launcher, config, count)]
        wall_s = clock() - start_s
        for reading_ns in taken:
            reason = stop.add(reading_ns, wall_s=wall_s)
            if reason is not None:
                return stop.readings, reason


def _warm_up(launcher: Launcher, config: LaunchConfig, rule: TimingRule) -> _Warmup | _TooLong:
    """Launch before the first reading, on the inputs that ``prepare`` has filled in.

    On PoCL the first launch of a kernel with a local size also compiles, which takes 40 to 100 ms
    of wall time but no event time. As a warm-up this launch never becomes a reading.
    """
    first_ns = launcher.launch()
    estimate_ns = first_ns
    for _ in range(1, rule.warmups):
        if estimate_ns > ONE_WARMUP_NS:
            break
        estimate_ns = _launch_on_fresh_input(launcher, config, 1)
    if estimate_ns > rule.max_launch_ms * 1e6:
        return _TooLong(what="first launch", launch_ns=estimate_ns)
    return _Warmup(first_ns=first_ns, estimate_ns=estimate_ns)


def _cold_readings(launcher: Launcher, config: LaunchConfig, rule: TimingRule) -> tuple[float, ...]:
    """Time launches that find no data in the cache: up to ``cold_readings``, within a budget.

    The first one ignores the budget.
    """
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


def _over_budget(found: _TooLong, rule: TimingRule) -> Failure:
    return Failure(
        code=FailureCode.OVER_TIME_BUDGET,
        stage=Stage.LAUNCH,
        detail=f"{found.what} of {found.launch_ns / 1e6:.3f} ms exceeds "
        f"timing.max_launch_ms ({rule.max_launch_ms:g})",
        censored=CensorReason.TOO_LONG,
    )
