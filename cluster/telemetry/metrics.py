"""The metrics of an actor: names, meanings, and how the actor's loop and reports set them.

Owns the table of metrics and the observer that sets them. A ``Meter`` exports them: Ray's agent
(``ray/runtime.py``) or, in tests, a dictionary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import TaskResult
from workers.collect.observers import SilentObserver, statuses_of
from workers.collect.self_report import WorkerState

TAGS = ("seat", "node", "device_class")
"""The tags of every metric."""
_BOUNDARIES_S = (
    0.0005,
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class MetricKind(StrEnum):
    """The kinds of metrics in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric; ``tags`` are those that it has in addition to ``TAGS``."""

    name: str
    kind: MetricKind
    meaning: str
    tags: tuple[str, ...] = ()
    boundaries: tuple[float, ...] = ()


SAMPLES = Metric(
    name="llmperf_samples",
    kind=MetricKind.COUNTER,
    meaning="Rows committed since the actor began, by status: ok or a failure code.",
    tags=("status",),
)
TASKS_DONE = Metric(
    name="llmperf_tasks_done",
    kind=MetricKind.COUNTER,
    meaning="Tasks committed since the actor began.",
)
TASKS_IN_HAND = Metric(
    name="llmperf_tasks_in_hand",
    kind=MetricKind.GAUGE,
    meaning="Tasks that the actor has leased and that have no result yet.",
)
OK_RATE = Metric(
    name="llmperf_ok_samples_per_second",
    kind=MetricKind.GAUGE,
    meaning="Ok rows per second, over the last minute.",
)
BUSY_SHARE = Metric(
    name="llmperf_device_busy_share",
    kind=MetricKind.GAUGE,
    meaning="Share of time in which a kernel ran, 0 to 1, by NVML; not set for other devices.",
)
TEMPERATURE = Metric(
    name="llmperf_device_temperature_celsius",
    kind=MetricKind.GAUGE,
    meaning="Temperature of the GPU by NVML; not set for other devices.",
)
THROTTLED_SHARE = Metric(
    name="llmperf_device_throttled_share",
    kind=MetricKind.GAUGE,
    meaning="Share of the last 500 samples that were throttled; not set where it is not measured.",
)
STATE = Metric(
    name="llmperf_worker_state",
    kind=MetricKind.GAUGE,
    meaning="1 for the state of the actor (collecting, ended, drained or failed), 0 for each other "
    "state.",
    tags=("state",),
)
SEAT_STATE = Metric(
    name="llmperf_seat_state",
    kind=MetricKind.GAUGE,
    meaning="From the driver, which outlives its actors: 1 for the state of the slot "
    "(waiting, running, paused, done, drained or gone), 0 for each other state.",
    tags=("state",),
)
LEDGER_SECONDS = Metric(
    name="llmperf_ledger_seconds",
    kind=MetricKind.HISTOGRAM,
    meaning="Length of one call of the ledger with its round trip, in seconds; by call.",
    tags=("call",),
    boundaries=_BOUNDARIES_S,
)
COMMIT_SECONDS = Metric(
    name="llmperf_commit_seconds",
    kind=MetricKind.HISTOGRAM,
    meaning="From a task's result until it is durable, in seconds: the time to wait for its shard, "
    "write it and record it.",
    boundaries=_BOUNDARIES_S,
)
METRICS = (
    SAMPLES,
    TASKS_DONE,
    TASKS_IN_HAND,
    OK_RATE,
    BUSY_SHARE,
    TEMPERATURE,
    THROTTLED_SHARE,
    STATE,
    SEAT_STATE,
    LEDGER_SECONDS,
    COMMIT_SECONDS,
)


class Meter(Protocol):
    """Exports values; its methods neither raise nor wait."""

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Increase a counter."""
        ...

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge."""
        ...

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        ...


class SilentMeter:
    """Discards all values."""

    def add(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Increase a counter."""

    def set(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Set a gauge."""

    def observe(self, metric: Metric, value: float, tags: Mapping[str, str]) -> None:
        """Add a value to a histogram."""


class MetricsObserver(SilentObserver):
    """Sets a meter's metrics from the events of one actor's loop.

    Args:
        meter: exports the values.
        tags: tags that are attached to every value.
        clock_s: returns monotonic seconds.
    """

    def __init__(
        self,
        meter: Meter,
        tags: Mapping[str, str],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meter = meter
        self._tags = dict(tags)
        self._clock_s = clock_s
        self._finished_s: dict[str, float] = {}

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """Note when a task got its result."""
        del lease
        self._finished_s[result.task_id] = self._clock_s()

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Count durable rows and tasks, and the time since each task's result."""
        del stem, epoch
        now_s = self._clock_s()
        for status, count in statuses_of(results).items():
            self._meter.add(SAMPLES, count, {**self._tags, "status": status})
        self._meter.add(TASKS_DONE, len(results), self._tags)
        for result in results:
            began_s = self._finished_s.pop(result.task_id, None)
            if began_s is not None:
                self._meter.observe(COMMIT_SECONDS, now_s - began_s, self._tags)

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Forget the times of all results, because some of their tasks are lost."""
        del tasks, why
        self._finished_s.clear()  # also of kept tasks, whose time to commit is then not reported

    def ledger_called(self, call: str, seconds: float) -> None:
        """Add the time of one call of the ledger."""
        self._meter.observe(LEDGER_SECONDS, seconds, {**self._tags, "call": call})

    def heard(self, document: Mapping[str, Any]) -> None:
        """Set the gauges from the worker's report."""
        gauges = (
            (TASKS_IN_HAND, "tasks_in_hand"),
            (OK_RATE, "ok_per_s"),
            (BUSY_SHARE, "busy_share"),
            (TEMPERATURE, "temperature_c"),
            (THROTTLED_SHARE, "throttled_share"),
        )
        for metric, key in gauges:
            if document[key] is not None:
                self._meter.set(metric, float(document[key]), self._tags)
        for state in WorkerState:
            is_it = float(document["state"] == state.value)
            self._meter.set(STATE, is_it, {**self._tags, "state": state.value})
