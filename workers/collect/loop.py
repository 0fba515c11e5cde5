"""The loop: claim, run, write, commit, publish. It is the same on one machine and on many.

Owns the order in which results become durable. Ledger, store, executor, clock and names are
arguments, so the simulator drives this very code through crashes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from llmperf_common.ledger.agreement import absent_shards
from llmperf_common.ledger.protocol import (
    CommitOutcome,
    Committed,
    Holder,
    Lease,
    Ledger,
    LedgerAwayError,
    LedgerLostError,
    Refused,
)
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.tables.shard import Encoder, encode_results
from workers.collect.backoff import Backoff
from workers.collect.fair_share import FairShare
from workers.collect.loop_interfaces import EndReason, Heartbeat, LoopObserver, TaskSource
from workers.collect.losses import Losses
from workers.collect.outbox import Outbox
from workers.collect.publishing import Publisher
from workers.collect.waiting import WaitingNote
from workers.config import LedgerConfig, StoreConfig
from workers.execution.doubtful_builds import DoubtfulBuilds
from workers.execution.executor import FinishedTask, TaskExecutor

_BACKOFF_POLL_S = 0.1
_CLAIM_SHARE = 8
"""The loop claims when an eighth of the executor's capacity is free. When each task was claimed on
its own, claims took most of an actor's ledger time."""
_IDLE_CLAIM_INTERVAL_S = 1.0
"""Seconds between two attempts to claim tasks that other collectors hold, because they may die."""


