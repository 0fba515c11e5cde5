"""Small observers of the loop: one that fans out to several, and the tally for the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from llmperf_common.failures import OK_STATUS, Failure
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import TaskResult
from llmperf_common.store.manifests.manifest import Manifest
from workers.collect.loop_interfaces import LoopObserver
from workers.plan.plan import Task


def statuses_of(results: Sequence[TaskResult]) -> Counter[str]:
    """Count the rows of ``results`` by status."""
    return Counter(
        sample.outcome.code.value if isinstance(sample.outcome, Failure) else OK_STATUS
        for result in results
        for sample in result.samples
    )


class SilentObserver:
    """Ignores every event; subclasses override what they need."""

    def claimed(self, task: Task, lease: Lease) -> None:
        """A task was leased."""

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result, not yet durable."""

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Results are durable."""

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """The ledger did not accept a shard."""

    def published(self, manifest: Manifest) -> None:
        """A manifest lists everything committed so far."""

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost."""


class Tally(SilentObserver):
    """Counts rows by status: those that existed at the start and those committed since."""

    def __init__(self, statuses: Mapping[str, int]) -> None:
        self.statuses = Counter(statuses)

    @property
    def num_failed(self) -> int:
        """Failed rows so far."""
        return sum(count for status, count in self.statuses.items() if status != OK_STATUS)

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Results are durable."""
        del stem, epoch
        self.statuses += statuses_of(results)


class Fanout:
    """Passes everything on to several observers, in order."""

    def __init__(self, observers: Sequence[LoopObserver]) -> None:
        self._observers = tuple(observers)

    def claimed(self, task: Task, lease: Lease) -> None:
        """A task was leased."""
        for observer in self._observers:
            observer.claimed(task, lease)

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result, not yet durable."""
        for observer in self._observers:
            observer.finished(lease, result)

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Results are durable."""
        for observer in self._observers:
            observer.committed(stem, results, epoch)

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """The ledger did not accept a shard."""
        for observer in self._observers:
            observer.refused(stem, stale_tasks)

    def published(self, manifest: Manifest) -> None:
        """A manifest lists everything committed so far."""
        for observer in self._observers:
            observer.published(manifest)

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost."""
        for observer in self._observers:
            observer.lost(tasks, why)
