"""Publishing: manifests list what the ledger has committed, whoever committed it; one worker at a time does it.

Owns when it is done. That two publishers at once do no harm is ``llmperf_common/store/manifest.py``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmperf_common.ledger.protocol import Holder, Ledger, LedgerLostError
from llmperf_common.store.filesystem import Filesystem
from llmperf_common.store.manifest import (
    Manifest,
    ShardEntry,
    StaleEpoch,
    latest_manifest,
    publish,
)

_WAIT_PER_SHARD_S = 0.002
"""After a manifest the next one waits so long for each shard that it lists, all over again: some 0.1 MB/s of manifests, however long the run."""


class Publisher:
    """One worker's part in publishing.

    Args:
        fs: the dataset folder.
        plan_hash: identity of the plan.
        holder: this process.
        interval_s: between two elections.
        clock_s: monotonic seconds.
        published: is told each new manifest.
    """

    def __init__(
        self,
        *,
        fs: Filesystem,
        plan_hash: str,
        holder: Holder,
        interval_s: float,
        clock_s: Callable[[], float],
        published: Callable[[Manifest], None],
    ) -> None:
        self._fs = fs
        self._plan_hash = plan_hash
        self._holder = holder
        self._interval_s = interval_s
        self._clock_s = clock_s
        self._published = published
        self._due_s = 0.0
        self._took_s = 0.0
        self._num_listed: int | None = None
        """By the last manifest; None while somebody else publishes."""
        self._published_s = 0.0

    def publish_if_due(self, ledger: Ledger) -> None:
        """Publish what is new, if it is time to and this worker is the one that does it. Raises LedgerLostError."""
        now_s = self._clock_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._interval_s
        # Twice the interval: a publisher that pauses loses the office, one at work keeps it.
        ttl_s = 2 * max(self._interval_s, self._took_s)
        if not ledger.elect_publisher(holder=self._holder, ttl_s=ttl_s):
            self._num_listed = None
            return
        if self._num_listed is None:  # its predecessor may have published a moment ago
            latest = latest_manifest(self._fs)
            self._num_listed, self._published_s = len(latest.shards) if latest else 0, now_s
        if now_s - self._published_s >= _WAIT_PER_SHARD_S * self._num_listed:
            entries = ledger.unpublished()
            if entries:
                self._publish(ledger, entries)

    def publish_all(self, ledger: Ledger) -> None:
        """Publish every committed shard, with or without the office. Raises LedgerLostError."""
        self._publish(ledger, ledger.unpublished())

    def _publish(self, ledger: Ledger, entries: Sequence[ShardEntry]) -> None:
        began_s = self._clock_s()
        result = publish(self._fs, entries, plan_hash=self._plan_hash, epoch=ledger.epoch)
        if isinstance(result, StaleEpoch):
            raise LedgerLostError(f"epoch {result.current_epoch} has taken over")
        if entries:
            ledger.mark_published([entry.name for entry in entries])
        self._num_listed, self._published_s = len(result.shards), self._clock_s()
        self._took_s = self._published_s - began_s
        self._published(result)
