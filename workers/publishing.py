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
    publish,
)


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
        self._last: Manifest | None = None
        """The last that this worker has published: as long as it is kept, its segments need not be read again."""

    def publish_if_due(self, ledger: Ledger) -> None:
        """Publish what is new, if it is time to and this worker is the one that does it. Raises LedgerLostError."""
        now_s = self._clock_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._interval_s
        # Twice the interval: a publisher that pauses loses the office, one at work keeps it.
        ttl_s = 2 * max(self._interval_s, self._took_s)
        if not ledger.elect_publisher(holder=self._holder, ttl_s=ttl_s):
            return
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
        self._last = result
        self._took_s = self._clock_s() - began_s
        self._published(result)
