"""A ledger that reports how long each call took, for an actor's metrics.

Passes every call on to the ledger that it wraps. Failed calls are reported, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from llmperf_common.ledger.attach import LedgerLocation
from llmperf_common.ledger.protocol import (
    CommitOutcome,
    Holder,
    Holding,
    Lease,
    Ledger,
    TaskCounts,
    WorkerReport,
)
from llmperf_common.store.manifests.manifest import ShardEntry

_T = TypeVar("_T")


class TimedLocation:
    """A ``LedgerLocation`` whose ledgers report how long each call took."""

    def __init__(
        self, ledger_location: LedgerLocation, called: Callable[[str, float], None]
    ) -> None:
        self._location = ledger_location
        self._called = called

    def open(self, epoch: int, plan_hash: str) -> Ledger | None:
        """Open the ledger of ``epoch``; None if it is gone."""
        ledger = self._location.open(epoch, plan_hash)
        return TimedLedger(ledger, self._called) if ledger is not None else None

    def retire(self, *, before: int) -> None:
        """End every ledger of an epoch below ``before``."""
        self._location.retire(before=before)

    def create(
        self,
        *,
        epoch: int,
        plan_hash: str,
        shards: Iterable[ShardEntry],
        done: Iterable[tuple[int, str]],
    ) -> Ledger:
        """Create the ledger of ``epoch`` and open it."""
        made = self._location.create(epoch=epoch, plan_hash=plan_hash, shards=shards, done=done)
        return TimedLedger(made, self._called)


class TimedLedger:
    """A ``Ledger`` that reports how long each call took, even if the call failed."""

    def __init__(self, ledger: Ledger, called: Callable[[str, float], None]) -> None:
        self._ledger = ledger
        self._called = called

    @property
    def epoch(self) -> int:
        """The epoch this ledger was built in."""
        return self._ledger.epoch

    def claim(self, *, holder: Holder, tasks: range, limit: int, ttl_s: float) -> list[Lease]:
        """Lease tasks."""
        return self._timed(
            "claim",
            lambda: self._ledger.claim(holder=holder, tasks=tasks, limit=limit, ttl_s=ttl_s),
        )

    def renew(self, leases: Sequence[Lease], *, ttl_s: float) -> list[Lease]:
        """Extend leases."""
        return self._timed("renew", lambda: self._ledger.renew(leases, ttl_s=ttl_s))

    def release(self, leases: Sequence[Lease]) -> None:
        """Give leases back."""
        self._timed("release", lambda: self._ledger.release(leases))

    def commit(self, *, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> CommitOutcome:
        """Bind tasks to shards."""
        return self._timed("commit", lambda: self._ledger.commit(shards=shards, leases=leases))

    def unpublished(self) -> list[ShardEntry]:
        """Return the committed shards that no manifest is known to list."""
        return self._timed("unpublished", self._ledger.unpublished)

    def shards(self) -> list[ShardEntry]:
        """Return all shards that were ever recorded."""
        return self._timed("shards", self._ledger.shards)

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Return which of ``names`` are not names of recorded shards."""
        return self._timed("unknown", lambda: self._ledger.unknown(names))

    def check_names(
        self, names: Sequence[str], *, checker: str, number: int, after: int
    ) -> list[str] | None:
        """Return which of ``names`` are not names of recorded shards."""
        return self._timed(
            "check_names",
            lambda: self._ledger.check_names(names, checker=checker, number=number, after=after),
        )

    def mark_published(self, names: Sequence[str]) -> None:
        """Note that a manifest lists these shards."""
        self._timed("mark_published", lambda: self._ledger.mark_published(names))

    def elect_publisher(self, *, holder: Holder, ttl_s: float) -> bool:
        """Return whether ``holder`` is the publisher."""
        return self._timed(
            "elect_publisher", lambda: self._ledger.elect_publisher(holder=holder, ttl_s=ttl_s)
        )

    def counts(self, tasks: range) -> TaskCounts:
        """Count the tasks of a range by state."""
        return self._timed("counts", lambda: self._ledger.counts(tasks))

    def holdings(self, tasks: range) -> list[Holding]:
        """Return the holders of live leases on tasks of a range."""
        return self._timed("holdings", lambda: self._ledger.holdings(tasks))

    def report(self, worker: str, document: str) -> None:
        """Store a worker's heartbeat, which replaces its last one."""
        self._timed("report", lambda: self._ledger.report(worker, document))

    def workers(self) -> list[WorkerReport]:
        """Return the last heartbeats."""
        return self._timed("workers", self._ledger.workers)

    def close(self) -> None:
        """Release the connection."""
        self._ledger.close()

    def _timed(self, call: str, act: Callable[[], _T]) -> _T:
        began_s = time.perf_counter()
        try:
            return act()
        finally:
            self._called(call, time.perf_counter() - began_s)
