"""Keep finished tasks on this host when the dataset's folder is lost; the next start commits them.

Owns the folder of kept pairs; each run and device has its own. A kept pair is the pair of shards
that the collector would have committed. The pair is committed later with the tokens that are in it.
So a task that another holder has leased in the meantime stays with that holder.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmperf_common.ledger.protocol import Lease, LedgerAwayError
from llmperf_common.store.files.filesystem import (
    Filesystem,
    PosixFilesystem,
    StoreError,
    StoreLostError,
)
from llmperf_common.store.tables.shard import (
    ShardError,
    ShardFile,
    decode,
    encode_results,
    write_shard,
)
from llmperf_common.store.upkeep.rebuild import is_shard_name
from workers.collect.loop import CollectLoop
from workers.execution.executor import FinishedTask
from workers.plan.task_index import TaskIndex

_logger = logging.getLogger(__name__)
_TABLES = ("kernels", "samples")


class KeptPairs:
    """The pairs of shards that this host keeps of one run and device.

    Args:
        folder: the folder of this run and device; created when there is something to keep.
        plan_hash: the plan hash of the run.
    """

    def __init__(self, folder: Path, *, plan_hash: str) -> None:
        self.folder = folder
        self._fs = PosixFilesystem(folder)
        self._plan_hash = plan_hash

    def keep(self, items: Sequence[FinishedTask], stem: str) -> None:
        """Write finished tasks that could not be committed; raises StoreError or OSError."""
        shards = encode_results(
            stem,
            [item.result for item in items],
            [item.lease.token for item in items],
            plan_hash=self._plan_hash,
            epoch=items[0].lease.epoch,
        )
        for shard in shards:
            write_shard(self._fs, shard)

    def put_back(self, fs: Filesystem) -> list[tuple[ShardFile, ShardFile]]:
        """Write the kept pairs into the dataset and return them."""
        found = []
        for name in filter(is_shard_name, self._fs.names("kernels")):
            try:
                kernels, samples = (self._read(f"{table}/{name}") for table in _TABLES)
            except (ShardError, FileNotFoundError) as error:
                _logger.warning("a kept pair of shards is not committed: %s", error)
                continue
            for shard in (kernels, samples):
                write_shard(fs, shard)
            found.append((kernels, samples))
        return found

    def commit(
        self, loop: CollectLoop, pairs: Sequence[tuple[ShardFile, ShardFile]], tasks: TaskIndex
    ) -> None:
        """Commit the pairs that were put back, if their tokens are still current."""
        num_tasks = 0
        for pair in pairs:
            _, footer = decode(pair[0].data, pair[0].name)
            leases = [
                Lease(task=tasks.index_of(task), epoch=footer.epoch, token=token, attempt=1)
                for task, token in footer.tasks
            ]
            outcome = loop.commit_kept([shard.entry for shard in pair], leases)
            if outcome is None:
                continue  # the ledger did not answer: the next start asks again
            num_tasks += len(leases) if outcome else 0
            for shard in pair:
                self._fs.remove(shard.name)
        _logger.info("committed %d tasks that were kept in %s", num_tasks, self.folder)

    def _read(self, name: str) -> ShardFile:
        data = self._fs.read_bytes(name)
        table, footer = decode(data, name)
        if footer.plan_hash != self._plan_hash:
            raise ShardError(f"{self._fs.describe(name)} belongs to another plan")
        return ShardFile(name=name, data=data, rows=table.num_rows, tasks=len(footer.tasks))


@contextlib.contextmanager
def keeping(loop: CollectLoop, pairs: KeptPairs) -> Iterator[None]:
    """If the dataset is lost, keep finished tasks on this host; the error names their folder.

    If the ledger cannot be reached, the error says how many finished tasks are not committed.
    """
    try:
        yield
    except LedgerAwayError as error:
        if not loop.in_hand:
            raise
        raise LedgerAwayError(
            f"{error}; {len(loop.in_hand)} finished tasks are not committed: the next run measures "
            "them again"
        ) from error
    except StoreLostError as error:
        items = loop.in_hand
        if not items:
            raise
        try:
            pairs.keep(items, f"kept-{secrets.token_hex(8)}")
        except (StoreError, OSError) as full:
            what = f"{len(items)} finished tasks that were in hand are lost ({full})"
        else:
            what = (
                f"{len(items)} finished, uncommitted tasks are kept in {pairs.folder}: run the "
                "same command again on this machine to commit them"
            )
        raise StoreLostError(f"{error}; {what}") from error
