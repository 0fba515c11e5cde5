"""The ledger protocol: leases with fencing tokens, and commits that happen once.

Owns the types and the promises; every implementation passes the contract suite in
``tests/support/ledger_contract.py``. Tasks are numbered by their index in the plan, so a ledger stores
only what was touched, never the plan itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llmperf_common.errors import LlmperfError
from llmperf_common.store.manifests.manifest import ShardEntry


class LedgerLostError(Exception):
    """The ledger was replaced or wiped: attach again before going on."""


class LedgerAwayError(LlmperfError):
    """The ledger cannot be reached just now; what was asked may have happened or not. Ask again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One worker process, so that its leases are free as soon as it is dead.

    ``boot_id`` names the boot of its host and the namespace of its pids; with ``pid`` and ``start_ticks`` (clock ticks after boot) it names the
    process for ever: a recycled pid has another start.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on one task until it expires; a higher token makes a lower one worthless.

    ``attempt`` counts how often the task has been claimed in this epoch, this time included.
    """

    task: int
    epoch: int
    token: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Committed:
    """All tasks of the commit are now bound to its shards, for ever."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was recorded, because these tasks' tokens are stale (claimed by another, or committed)."""

    stale_tasks: tuple[int, ...]


CommitOutcome = Committed | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """How far a range of tasks is: ``done`` are committed, ``leased`` are held by live leases."""

    done: int
    leased: int
    total: int


SILENT_LIMIT_S = 86_400.0
"""Seconds: the heartbeat of a worker that was silent for so long may be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a worker last told of itself: its JSON ``document``, ``age_s`` seconds ago by the ledger's clock."""

    worker: str
    age_s: float
    document: str


class Ledger(Protocol):
    """The one truth while a run goes on. Every method is atomic, and durable when it returns.

    Every method may raise ``LedgerLostError``, and ``LedgerAwayError`` where the ledger is not a file.
    """

    @property
    def epoch(self) -> int:
        """The epoch this ledger was built in; a rebuilt one has a higher epoch."""
        ...

    def claim(self, *, holder: Holder, tasks: range, limit: int, ttl_s: float) -> list[Lease]:
        """Lease up to ``limit`` tasks of ``tasks``: expired or dead holders' first, then in plan order."""
        ...

    def renew(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease]:
        """Extend ``leases``; returns those still held (an expired one that no other holder took counts)."""
        ...

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back; stale ones are ignored."""
        ...

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind all tasks of ``leases`` to ``shards`` or, if one token is stale, none.

        A commit that already happened (its shards are recorded) is ``Committed`` again, so an answer that got
        lost can be asked for once more.
        """
        ...

    def unpublished(self) -> list[ShardEntry]:
        """Return the committed shards that no manifest is known to list."""
        ...

    def shards(self) -> list[ShardEntry]:
        """Return all shards that were ever recorded here, published or not."""
        ...

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that no recorded shard has."""
        ...

    def mark_published(self, names: Sequence[str]) -> None:
        """Note that a manifest lists these shards."""
        ...

    def elect_publisher(self, *, holder: Holder, ttl_s: float) -> bool:
        """Return whether ``holder`` is the publisher for the next ``ttl_s``."""
        ...

    def counts(self, tasks: range) -> TaskCounts:
        """Count the tasks of a range by state."""
        ...

    def report(self, worker: str, document: str) -> None:
        """Put a worker's own JSON document, at most about 2 KB, in place of its last one: a heartbeat.

        For people who look: nothing is decided by it, and it need not survive a power cut.
        """
        ...

    def workers(self) -> list[WorkerReport]:
        """Return the last heartbeats, ordered by worker; a worker that was silent for ``SILENT_LIMIT_S`` may be missing."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...
