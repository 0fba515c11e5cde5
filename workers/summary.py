"""How a run stands or has ended: what the dataset holds against what the plan wants.

Owns the count ``planned == ok + failed + pending``, which is asserted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from llmperf_common.analysis import Analysis
from llmperf_common.failures import OK_STATUS
from llmperf_common.records import Device
from llmperf_common.store.analysis_rows import ANALYSIS_COLUMNS, analysis_from_row
from llmperf_common.store.filesystem import Filesystem
from llmperf_common.store.reader import Dataset, open_dataset
from workers.loop import StopReason
from workers.plan import Plan

_MAX_TASKS_COUNTED = 2000
"""Drawing a task's configs takes milliseconds: the plan's count is held against the dataset for so many tasks,
and beyond so many pending ones ``samples_per_kernel`` stands for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSummary:
    """How a run ended; ``num_planned == num_ok + num_failed + num_pending`` is asserted."""

    stop_reason: StopReason
    num_planned: int
    num_ok: int
    num_failed: int
    num_pending: int
    num_tasks: int
    num_tasks_done: int
    failures_by_code: dict[str, int]
    devices: tuple[Device, ...]
    plan_hash: str
    seconds: float

    def __post_init__(self) -> None:
        if self.num_planned != self.num_ok + self.num_failed + self.num_pending:
            raise AssertionError(f"rows were lost or doubled: {self}")


def summarise(
    fs: Filesystem, plan: Plan, devices: Sequence[Device], reason: StopReason, *, seconds: float
) -> CollectSummary:
    """Count what the dataset holds against what the plan wants."""
    dataset = open_dataset(fs)
    statuses = dataset.status_counts()
    done = _analyses(dataset)
    rows = _rows_with_config(dataset)
    pending = [t for t in map(plan.task, range(plan.num_tasks)) if t.task_id not in done]
    num_pending = sum(map(plan.num_samples, pending[:_MAX_TASKS_COUNTED]))
    num_pending += plan.plan_config.samples_per_kernel * len(pending[_MAX_TASKS_COUNTED:])
    num_planned = dataset.num_samples + num_pending
    full = plan.plan_config.samples_per_kernel
    for task in map(plan.task, range(min(plan.num_tasks, _MAX_TASKS_COUNTED))):
        # No plan gives more: only a task with fewer rows is worth the drawing of its configs.
        if rows.get(task.task_id, full) != full:
            num_planned += plan.num_samples(task, done[task.task_id]) - rows[task.task_id]
    num_ok = statuses.pop(OK_STATUS, 0)
    return CollectSummary(
        stop_reason=reason,
        num_planned=num_planned,
        num_ok=num_ok,
        num_failed=sum(statuses.values()),
        num_pending=num_pending,
        num_tasks=plan.num_tasks,
        num_tasks_done=len(done),
        failures_by_code=statuses,
        devices=tuple(devices),
        plan_hash=plan.plan_hash,
        seconds=seconds,
    )


def _analyses(dataset: Dataset) -> dict[str, Analysis | None]:
    """Return the analysis of each finished task, by task id; None where the kernel was not analysed."""
    columns = ["task_id", *ANALYSIS_COLUMNS]
    return {
        row["task_id"]: analysis_from_row(row)
        for table in dataset.iter_table("kernels", columns)
        for row in table.to_pylist()
    }


def _rows_with_config(dataset: Dataset) -> Counter[str]:
    """Return each task's rows that have a launch config; a kernel that failed before has one without."""
    found: Counter[str] = Counter()
    for table in dataset.iter_samples(["task_id", "global_size"]):
        has_config = pc.greater(pc.list_value_length(table.column("global_size")), 0)
        found.update(table.filter(has_config).column("task_id").to_pylist())
    return found