class CollectLoop:
    """Drives one executor through its share of a plan.

    Args:
        fs: the dataset folder.
        attach: opens the ledger, or rebuilds it if it is gone.
        plan: provides the tasks.
        tasks: the indices this worker may take (those of its device class).
        executor: runs the tasks.
        holder: this process.
        device_shards: the device's record; committed with every batch, so that no sample lacks it.
        clock_s: monotonic seconds.
        new_stem: returns a unique shard name for an epoch.
        observer: receives the loop's events.
        writer: encodes and writes shards beside the loop: the device must not wait for a disk.
        encode: ``encode_results``, or a version of it that caches.
        sleep: called with seconds to wait while the ledger cannot be reached and nothing runs.
        heartbeat: sends heartbeats to the ledger.
        builds_again: as for ``DoubtfulBuilds``.
    """

    def __init__(
        self,
        *,
        fs: Filesystem,
        attach: Callable[[], Ledger],
        plan: TaskSource,
        tasks: range,
        executor: TaskExecutor,
        holder: Holder,
        device_shards: Sequence[ShardEntry],
        clock_s: Callable[[], float],
        new_stem: Callable[[int], str],
        store_config: StoreConfig,
        ledger_config: LedgerConfig,
        observer: LoopObserver,
        writer: Executor,
        encode: Encoder = encode_results,
        sleep: Callable[[float], None] = time.sleep,
        heartbeat: Heartbeat | None = None,
        builds_again: Callable[[], bool] = lambda: False,
    ) -> None:
        self._fs = fs
        self._attach = attach
        self._plan = plan
        self._tasks = tasks
        self._executor = executor
        self._holder = holder
        self._device_shards = tuple(device_shards)
        self._clock_s = clock_s
        self._lease = ledger_config
        self._observer = observer
        self._sleep = sleep
        self._heartbeat = heartbeat
        self._doubtful = DoubtfulBuilds(builds_again)
        self._ledger = attach()
        self._is_attached = True
        self._backoff = Backoff()
        self.losses = Losses()
        self._outbox = Outbox(
            fs=fs,
            plan_hash=plan.plan_hash,
            config=store_config,
            encode=encode,
            writer=writer,
            new_stem=new_stem,
            clock_s=clock_s,
        )
        self._publisher = Publisher(
            fs=fs,
            plan_hash=plan.plan_hash,
            holder=holder,
            interval_s=store_config.publish_interval_s,
            clock_s=clock_s,
            published=observer.published,
        )
        self._renewed_s = clock_s()
        self._claim_after_s = 0.0
        self._fair_share = FairShare(clock_s)
        self._waiting = WaitingNote(clock_s, ttl_s=ledger_config.lease_ttl_s)
        self._stop: EndReason | None = None
        self._is_aborted = False
        self._all_done = False

    @property
    def end_reason(self) -> EndReason:
        """Why the loop ended; ``COMPLETE`` unless it was asked to stop."""
        return self._stop or EndReason.COMPLETE

    @property
    def is_over(self) -> bool:
        """Whether all tasks are done, or the work that remained after a stop is finished."""
        idle = not self._executor.leases() and self._outbox.is_empty
        is_decided = not self._doubtful or self._stop is EndReason.INTERRUPTED
        return idle and is_decided and (self._all_done or self._stop is not None)

    def request_stop(self, reason: EndReason) -> None:
        """Ask the loop to stop; the first reason counts.

        The steps that follow finish and commit the task in hand and release the other leases.
        """
        self._stop = self._stop or reason

    def abort_tasks(self) -> None:
        """Drop even the task in hand (a second Ctrl-C); finished tasks are still committed."""
        dropped = self._executor.leases()
        self._executor.abandon([lease.task for lease in dropped])
        self._is_aborted = True
        self._guarded(lambda: self._ledger.release(dropped))

    def step(self, timeout_s: float) -> None:
        """Do one step: renew, claim, run for about ``timeout_s``, commit, publish."""
        was_waiting = self._backoff.is_waiting(now_s=self._clock_s())
        if was_waiting and not self._is_attached:  # no task is in hand: all were lost
            self._sleep(min(timeout_s, _BACKOFF_POLL_S))
            return
        is_there = self._guarded(lambda: self._step(timeout_s)) and not was_waiting
        if is_there and self._heartbeat is not None:
            self._heartbeat.tell(self._ledger)

    def finish(self) -> bool:
        """Commit this worker's finished tasks and publish all shards; return whether that is done.

        If the result is False, no orphans may be swept, because committed shards of a dead worker
        may still be unpublished. The result is False only if the ledger does not answer after
        ``abort_tasks``, because an aborted loop does not wait for the ledger.
        """
        while not self._outbox.is_empty:
            self._await_ledger()
            if not self._guarded(lambda: self._commit(wait=True)) and self._is_aborted:
                return False  # a rebuilt ledger adopts the shards or leases the tasks again
        # If another collector has rebuilt a lost ledger, the new ledger may hold commits that a
        # dead worker has not published; a sweep would remove the shards of these commits.
        while not self._guarded(self.publish_all):
            if self._is_aborted:
                return False
            self._await_ledger()
        return True

    def num_leased(self) -> int:
        """Return how many tasks of this class are leased; 1 if the ledger does not answer."""
        found: list[int] = []
        self._guarded(lambda: found.append(self._ledger.counts(self._tasks).leased))
        return found[0] if found else 1

    def publish_all(self) -> None:
        """Publish every committed shard, including those of other collectors."""
        self._publisher.publish_all(self._ledger)

    @property
    def in_hand(self) -> list[FinishedTask]:
        """The finished tasks that are not committed."""
        return [*self._outbox.items, *self._doubtful.items]

    def commit_kept(self, shards: Sequence[ShardEntry], leases: Sequence[Lease]) -> bool | None:
        """Commit a kept pair; return whether it was accepted, None if the ledger did not answer."""
        answers: list[CommitOutcome] = []
        self._guarded(
            lambda: answers.append(
                self._ledger.commit(shards=[*shards, *self._device_shards], leases=leases)
            )
        )
        return isinstance(answers[0], Committed) if answers else None

    def recorded(self) -> frozenset[str] | None:
        """Return the names of all recorded shards, for a sweep; None if the ledger is away."""
        found: list[str] = []
        is_there = self._guarded(lambda: found.extend(one.name for one in self._ledger.shards()))
        return frozenset(found) if is_there else None

    def close(self) -> None:
        """Release all leases if the ledger answers, and close the ledger."""
        if not self._is_attached:
            return  # the ledger is lost and closed, and so are its leases
        with contextlib.suppress(LedgerLostError, LedgerAwayError, StoreError):
            self._ledger.release(self._held())
            if self._heartbeat is not None:
                self._heartbeat.tell(self._ledger, is_last=True)
        self._ledger.close()

    def _guarded(self, action: Callable[[], None]) -> bool:
        """Run ``action`` on the ledger; return whether it ran to its end.

        If the ledger is lost, all work leased from it is dropped and the loop attaches again. If
        the ledger cannot be reached, all work is kept: when the ledger answers again, it reports
        which leases other collectors have taken.
        """
        try:
            if not self._is_attached:
                self._attach_again()
            was_left_alone = self._backoff.is_waiting(now_s=self._clock_s())
            action()
            if not was_left_alone:  # during a backoff the action does not ask the ledger
                self._backoff.succeeded()
            return True
        except LedgerAwayError as error:
            self._note_outage(error)
            return False
        except LedgerLostError as error:
            self._fs.check_place()  # if the folder is lost, too, raise before dropping work
            dropped = [lease.task for lease in self._held()]
            self._observer.lost(dropped, str(error))
            self.losses.note(self._ledger.epoch, str(error), [x.lease.task for x in self.in_hand])
            self._executor.abandon([lease.task for lease in self._executor.leases()])
            self._outbox.clear()
            self._doubtful.forget(dropped)
            self._ledger.close()
            self._is_attached = False
            try:
                self._attach_again()
            except LedgerAwayError as outage:
                self._note_outage(outage)
            return False

    def _attach_again(self) -> None:
        self._ledger = self._attach()
        self._is_attached = True
        self._renewed_s = self._clock_s()
        self._claim_after_s = 0.0
        self._fair_share.forget()
        self._all_done = False

    def _note_outage(self, error: LedgerAwayError) -> None:
        self._backoff.note(error, now_s=self._clock_s(), limit_s=self._lease.away_limit_s)

    def _await_ledger(self) -> None:
        while self._backoff.is_waiting(now_s=self._clock_s()):
            self._sleep(_BACKOFF_POLL_S)

    def _step(self, timeout_s: float) -> None:
        if self._backoff.is_waiting(now_s=self._clock_s()):
            if self._stop is not None:
                self._executor.abandon_waiting()  # the ledger is away, so their leases must expire
            self._take_results(timeout_s)
            if self._outbox.is_due(more_to_come=bool(self._executor.leases())):
                self._outbox.begin_writing(self._ledger.epoch)
            return
        self._renew()
        if self._stop is None:
            self._claim()
        else:
            waiting = self._executor.abandon_waiting()
            if waiting:
                self._ledger.release(waiting)
        self._take_results(timeout_s)
        self._settle_doubtful()
        if self._outbox.is_due(more_to_come=bool(self._executor.leases())):
            self._commit(wait=False)
        self._publisher.publish_if_due(self._ledger)

    def _take_results(self, timeout_s: float) -> None:
        items = list(self._executor.poll(timeout_s))
        for item in self._doubtful.sift(items):
            self._outbox.add(item)
        # Observers come last: one that raises must not prevent the release of a lease.
        for item in items:
            self._observer.finished(item.lease, item.result)

    def _settle_doubtful(self) -> None:
        """Decide about tasks that failed to build, once no other task can show if builds work."""
        is_last = not self._executor.leases() and (
            self._stop is not None or self._clock_s() < self._claim_after_s
        )
        if self._stop is not EndReason.INTERRUPTED and (is_last or self._doubtful.is_full):
            for item in self._doubtful.settle():
                self._outbox.add(item)

    def _held(self) -> list[Lease]:
        return self._executor.leases() + self._outbox.leases + self._doubtful.leases

    def _renew(self) -> None:
        now_s = self._clock_s()
        if now_s - self._renewed_s < self._lease.lease_ttl_s / 4:
            return
        held = self._held()
        ttl_s = self._lease.lease_ttl_s
        kept = {one.token for one in self._ledger.renew(held, ttl_s=ttl_s)} if held else set()
        self._renewed_s = now_s
        unwritten = self._executor.leases() + self._doubtful.leases
        lost = [lease.task for lease in unwritten if lease.token not in kept]
        if lost:
            self._executor.abandon(lost)
            self._doubtful.forget(lost)
            self._observer.lost(lost, "the lease ran out and another worker took the task")

    def _claim(self) -> None:
        wanted = self._executor.num_wanted()
        now_s = self._clock_s()
        is_few = wanted * _CLAIM_SHARE < wanted + len(self._executor.leases())
        if wanted == 0 or is_few or now_s < self._claim_after_s:
            return
        if self._fair_share.is_due:
            self._count()
        in_hand = len(self._executor.leases())
        wanted = min(wanted, self._fair_share.most_in_hand(in_hand + wanted) - in_hand)
        if wanted <= 0:
            return
        leases = self._ledger.claim(
            holder=self._holder, tasks=self._tasks, limit=wanted, ttl_s=self._lease.lease_ttl_s
        )
        self._drop_superseded(leases)
        claimed = [(self._plan.task(lease.task), lease) for lease in leases]
        for task, lease in claimed:
            self._executor.submit(task, lease)
        for task, lease in claimed:
            self._observer.claimed(task, lease)
        if len(leases) < wanted:
            self._claim_after_s = now_s + _IDLE_CLAIM_INTERVAL_S
            self._count()
        is_waiting = not self._held() and not self._all_done
        self._waiting.update(self._ledger, self._tasks, is_waiting=is_waiting)

    def _count(self) -> None:
        began_s = self._clock_s()
        counts = self._ledger.counts(self._tasks)
        self._all_done = counts.done == counts.total
        self._fair_share.update(counts, num_held=len(self._held()), began_s=began_s)

    def _drop_superseded(self, leases: Sequence[Lease]) -> None:
        """Drop tasks in hand that were leased to us again, because their old leases expired."""
        again = {lease.task for lease in leases} & {lease.task for lease in self._held()}
        if again:
            self._executor.abandon(again)
            self._outbox.forget_waiting(again)
            self._doubtful.forget(again)
            self._observer.lost(sorted(again), "the lease ran out and was granted to us again")

    def _commit(self, *, wait: bool) -> None:
        """Write the waiting results as one pair of shards; record the tasks that are still ours.

        Without ``wait``, return while the shards are being written; the next call continues.
        """
        batch = self._outbox.written(self._ledger.epoch, wait=wait)
        if batch is None:
            return
        # Checked last: the commit must not record shards that were removed or hidden by a mount.
        if absent_shards(self._fs, batch.shards):
            self._outbox.write_again()
            return
        outcome = self._ledger.commit(
            shards=[*batch.shards, *self._device_shards], leases=batch.leases
        )
        if isinstance(outcome, Refused):
            self._observer.refused(batch.stem, outcome.stale_tasks)
            self._outbox.keep_others(outcome.stale_tasks, self._ledger.epoch)
            return
        assert isinstance(outcome, Committed), outcome
        self._publisher.device_shards = self._device_shards
        self._outbox.settle()
        self.losses.committed([lease.task for lease in batch.leases])
        self._observer.committed(
            batch.stem, [item.result for item in batch.items], self._ledger.epoch
        )
