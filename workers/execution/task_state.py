"""The outcomes of one task's configs; configs that are not reached get an outcome, too.

Owns the table of outcomes of a task and its conversion into a ``TaskResult``. Pure: this module
starts no processes, and the clock is an argument.
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
from workers.device.nvidia.monitor import Condition, Monitor
from workers.execution.death_rules import given_up_strategies, kernel_given_up, strategy_given_up
from workers.measure.run_order import RunOrder
from workers.measure.task_trace import TaskTrace
from workers.plan.plan import Plan, Task

_MOST_EXCUSED = 8
"""Maximum number of kills by other processes that are not charged to a task."""


@dataclass(slots=True, kw_only=True, eq=False)
class TaskState:
    """A task in hand. ``outcomes[i]`` is None until config i has an outcome.

    ``configs`` is empty until ``plan_by`` is called, unless the configs can be planned at once.
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
    """For each config, the shortest known time of a launch in ns, even if it was too long."""
    analysis: Analysis | None = field(init=False)
    build: Build | None = None
    num_deaths: int = 0
    num_analysis_attempts: int = 0
    analysed: Analysis | None = None
    """The analysis that the analysis child has sent, before the child chooses inputs."""
    needs_padding: bool = True
    """Whether buffers need padding; False if each config seems to stay in its own buffers."""
    awaits_ranges: bool = False
    """Whether the device must not run the task before its access ranges are known."""
    num_compile_attempts: int = 0
    works: tuple[Work | Failure, ...] = ()
    """What each config executes, or why that is not known; empty if work is not counted."""
    sentinel: tuple[SentinelReading, ...] = ()
    task_budget_s: float | None = None
    one_processor: bool | None = None
    """Whether all children of the task launched from the reserved processor; None: no child."""
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
        """Whether the launch configs are known."""
        return bool(self.configs)

    @property
    def is_complete(self) -> bool:
        """Whether every config has an outcome."""
        return self.is_planned and all(self.outcomes)

    def plan_by(self, analysis: Analysis) -> None:
        """Keep the analysis of the kernel's memory and plan the launch configs by it."""
        self.analysis = analysis
        self._set_configs(self.plan.configs(self.task, analysis))

    @property
    def open_indices(self) -> tuple[int, ...]:
        """The indices of the configs without an outcome."""
        return tuple(index for index, outcome in enumerate(self.outcomes) if outcome is None)

    @property
    def has_outcomes(self) -> bool:
        """Whether any config has an outcome from the device."""
        return any(
            outcome for index, outcome in enumerate(self.outcomes) if index not in self._spared
        )

    @property
    def check_indices(self) -> tuple[int, ...]:
        """Indices of the configs with payload checks: smallest, largest, and one other by hash."""
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
        """Set the outcome of one config; a later call, such as for a death, replaces the outcome.

        ``window_s``: begin and end of the config's timing, in seconds of the monotonic clock.
        """
        self.outcomes[index] = (outcome, self.now_us())
        self.launch_ns[index] = launch_ns
        self._windows_s[index] = window_s

    def spare(self, index: int, failure: Failure) -> None:
        """Give a config an outcome before the task reaches the device, so it is not launched."""
        self._spared.add(index)
        self.record(index, failure)

    def record_rest(self, failure: Failure) -> None:
        """Set ``failure`` as the outcome of every config that has none yet."""
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self.record(index, failure)

    def give_up_hopeless(self) -> None:
        """Give up the open configs that would take too long, judged by configs that have run."""
        order = RunOrder(
            self.configs,
            self.launch_ns,
            self.open_indices,
            max_launch_ns=self.plan.timing_config.max_launch_ms * 1e6,
        )
        for index, failure in order.take_hopeless():
            self.record(index, failure)

    def excuse_kill(self, at: int | str) -> bool:
        """Whether another process's SIGKILL is excused.

        Only the first kill in each place is excused, and at most ``_MOST_EXCUSED`` kills of a task,
        because the system also kills a child if a kernel or its compiler uses up the memory.

        Args:
            at: the index of the config in which the child was killed, or the name of other work.
        """
        is_first = at not in self._excused and len(self._excused) < _MOST_EXCUSED
        self._excused.add(at)
        return is_first

    def is_fault(self, index: int) -> bool:
        """Whether a fault of this config has ended its process."""
        recorded = self.outcomes[index]
        return (
            recorded is not None
            and isinstance(recorded[0], Failure)
            and recorded[0].code is FailureCode.DEVICE_FAULT
        )

    def give_up_kernel(self) -> None:
        """Fail the open configs, because the kernel has ended too many processes."""
        self.record_rest(kernel_given_up(self.num_deaths))

    def give_up_strategies_of(self, index: int, limit: int) -> None:
        """Count a config's fault; give up configs whose strategies all have ``limit`` faults."""
        self._faults.update(self.configs[index].strategies)
        given_up = given_up_strategies(self._faults, limit)
        failure = strategy_given_up(limit)
        for other in self.open_indices:
            if given_up.issuperset(self.configs[other].strategies):
                self.record(other, failure)

    def fail_whole(self, failure: Failure) -> None:
        """Replace the configs by one failed row: the kernel failed before any config ran."""
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
        """Keep the options, log and result of the build."""
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
        """Return the finished task.

        ``monitor``: has the device's clocks and temperatures from the time when the task's configs
        ran; None if the device has no monitor.
        """
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
        """Return a timing with the device's state (``seen``) and whether it is data-dependent."""
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
