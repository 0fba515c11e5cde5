"""One task on its way: which configs have an outcome, and what the rest become when it ends early.

Owns the table of outcomes of a task and how it turns into a ``TaskResult``. Pure: no children, no clock but the
one it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ids import sha256_hex
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import (
    Build,
    LaunchConfig,
    Outcome,
    Sample,
    SentinelReading,
    TaskResult,
    empty_config,
)
from workers.plan import Task


@dataclass(slots=True, kw_only=True)
class TaskState:
    """A task in hand. ``outcomes[i]`` is None until config i has one."""

    task: Task
    lease: Lease
    configs: tuple[LaunchConfig, ...]
    device_id: str
    worker_id: str
    now_us: Callable[[], int]
    outcomes: list[tuple[Outcome, int] | None] = field(init=False)
    build: Build | None = None
    num_deaths: int = 0
    num_compile_attempts: int = 0
    started_s: float | None = None
    sentinel: tuple[SentinelReading, ...] = ()

    def __post_init__(self) -> None:
        self.outcomes = [None] * len(self.configs)

    @property
    def is_complete(self) -> bool:
        """Whether every config has an outcome."""
        return all(self.outcomes)

    @property
    def next_index(self) -> int:
        """Index of the first config without an outcome."""
        return self.outcomes.index(None)

    @property
    def check_indices(self) -> tuple[int, ...]:
        """The smallest and the largest config: there the payload is checked."""
        by_size = sorted(
            range(len(self.configs)),
            key=lambda index: (
                self.configs[index].num_work_groups,
                self.configs[index].global_size,
                index,
            ),
        )
        return tuple(sorted({by_size[0], by_size[-1]}))

    def record(self, index: int, outcome: Outcome) -> None:
        """Set the outcome of one config; a later one replaces it (a death after the result)."""
        self.outcomes[index] = (outcome, self.now_us())

    def record_rest(self, failure: Failure) -> None:
        """Give every config that has no outcome yet this failure."""
        for index, outcome in enumerate(self.outcomes):
            if outcome is None:
                self.record(index, failure)

    def fail_whole(self, failure: Failure) -> None:
        """The kernel failed before any config ran: the task becomes its one row."""
        empty = empty_config(
            kernel_id=self.task.kernel.kernel_id,
            device_class=self.task.device_class.name,
            strategy=self.configs[0].strategies[0],
        )
        self.configs = (empty,)
        self.outcomes = [(failure, self.now_us())]

    def note_build(self, *, options: str, log: str, seconds: float, binary: bytes | None) -> None:
        """Keep how the kernel was compiled."""
        self.build = Build(
            options=options,
            log=log,
            seconds=seconds,
            binary_sha256=sha256_hex(binary) if binary is not None else None,
        )

    def note_sentinel(self, median_ns: float) -> None:
        """Keep a sentinel reading taken after this task."""
        reading = SentinelReading(
            device_id=self.device_id, at_us=self.now_us(), median_ns=median_ns
        )
        self.sentinel = (*self.sentinel, reading)

    def result(self) -> TaskResult:
        """Return the finished task."""
        samples = []
        for config, recorded in zip(self.configs, self.outcomes, strict=True):
            assert recorded is not None, "asked for the result of an unfinished task"
            outcome, at_us = recorded
            samples.append(
                Sample(
                    config=config,
                    outcome=outcome,
                    task_attempt=self.lease.attempt,
                    worker_id=self.worker_id,
                    created_at_us=at_us,
                )
            )
        return TaskResult(
            task_id=self.task.task_id,
            device_class=self.task.device_class.name,
            device_id=self.device_id,
            kernel=self.task.kernel,
            build=self.build,
            samples=tuple(samples),
            num_planned=len(self.configs),
            sentinel=self.sentinel,
        )


def quarantined(num_deaths: int) -> Failure:
    """Return the failure of configs not tried because the kernel keeps killing its child."""
    return Failure(
        code=FailureCode.QUARANTINED,
        stage=Stage.LAUNCH,
        detail=f"not tried: the kernel had ended {num_deaths} processes",
    )
