"""The loop's interfaces (except ledger, store and executor), and the reasons why a loop ends."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from llmperf_common.ledger.protocol import Lease, Ledger
from llmperf_common.records import TaskResult
from llmperf_common.store.manifests.manifest import Manifest
from workers.plan.plan import Task


class EndReason(StrEnum):
    """Why a collecting loop ended (``records.StopReason``: why the readings of a config ended)."""

    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    TIME_IS_UP = "time_is_up"
    TOO_MANY_FAILURES = "too_many_failures"


class LoopObserver(Protocol):
    """Observes events of the loop; decides nothing."""

    def claimed(self, task: Task, lease: Lease) -> None:
        """A task was leased."""
        ...

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result, not yet durable."""
        ...

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Results are durable."""
        ...

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """The ledger did not accept a shard, because another holder had leased these tasks."""
        ...

    def published(self, manifest: Manifest) -> None:
        """A manifest lists everything committed so far."""
        ...

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost and their work dropped."""
        ...


class Heartbeat(Protocol):
    """Sends a worker's reports to a ledger at intervals; never raises."""

    def tell(self, ledger: Ledger, *, is_last: bool = False) -> None:
        """Send a report if one is due; with ``is_last`` send it in any case."""
        ...


class TaskSource(Protocol):
    """The part of the plan that the loop needs."""

    @property
    def plan_hash(self) -> str:
        """Identity of the plan."""
        ...

    def task(self, index: int) -> Task:
        """Return the task at an index."""
        ...
