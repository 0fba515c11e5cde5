"""Statistics of a dataset: its contents in numbers that fit on one page.

Owns the numbers of ``llmperf dataset stats``, but not their printing. Streams a few columns, and
checks nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from llmperf_common.failures import OK_STATUS, FailureCode
from llmperf_common.notebook import html_facts
from llmperf_common.store.tables.reader import Dataset, value_counts

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
SHORT_LAUNCH_NS = 10_000.0
"""Time in ns. Of a shorter time the launch itself is a large part, so the statistics report the
share of rows with shorter times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetStats:
    """Counts and shares; ``dataclasses.asdict`` of it is JSON.

    Attributes:
        version: version of the manifest.
        num_samples: number of rows, ok and failed.
        by_status: rows of each status, "ok" among them.
        by_regime: rows of each regime; rows without an NDRange have no regime.
        by_strategy: rows of each ``input_strategy``.
        by_device_class: rows of each device class.
        by_suite: rows of each suite.
        by_activity: tasks by ``kernels.activity``; tasks whose activity is null are left out.
        num_kernels: number of distinct kernels; a kernel on two device classes counts once.
        num_families: number of distinct kernel families.
        num_devices: number of devices in the table ``devices``.
        median_ns_percentiles: percentiles of the ok rows' medians, by number ("50"); empty without
            ok rows. Like the next two fields it leaves out times that are not positive and finite.
        ok_by_decade: ok rows by the power of ten of ``median_ns`` ("4": 10 to 100 µs).
        short_share: ok rows with a median below 10 µs; None without ok rows.
        censored_share: ``over_time_budget`` rows ÷ (``over_time_budget`` + ok rows); None if there
            are no such rows.
        censored_share_by_regime: the same within each regime.
        num_planned_tasks: number of tasks of the plan.
        num_done_tasks: number of tasks with a committed result.
        num_pending_tasks: number of tasks without a committed result.
    """

    version: int
    num_samples: int
    by_status: dict[str, int]
    by_regime: dict[str, int]
    by_strategy: dict[str, int]
    by_device_class: dict[str, int]
    by_suite: dict[str, int]
    by_activity: dict[str, int]
    num_kernels: int
    num_families: int
    num_devices: int
    median_ns_percentiles: dict[str, float]
    ok_by_decade: dict[str, int]
    short_share: float | None
    censored_share: float | None
    censored_share_by_regime: dict[str, float]
    num_planned_tasks: int
    num_done_tasks: int
    num_pending_tasks: int

    def _repr_html_(self) -> str:
        return html_facts(f"dataset version {self.version}", dataclasses.asdict(self))


def dataset_stats(dataset: Dataset) -> DatasetStats:
    """Return the statistics of a dataset. Raises ShardError on a damaged shard."""
    kernels = dataset.kernels(["task_id", "kernel_id", "family_id", "suite", "activity"])
    columns = ["task_id", "status", "regime", "input_strategy", "device_class", "median_ns"]
    counters: dict[str, Counter[str]] = {name: Counter() for name in columns[:-1]}
    outcomes: Counter[tuple[str | None, str]] = Counter()
    medians = [np.empty(0, np.float64)]
    for table in dataset.iter_samples(columns):
        for name, counter in counters.items():
            counter.update(value_counts(table.column(name)))
        outcomes.update(_outcomes_by_regime(table))
        is_ok = pc.equal(table.column("status"), OK_STATUS)
        medians.append(table.column("median_ns").filter(is_ok).drop_null().to_numpy())
    median_ns = _possible(np.concatenate(medians))
    return DatasetStats(
        version=dataset.manifest.version,
        num_samples=dataset.num_samples,
        by_status=_ordered(counters["status"]),
        by_regime=_ordered(counters["regime"]),
        by_strategy=_ordered(counters["input_strategy"]),
        by_device_class=_ordered(counters["device_class"]),
        by_suite=_ordered(_by_suite(kernels, counters["task_id"])),
        by_activity=_ordered(Counter(value_counts(kernels.column("activity")))),
        num_kernels=pc.count_distinct(kernels.column("kernel_id")).as_py(),
        num_families=pc.count_distinct(kernels.column("family_id")).as_py(),
        num_devices=sum(entry.rows for entry in dataset.shards("devices")),
        median_ns_percentiles=_percentiles(median_ns),
        ok_by_decade=_decades(median_ns),
        short_share=float(np.mean(median_ns < SHORT_LAUNCH_NS)) if len(median_ns) else None,
        censored_share=_censored_share(outcomes),
        censored_share_by_regime={
            regime: share
            for regime in sorted(counters["regime"])
            if (share := _censored_share(outcomes, regime)) is not None
        },
        num_planned_tasks=dataset.run.num_tasks,
        num_done_tasks=dataset.num_tasks,
        num_pending_tasks=max(0, dataset.run.num_tasks - dataset.num_tasks),
    )


def _outcomes_by_regime(table: pa.Table) -> dict[tuple[str | None, str], int]:
    groups = table.group_by(["regime", "status"]).aggregate([([], "count_all")]).to_pylist()
    return {(group["regime"], group["status"]): group["count_all"] for group in groups}


def _censored_share(
    outcomes: Mapping[tuple[str | None, str], int], regime: str | None = None
) -> float | None:
    def total(wanted: str) -> int:
        return sum(
            count
            for (label, status), count in outcomes.items()
            if status == wanted and regime in (None, label)
        )

    censored, num_ok = total(FailureCode.OVER_TIME_BUDGET.value), total(OK_STATUS)
    return censored / (censored + num_ok) if censored + num_ok else None


def _by_suite(kernels: pa.Table, rows_by_task: Mapping[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    suites = kernels.column("suite").to_pylist()
    for task, suite in zip(kernels.column("task_id").to_pylist(), suites, strict=True):
        found[suite] += rows_by_task.get(task, 0)
    return found


def _possible(median_ns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the times that a launch can take; a foreign file may have others."""
    return median_ns[(median_ns > 0) & np.isfinite(median_ns)]


def _percentiles(median_ns: npt.NDArray[np.float64]) -> dict[str, float]:
    if not len(median_ns):
        return {}
    values = np.percentile(median_ns, PERCENTILES)
    return {str(p): float(value) for p, value in zip(PERCENTILES, values, strict=True)}


def _decades(median_ns: npt.NDArray[np.float64]) -> dict[str, int]:
    powers, counts = np.unique(np.floor(np.log10(median_ns)).astype(int), return_counts=True)
    return {str(power): int(count) for power, count in zip(powers, counts, strict=True)}


def _ordered(counter: Counter[str]) -> dict[str, int]:
    return dict(counter.most_common())
