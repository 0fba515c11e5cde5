"""One task on its way: which configs have an outcome, and what the rest become when it ends early.

Owns the table of outcomes of a task and how it turns into a ``TaskResult``. Pure: no children, no clock but the
one it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from llmperf_common.analysis import Analysis
from llmperf_common.builds import Build, KernelResources
from llmperf_common.empty_configs import empty_config
from llmperf_common.failures import Failure, FailureCode
from llmperf_common.features.work import Work
from llmperf_common.ids import content_id, sha256_hex
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import (
    LaunchConfig,
    Outcome,
    Sample,
    SentinelReading,
    Strategy,
    TaskResult,
    Timing,
)
from workers.device.interface import ProbeRecord
from workers.device.nvidia.monitor import Condition, Monitor
from workers.execution.death_rules import given_up_strategies, kernel_given_up, strategy_given_up
from workers.measure.run_order import RunOrder
from workers.measure.task_trace import TaskTrace
from workers.plan.plan import Plan, Task

_MOST_EXCUSED = 8
"""Number of kills by other processes that a task may meet."""


@dataclass(slots=True, kw_only=True, eq=False)
class TaskState:
    """A task in hand. ``outcomes[i]`` is None until config i has one.

    ``configs`` is empty until what they follow from is known: at once, or after ``plan_by``.
    """

    plan: Plan
    task: Task
    lease: Lease
    device_id: str
    worker_id: str
    now_us: Callable[[], int]
    configs: tuple[LaunchConfig, ...] = field(init=False, default=())
    outcomes: list[tuple[Outcome, int] | None] = field(init=False, default_factory=list)
    launch_ns: list[float | None] = field(init=False, default_factory=list)
    """By config, how long a launch took at least, also where that was too long."""
    analysis: Analysis | None = field(init=False)
    build: Build | None = None
    num_deaths: int = 0
    num_analysis_attempts: int = 0
    analysed: Analysis | None = None
    """What the analysis has told while inputs are being chosen."""
    num_access_attempts: int = 0
    access_records: tuple[ProbeRecord | None, ...] = ()
    """Access records of the configs that are tried ahead, in their order, as far as known."""
    num_compile_attempts: int = 0
    works: tuple[Work | Failure, ...] = ()
    """What each config executes, or why that is not known; empty where work is not counted."""
    sentinel: tuple[SentinelReading, ...] = ()
    task_budget_s: float | None = None
    one_processor: bool | None = None
    """Whether every child that had it launched from the host's processor for that; None where none had it."""
    trace: TaskTrace = field(init=False)
    _windows_s: list[tuple[float, float] | None] = field(init=False, default_factory=list)
    _spared: set[int] = field(init=False, default_factory=set)
    _faults: Counter[Strategy] = field(init=False, default_factory=Counter)
    _excused: set[int | str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.analysis = self.task.kernel.analysis
        self.trace = TaskTrace(num_warmups=self.plan.timing_config.warmups)
        if not self.plan.needs_analysis(self.task.kernel):
            self._set_configs(self.plan.configs(self.task))

    @property
    def is_planned(self) -> bool:
        """Whether its launch configs are known."""
        return bool(self.configs)

    @property
    def is_complete(self) -> bool:
        """Whether every config has an outcome."""
        return self.is_planned and all(self.outcomes)

    def plan_by(self, analysis: Analysis) -> None:
        """Keep what was found out about the kernel's memory; the launch configs follow from it."""
        self.analysis = analysis
        self._set_configs(self.plan.configs(self.task, analysis))

    @property
    def open_indices(self) -> tuple[int, ...]:
        """The configs without an outcome."""
        return tuple(index for index, outcome in enumerate(self.outcomes) if outcome is None)

    @property
    def extents_are_proven(self) -> bool:
        """Whether every buffer of every config is as large as a validated analysis says."""
        return (
            self.analysis is not None
            and all(extent.validated for extent in self.analysis.extents)
            and all(config.strategies != (Strategy.SIMPLE,) for config in self.configs)
        )

    @property
    def has_outcomes(self) -> bool:
        """Whether any config has an outcome that it got on the device."""
        return any(
            outcome for index, outcome in enumerate(self.outcomes) if index not in self._spared
        )

    @property
    def check_indices(self) -> tuple[int, ...]:
        """The smallest, the largest and any other config: there the payload is checked. Which other follows from the kernel."""
        by_size = sorted(
            range(len(self.configs)),
            key=lambda index: (
                self.configs[index].num_work_groups,
                self.configs[index].global_size,
                index,
            ),
        )
        between = by_size[1:-1]
        kernel, device_class = self.task.kernel.kernel_id, self.task.device_class.name
        drawn = int(content_id("checked", [kernel, device_class]), 16)
        others = {between[drawn % len(between)]} if between else set()
        return tuple(sorted({by_size[0], by_size[-1]} | others))

    def record(
        self,
        index: int,
        outcome: Outcome,
        *,
        launch_ns: float | None = None,
        window_s: tuple[float, float] | None = None,
    ) -> None:
        """Set the outcome of one config; a later one replaces it (a death after the result).

        ``window_s``: when it was timed, on the monotonic clock.
        """
        self.outcomes[index] = (outcome, self.now_us())
        self.launch_ns[index] = launch_ns
        self._windows_s[index] = window_s

    def spare(self, index: int, failure: Failure) -> None:
        """Give a config its outcome before the task comes to the device: it is not launched."""
        self._spared.add(index)
        self.record(index, failure)

    def record_rest(self, failure: Failure) -> None:
        """Give every config that has no outcome yet this failure."""
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self.record(index, failure)

    def give_up_hopeless(self) -> None:
        """Give up the open configs that what has run shows to be too long."""
        order = RunOrder(
            self.configs,
            self.launch_ns,
            self.open_indices,
            max_launch_ns=self.plan.timing_config.max_launch_ms * 1e6,
        )
        for index, failure in order.take_hopeless():
            self.record(index, failure)

    def excuse_kill(self, at: int | str) -> bool:
        """Whether another process's SIGKILL at a config (or in other work: its name) is excused: the first is.

        The second there is, and any after ``_MOST_EXCUSED``: the system ends a child when memory runs out by what a kernel or
        its compiler asks for.
        """
        is_first = at not in self._excused and len(self._excused) < _MOST_EXCUSED
        self._excused.add(at)
        return is_first

    def is_fault(self, index: int) -> bool:
        """Whether a config has ended its process by a fault."""
        recorded = self.outcomes[index]
        return (
            recorded is not None
            and isinstance(recorded[0], Failure)
            and recorded[0].code is FailureCode.DEVICE_FAULT
        )

    def give_up_kernel(self) -> None:
        """The kernel has ended too many processes: none of its other configs is tried."""
        self.record_rest(kernel_given_up(self.num_deaths))

    def give_up_strategies_of(self, index: int, limit: int) -> None:
        """A config has ended its process: if ``limit`` have, those that only its input strategies ask for are given up."""
        self._faults.update(self.configs[index].strategies)
        given_up = given_up_strategies(self._faults, limit)
        failure = strategy_given_up(limit)
        for other in self.open_indices:
            if given_up.issuperset(self.configs[other].strategies):
                self.record(other, failure)

    def fail_whole(self, failure: Failure) -> None:
        """The kernel failed before any config ran: the task becomes its one row."""
        empty = empty_config(
            kernel_id=self.task.kernel.kernel_id,
            device_class=self.task.device_class.name,
            strategy=self.plan.first_strategy,
        )
        self._set_configs((empty,))
        self.record(0, failure)

    def note_build(
        self,
        *,
        options: str,
        log: str,
        seconds: float,
        binary: bytes | None,
        resources: KernelResources | None = None,
    ) -> None:
        """Keep how the kernel was compiled."""
        self.build = Build(
            options=options,
            log=log,
            seconds=seconds,
            binary_sha256=sha256_hex(binary) if binary is not None else None,
            resources=resources,
        )

    def note_sentinel(self, median_ns: float) -> None:
        """Keep a sentinel reading taken before or after this task."""
        reading = SentinelReading(
            device_id=self.device_id, at_us=self.now_us(), median_ns=median_ns
        )
        self.sentinel = (*self.sentinel, reading)

    def result(self, monitor: Monitor | None = None) -> TaskResult:
        """Return the finished task; ``monitor`` says what the device was like while its configs were timed."""
        samples = []
        works = self.works or (None,) * len(self.configs)
        for config, recorded, window_s, work in zip(
            self.configs, self.outcomes, self._windows_s, works, strict=True
        ):
            assert recorded is not None, "asked for the result of an unfinished task"
            outcome, at_us = recorded
            seen = monitor.between(*window_s) if monitor and window_s else None
            samples.append(
                Sample(
                    config=config,
                    outcome=self._judged(outcome, seen),
                    task_attempt=self.lease.attempt,
                    worker_id=self.worker_id,
                    created_at_us=at_us,
                    work=work,
                )
            )
        return TaskResult(
            task_id=self.task.task_id,
            device_class=self.task.device_class.name,
            device_id=self.device_id,
            kernel=replace(self.task.kernel, analysis=self.analysis),
            build=self.build,
            samples=tuple(samples),
            num_planned=len(self.configs),
            sentinel=self.sentinel,
            task_budget_s=self.task_budget_s,
            one_processor=self.one_processor,
        )

    def _set_configs(self, configs: tuple[LaunchConfig, ...]) -> None:
        self.configs = configs
        self.outcomes = [None] * len(configs)
        self.launch_ns = [None] * len(configs)
        self._windows_s = [None] * len(configs)
        self.works = ()
        self._spared = set()

    def _judged(self, outcome: Outcome, seen: Condition | None) -> Outcome:
        """Add to a timing the facts from the kernel's analysis and from the device's monitor."""
        if not isinstance(outcome, Timing):
            return outcome
        if seen is not None:
            outcome = replace(
                outcome,
                sm_clock_mhz=seen.sm_clock_mhz,
                temperature_c=seen.temperature_c,
                throttled=seen.throttled,
            )
        if self.analysis is None:
            return outcome
        checks = replace(outcome.checks, data_dependent=self.analysis.data_dependent)
        return replace(outcome, checks=checks)
