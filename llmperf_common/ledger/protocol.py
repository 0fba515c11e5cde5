"""The ledger protocol: leases with fencing tokens, and commits that happen once.

Owns the types and the guarantees; every implementation passes the contract suite in
``tests/support/contracts/ledger_contract.py``. Tasks are numbered by their index in the plan, so a ledger
stores only the tasks that were claimed, never the plan itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llmperf_common.errors import LlmperfError
from llmperf_common.store.manifests.manifest import ShardEntry


class LedgerLostError(Exception):
    """The ledger was replaced or wiped: the caller must attach (open or rebuild a ledger) again."""


class LedgerAwayError(LlmperfError):
    """The ledger cannot be reached now.

    The request may or may not have been carried out: ask again later.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One worker process, identified so that its leases are free as soon as the process is dead.

    ``boot_id`` names the boot of the process's host and its pid namespace. Together with ``pid``
    and ``start_ticks`` (clock ticks after boot) it is unique for ever: a reused pid has another
    start time.
    """

    host: str
    boot_id: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on one task until it expires; a higher token makes a lower one stale.

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
    """Nothing was recorded, because the tokens of these tasks are stale.

    Another holder has claimed the tasks, or they are committed.
    """

    stale_tasks: tuple[int, ...]


CommitOutcome = Committed | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """The states of a range of tasks: ``done`` are committed, ``leased`` have live leases."""

    done: int
    leased: int
    total: int


LONGEST_STAY = 2
"""Number of TTLs from now after which no live lease can end. A lease that ends later was granted
before the ledger's clock was set back. It counts as expired, because its holder may be dead; a live
holder soon renews it. The number is two, not one, so that small corrections of the clock take no
lease from its holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The live leases of one holder (``HOST/PID``): how many, and when the last of them ends."""

    holder: str
    num_tasks: int
    expires_in_s: float


SILENT_LIMIT_S = 86_400.0
"""Seconds of silence after which a worker's heartbeat may be dropped: one day."""
MOST_REPORTS = 10_000
"""Maximum number of workers whose heartbeats are read, the newest ones."""
LONGEST_REPORT = 2**14
"""Maximum number of characters of a heartbeat that is read; workers write at most some KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """A worker's last heartbeat: a JSON ``document`` and its age by the ledger's clock."""

    worker: str
    age_s: float
    document: str


class Ledger(Protocol):
    """The authority on tasks during a run. Every method is atomic, and durable when it returns.

    Every method may raise ``LedgerLostError``. If the ledger's server or disk fails, it raises
    ``LedgerAwayError``.
    """

    @property
    def epoch(self) -> int:
        """The epoch of this ledger; a rebuilt one has a higher epoch."""
        ...

    def claim(self, *, holder: Holder, tasks: range, limit: int, ttl_s: float) -> list[Lease]:
        """Lease up to ``limit`` of ``tasks``; first those whose lease expired or whose holder died.

        A lease that ends later than ``LONGEST_STAY`` times the longest TTL has expired, too. Ranges
        with the same start must have the same end.
        """
        ...

    def renew(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease]:
        """Extend ``leases``; return those still held.

        An expired lease is still held if no other holder has claimed its task.
        """
        ...

    def release(self, leases: Sequence[Lease]) -> None:
        """End leases now; stale ones are ignored."""
        ...

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind all tasks of ``leases`` to ``shards`` or, if one token is stale, bind none.

        A commit whose shards are already recorded also returns ``Committed``. So the caller may
        repeat a commit when the answer got lost.
        """
        ...

    def unpublished(self) -> list[ShardEntry]:
        """Return the committed shards that no manifest is known to list."""
        ...

    def shards(self) -> list[ShardEntry]:
        """Return all shards that were ever recorded here, published or not."""
        ...

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` are not names of recorded shards."""
        ...

    def check_names(
        self, names: Sequence[str], *, checker: str, number: int, after: int
    ) -> list[str] | None:
        """Return which of at most 500 ``names`` no recorded shard has; store the number.

        The ledger stores the highest number of each checker for ever. If the stored number is below
        ``after``, the ledger was restored to an earlier state: return None and store nothing.

        Args:
            names: names of shards; may be empty.
            checker: name of the checker; no other process may use this name.
            number: number of this check, higher than the checker's numbers before.
            after: number of the checker's last check that was answered, 0 for none.
        """
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

    def holdings(self, tasks: range) -> list[Holding]:
        """Return the holders of live leases on tasks of a range, for messages; looks at 500 at most."""
        ...

    def report(self, worker: str, document: str) -> None:
        """Store a worker's heartbeat, a JSON document of about 2 KB, which replaces its last one.

        Heartbeats are for viewers: nothing depends on them, and they need not survive a power cut.
        """
        ...

    def workers(self) -> list[WorkerReport]:
        """Return each worker's last heartbeat; one older than ``SILENT_LIMIT_S`` may be missing."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...
