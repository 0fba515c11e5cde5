"""Finished tasks on their way into the ledger: those that wait, and the batch being written.

Owns three things: when a pair of shards is due, what is in it, and how it is written. A ``writer``
writes it while the loop goes on, because the device must not wait for a disk. A shard counts only
once the ledger has recorded it (``loop.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from llmperf_common.ledger.protocol import Lease
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import ShardEntry
from llmperf_common.store.tables.shard import Encoder, write_shard
from workers.config import StoreConfig
from workers.execution.executor import FinishedTask


@dataclass(slots=True, kw_only=True)
class Batch:
    """The tasks of one commit; ``writing`` is None before writing begins and after a failure."""

    stem: str
    items: tuple[FinishedTask, ...]
    epoch: int
    writing: Future[list[ShardEntry]] | None = None
    shards: tuple[ShardEntry, ...] = ()
    """Set when the shards are durable."""

    @property
    def leases(self) -> list[Lease]:
        """The leases of the batch's tasks."""
        return [item.lease for item in self.items]


class Outbox:
    """The finished tasks that the ledger has not recorded yet.

    Args:
        fs: the dataset folder.
        plan_hash: identity of the plan.
        config: how large a shard may get, and how long a finished task may wait.
        encode: encodes results as shards.
        writer: runs the encoding and writing.
        new_stem: returns a unique shard name for an epoch.
        clock_s: monotonic seconds.
    """

    def __init__(
        self,
        *,
        fs: Filesystem,
        plan_hash: str,
        config: StoreConfig,
        encode: Encoder,
        writer: Executor,
        new_stem: Callable[[int], str],
        clock_s: Callable[[], float],
    ) -> None:
        self._fs = fs
        self._plan_hash = plan_hash
        self._config = config
        self._encode = encode
        self._writer = writer
        self._new_stem = new_stem
        self._clock_s = clock_s
        self._waiting: list[FinishedTask] = []
        self._waiting_since_s = 0.0
        self._batch: Batch | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no task waits and no batch is under way."""
        return self._batch is None and not self._waiting

    @property
    def leases(self) -> list[Lease]:
        """The leases of all tasks in the outbox."""
        waiting = [item.lease for item in self._waiting]
        return waiting + self._batch.leases if self._batch else waiting

    @property
    def items(self) -> list[FinishedTask]:
        """All tasks in the outbox."""
        return [*(self._batch.items if self._batch else ()), *self._waiting]

    def add(self, item: FinishedTask) -> None:
        """Take in a finished task."""
        if not self._waiting:
            self._waiting_since_s = self._clock_s()
        self._waiting.append(item)

    def is_due(self, *, more_to_come: bool) -> bool:
        """Whether to write or commit a batch now; any waiting task is due if no more tasks come."""
        if self._batch is not None:
            return True
        if not self._waiting:
            return False
        rows = sum(len(item.result.samples) for item in self._waiting)
        return (
            rows >= self._config.max_shard_rows
            or self._clock_s() - self._waiting_since_s >= self._config.commit_interval_s
            or not more_to_come
        )

    def begin_writing(self, epoch: int) -> Batch:
        """Begin to write the batch in hand, or a new batch of all waiting tasks; return at once."""
        if self._batch is None:
            self._batch = self._new_batch(tuple(self._waiting), epoch)
            self._waiting.clear()
        if self._batch.writing is None:
            self._batch.writing = self._writer.submit(self._write, self._batch)
        return self._batch

    def written(self, epoch: int, *, wait: bool) -> Batch | None:
        """Return the batch once its shards are durable; without ``wait``, None until then.

        Raises:
            StoreError: The shards could not be written; the next call tries again.
        """
        batch = self.begin_writing(epoch)
        assert batch.writing is not None, "it has begun"
        if not wait and not batch.writing.done():
            return None
        try:
            batch.shards = tuple(batch.writing.result())
        except StoreError:
            batch.writing = None
            raise
        return batch

    def write_again(self) -> None:
        """Let the next call write the shards of the batch again, because they have vanished."""
        assert self._batch is not None, "something was written"
        self._batch.writing = None

    def settle(self) -> None:
        """Drop the batch in hand after its commit."""
        self._batch = None

    def keep_others(self, stale_tasks: Collection[int], epoch: int) -> None:
        """Start a new batch with the tasks that the ledger did not refuse as stale.

        The shards already written for the refused batch remain until orphans are swept. No reader
        sees these shards, because they were not committed.
        """
        assert self._batch is not None, "something was refused"
        kept = tuple(one for one in self._batch.items if one.lease.task not in stale_tasks)
        self._batch = self._new_batch(kept, epoch) if kept else None

    def forget_waiting(self, tasks: Collection[int]) -> None:
        """Drop those of ``tasks`` that are in no batch yet."""
        self._waiting = [item for item in self._waiting if item.lease.task not in tasks]

    def clear(self) -> None:
        """Drop everything; shards that are still being written become orphans."""
        self._waiting.clear()
        if self._batch is not None and self._batch.writing is not None:
            with contextlib.suppress(StoreError):
                self._batch.writing.result()
        self._batch = None

    def _new_batch(self, items: tuple[FinishedTask, ...], epoch: int) -> Batch:
        return Batch(stem=self._new_stem(epoch), items=items, epoch=epoch)

    def _write(self, batch: Batch) -> list[ShardEntry]:
        shards = self._encode(
            batch.stem,
            [item.result for item in batch.items],
            [lease.token for lease in batch.leases],
            plan_hash=self._plan_hash,
            epoch=batch.epoch,
        )
        return [write_shard(self._fs, shard) for shard in shards]
