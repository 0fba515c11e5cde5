"""The interface through which the loop runs tasks: submit, poll, abandon, close.

Owns only the protocol. ``pipeline.py`` runs tasks in children on a device; the executor of the
simulator runs on an injected clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import TaskResult
from workers.plan.plan import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """A task's result and the lease under which it was made."""

    lease: Lease
    result: TaskResult


class TaskExecutor(Protocol):
    """Runs tasks; one owner, single-threaded."""

    def num_wanted(self) -> int:
        """Return how many more tasks the executor would take now."""
        ...

    def submit(self, task: Task, lease: Lease) -> None:
        """Take a task and its lease."""
        ...

    def poll(self, timeout_s: float) -> list[FinishedTask]:
        """Work for at most about ``timeout_s`` seconds; return the tasks that finished."""
        ...

    def leases(self) -> list[Lease]:
        """Return the leases of all tasks that were submitted and not yet returned."""
        ...

    def abandon(self, tasks: Collection[int]) -> None:
        """Drop these tasks at once, even if they are running, because their leases are lost."""
        ...

    def abandon_waiting(self) -> list[Lease]:
        """Drop the tasks not yet begun and return their leases; the tasks in hand go on."""
        ...

    def close(self) -> None:
        """End every child."""
        ...
