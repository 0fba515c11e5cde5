"""The summary of a run: what the dataset holds, compared with what the plan asks for.

Owns the assertion ``planned == ok + failed + pending``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.analysis import Analysis
from llmperf_common.failures import OK_STATUS
from llmperf_common.notebook import html_facts
from llmperf_common.records import Device, SentinelReading
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.tables.analysis_rows import ANALYSIS_COLUMNS, analysis_from_row
from llmperf_common.store.tables.noise import NOISE_COLUMNS, Noise, noise_of, relative_iqrs
from llmperf_common.store.tables.reader import (
    Dataset,
    conform,
    open_dataset,
    project,
    read_columns,
    value_counts,
)
from llmperf_common.store.tables.sample_keys import id_keys, join_keys
from llmperf_common.store.tables.shard import read_footer
from workers.collect.loop_interfaces import EndReason
from workers.plan.plan import Plan
from workers.plan.task_index import first_pending

_MAX_TASKS_COUNTED = 2000
"""Maximum number of tasks whose planned configs are drawn and counted, which takes milliseconds per
task. Each further pending task counts as ``samples_per_kernel`` configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSummary:
    """How a run ended; ``num_planned == num_ok + num_failed + num_pending`` is asserted.

    Attributes:
        stop_reason: ``complete``, ``interrupted``, ``time_is_up`` or ``too_many_failures``.
        num_planned: launch configs of the plan.
        num_ok: launch configs with a time, including those from earlier starts of the same run.
        num_failed: launch configs with a failure code.
        num_pending: launch configs without a result yet.
        num_tasks: tasks of the plan; a task is one kernel on one device class.
        num_tasks_done: tasks with a result.
        failures_by_code: failed launch configs by failure code.
        devices: the devices of this start.
        plan_hash: identity of the plan.
        seconds: wall time of this start.
        num_dropped: tasks that had finished in this start when the ledger was lost, and are
            not committed since; a rebuild of the ledger may have adopted their results.
    """

    stop_reason: EndReason
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
    noise: Noise
    num_dropped: int = 0

    def __post_init__(self) -> None:
        if self.num_planned != self.num_ok + self.num_failed + self.num_pending:
            raise AssertionError(f"rows were lost or doubled: {self}")

    def _repr_html_(self) -> str:
        return html_facts(
            f"collect: {self.stop_reason.value.replace('_', ' ')}",
            {
                "devices": ", ".join(dict.fromkeys(device.name for device in self.devices)),
                "tasks": f"{self.num_tasks_done:,} of {self.num_tasks:,}",
                "launch configs planned": self.num_planned,
                "ok": self.num_ok,
                "failed": self.num_failed,
                "failed by code": self.failures_by_code,
                "pending": self.num_pending,
                "seconds": round(self.seconds, 1),
                "plan": self.plan_hash,
            },
        )


def summarise(
    fs: Filesystem,
    plan: Plan,
    devices: Sequence[Device],
    reason: EndReason,
    *,
    seconds: float,
    num_dropped: int = 0,
) -> CollectSummary:
    """Count what the dataset holds, and what is missing from the plan.

    Raises:
        StoreError: The dataset holds a task twice, or a shard cannot be read.
    """
    dataset = open_dataset(fs)
    done = _finished(dataset)
    num_rows = dataset.manifest.num_tasks
    if num_rows > len(done):  # written by an older version with an outdated ledger
        raise StoreError(
            f"{fs.describe()} holds {num_rows - len(done)} results twice: run "
            f"`llmperf dataset repair {fs.describe()}`, then the same command again"
        )
    num_pending_tasks = max(0, plan.num_tasks - len(done))
    counted = min(num_pending_tasks, _MAX_TASKS_COUNTED)
    num_pending = sum(map(plan.num_samples, first_pending(plan, done, limit=counted)))
    num_pending += plan.plan_config.samples_per_kernel * (num_pending_tasks - counted)
    first = [plan.task(index) for index in range(min(plan.num_tasks, _MAX_TASKS_COUNTED))]
    statuses, rows, noise = _count_rows(dataset, [task.task_id for task in first])
    full = plan.plan_config.samples_per_kernel
    # A task has at most `full` configs. So only tasks with fewer rows have their configs drawn.
    odd = [task for task in first if rows.get(task.task_id, full) != full]
    analyses = _analyses(dataset, [task.task_id for task in odd])
    num_planned = dataset.num_samples + num_pending
    for task in odd:
        num_planned += plan.num_samples(task, analyses[task.task_id]) - rows[task.task_id]
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
        noise=noise,
        num_dropped=min(num_dropped, num_pending_tasks),
    )


def _finished(dataset: Dataset) -> npt.NDArray[np.uint64]:
    """Return the first 16 hex digits of the id of each task with a result, as sorted uint64."""
    tables = dataset.iter_table("kernels", ["task_id"])
    return np.unique(join_keys([id_keys(table.column("task_id")) for table in tables]).high)


def _count_rows(
    dataset: Dataset, tasks: Sequence[str]
) -> tuple[dict[str, int], Counter[str], Noise]:
    """Return the rows by status, the rows of each of ``tasks``, and the noise of the readings.

    The counts of ``tasks`` leave out rows without a launch config: a kernel that failed before its
    first launch config has one such row. Each shard is read only once, because the store may be far
    away.
    """
    statuses: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    wanted = pa.array(tasks, pa.string())
    ratios = [np.empty(0, np.float32)]
    sentinel: list[SentinelReading] = []
    columns = project("samples", ["task_id", "global_size", *NOISE_COLUMNS])
    for entry in dataset.shards("samples"):
        data = dataset.shard_bytes(entry)
        table = conform(read_columns(data, entry.name, columns.names), columns)
        ratios.append(relative_iqrs(table))
        sentinel += read_footer(data, entry.name).sentinel
        statuses.update(value_counts(table.column("status")))
        has_config = pc.greater(pc.list_value_length(table.column("global_size")), 0)
        is_wanted = pc.is_in(table.column("task_id"), value_set=wanted)
        rows.update(value_counts(table.column("task_id").filter(pc.and_(has_config, is_wanted))))
    noise = noise_of(np.concatenate(ratios), sentinel)
    return dict(statuses.most_common()), rows, noise


def _analyses(dataset: Dataset, tasks: Collection[str]) -> dict[str, Analysis | None]:
    """Return the analysis of each of ``tasks``; None where the kernel was not analysed."""
    if not tasks:
        return {}
    wanted = pa.array(list(tasks), pa.string())
    return {
        row["task_id"]: analysis_from_row(row)
        for table in dataset.iter_table("kernels", ["task_id", *ANALYSIS_COLUMNS])
        for row in table.filter(pc.is_in(table.column("task_id"), value_set=wanted)).to_pylist()
    }
