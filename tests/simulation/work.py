"""The simulated device: tasks that take some simulated time and give a result that no other attempt gives.

Owns the plan, the results and the executor. (epoch, token) names an attempt, so it is the measured time.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from llmperf_common.empty_configs import empty_config
from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import (
    Checks,
    DeviceClass,
    Kernel,
    Sample,
    StopReason,
    Strategy,
    TaskResult,
    Timing,
)
from tests.simulation.scheduler import Scheduler, Violation
from workers.execution.executor import FinishedTask
from workers.plan.plan import Task

PLAN_HASH = "simulated-plan"
DEVICE_ID = "simulated-device"
DEVICE_CLASS = DeviceClass(
    name="sim",
    compute_units=1,
    max_work_group_size=1,
    max_work_item_sizes=(1, 1, 1),
    max_allocation_bytes=1,
    global_memory_bytes=1,
    local_memory_bytes=1,
)
_NO_SIGNATURE = Failure(
    code=FailureCode.UNSUPPORTED, stage=Stage.SIGNATURE, detail="the simulator has no source"
)


@functools.cache
def simulated_task(index: int) -> Task:
    """Return a task of the plan; its id is ``t0``, ``t1``, ..."""
    kernel = Kernel(
        kernel_id=f"k{index}",
        name=f"kernel_{index}",
        source="",
        source_sha256="0" * 64,
        path="simulated.cl",
        suite="simulation",
        family_id=f"k{index}",
        build_options="",
        signature=None,
        failure=_NO_SIGNATURE,
    )
    return Task(index=index, task_id=f"t{index}", kernel=kernel, device_class=DEVICE_CLASS)


@functools.cache
def simulated_result(index: int, epoch: int, token: int) -> TaskResult:
    """Return what the attempt under this lease measures; every attempt measures another time."""
    task = simulated_task(index)
    median_ns = float(epoch * 100_000 + token)
    timing = Timing(
        time_ns=(median_ns,),
        first_ns=median_ns,
        cold_ns=(),
        launches_per_reading=1,
        stop_reason=StopReason.FIXED,
        checks=Checks(),
    )
    config = empty_config(
        kernel_id=task.kernel.kernel_id, device_class=DEVICE_CLASS.name, strategy=Strategy.SIMPLE
    )
    config = replace(config, global_size=(1,), local_size=(1,))
    sample = Sample(
        config=config, outcome=timing, task_attempt=1, worker_id="sim/0", created_at_us=0
    )
    return TaskResult(
        task_id=task.task_id,
        device_class=DEVICE_CLASS.name,
        device_id=DEVICE_ID,
        kernel=task.kernel,
        build=None,
        samples=(sample,),
        num_planned=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimPlan:
    """The tasks of a schedule."""

    num_tasks: int
    plan_hash: str = PLAN_HASH

    def task(self, index: int) -> Task:
        """The task at an index."""
        return simulated_task(index)

    @property
    def task_ids(self) -> Sequence[str]:
        """All task ids."""
        return tuple(f"t{index}" for index in range(self.num_tasks))


def index_of(task_id: str) -> int:
    """Return a task's index in the plan."""
    return int(task_id[1:])


class SimExecutor:
    """A ``TaskExecutor`` that runs one task after the other, each for its duration."""

    def __init__(
        self, scheduler: Scheduler, *, claim_ahead: int, durations_s: Sequence[float]
    ) -> None:
        self._scheduler = scheduler
        self._claim_ahead = claim_ahead
        self._durations_s = durations_s
        self._queue: list[Lease] = []
        self._ends_s: float | None = None

    def num_wanted(self) -> int:
        """How many more tasks it would take now."""
        return self._claim_ahead - len(self._queue)

    def submit(self, task: Task, lease: Lease) -> None:
        """Take a task."""
        if any(other.task == lease.task for other in self._queue):
            raise Violation("task given twice to one executor", task.task_id)
        self._queue.append(lease)

    def poll(self, timeout_s: float) -> list[FinishedTask]:
        """Work for ``timeout_s`` or until a task ends; return it."""
        now_s = self._scheduler.now_s
        if self._queue and self._ends_s is None:
            self._ends_s = now_s + self._durations_s[self._queue[0].task]
        ends_s = self._ends_s
        wait_s = timeout_s if ends_s is None else min(timeout_s, max(0.0, ends_s - now_s))
        self._scheduler.sleep(wait_s, f"work on {[lease.task for lease in self._queue[:1]]}")
        if ends_s is None or self._scheduler.now_s < ends_s:
            return []
        lease = self._queue.pop(0)
        self._ends_s = None
        return [
            FinishedTask(lease=lease, result=simulated_result(lease.task, lease.epoch, lease.token))
        ]

    def leases(self) -> list[Lease]:
        """The leases of all tasks taken and not yet returned."""
        return list(self._queue)

    def abandon(self, tasks: Collection[int]) -> None:
        """Drop these tasks at once."""
        if self._queue and self._queue[0].task in tasks:
            self._ends_s = None
        self._queue = [lease for lease in self._queue if lease.task not in tasks]

    def abandon_waiting(self) -> list[Lease]:
        """Drop the tasks not yet begun and return their leases."""
        begun = 1 if self._ends_s is not None else 0
        waiting, self._queue = self._queue[begun:], self._queue[:begun]
        return waiting

    def close(self) -> None:
        """Nothing to end."""
