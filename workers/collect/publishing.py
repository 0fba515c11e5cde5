"""Publish manifests that list what all collectors have committed.

Decides when a manifest is published. Only the elected worker publishes one. Two publishers at once
do no harm: see ``store/manifests/manifest.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llmperf_common.ledger.agreement import (
    absent_shards,
    compare,
    lists_all_of,
    not_listed,
)
from llmperf_common.ledger.checked_names import CheckedNames
from llmperf_common.ledger.protocol import Holder, Ledger, LedgerLostError
from llmperf_common.store.files.filesystem import Filesystem, StoreError
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry
from llmperf_common.store.manifests.publish import StaleEpoch, publish


class Publisher:
    """One worker's part in publishing.

    Args:
        fs: the dataset folder.
        plan_hash: identity of the plan.
        holder: this process.
        interval_s: seconds between two elections.
        clock_s: monotonic seconds.
        published: receives each new manifest.
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
        self.device_shards: Sequence[ShardEntry] = ()
        """The shard of this worker's device, once the worker has committed samples. Each version
        lists this shard: the ledger counts it as published even if the only manifest that listed it
        was lost."""
        self._due_s = 0.0
        self._took_s = 0.0
        self._names = CheckedNames()
        self._ledger: Ledger | None = None
        """The ledger whose complete list of shards was compared with the manifests."""
        self._last: Manifest | None = None
        """The last manifest that this worker has published. The ledger had recorded all its shards.
        While the manifest is kept here and the ledger is not rolled back, its segments are neither
        read nor compared again."""

    def publish_if_due(self, ledger: Ledger) -> None:
        """Publish new shards if that is due and this worker is elected; raises LedgerLostError."""
        now_s = self._clock_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._interval_s
        # Twice the interval: an active publisher stays elected, one that pauses does not.
        ttl_s = 2 * max(self._interval_s, self._took_s)
        if not ledger.elect_publisher(holder=self._holder, ttl_s=ttl_s):
            return
        entries = ledger.unpublished()
        if entries:
            self._publish(ledger, entries)

    def publish_all(self, ledger: Ledger) -> None:
        """Publish every committed shard, even without election, and also shards of lost manifests.

        Raises:
            LedgerLostError: The ledger is lost, or was rolled back.
            StoreError: The dataset or one of its files is missing.
        """
        self._ledger = None
        self._publish(ledger, ())

    def _publish(self, ledger: Ledger, entries: Sequence[ShardEntry]) -> None:
        began_s = self._clock_s()
        if self._ledger is not ledger:
            entries = compare(ledger, self._fs).unlisted
        self._check_present(entries)
        result = publish(
            self._fs,
            entries,
            plan_hash=self._plan_hash,
            epoch=ledger.epoch,
            admit=partial(self._admit, ledger, entries),
        )
        if isinstance(result, StaleEpoch):
            raise LedgerLostError(f"a ledger of epoch {result.current_epoch} has replaced this one")
        self._fs.check_place()  # a manifest at another place is not published
        self._ledger, self._last = ledger, result
        if entries:
            ledger.mark_published([entry.name for entry in entries])
        self._took_s = self._clock_s() - began_s
        self._published(result)

    def _admit(
        self, ledger: Ledger, entries: Sequence[ShardEntry], base: Manifest
    ) -> Sequence[ShardEntry]:
        """Return the committed shards that the manifests have lost, to be published again.

        Raises:
            StoreError: The file of this worker's device is gone.
            LedgerLostError: The ledger lacks shards that the manifest or ``entries`` list. It was
                rolled back and leases finished tasks again, so publishing from it would double
                their rows.
        """
        last = self._last if self._ledger is ledger else None
        lost = [one for one in self.device_shards if one not in entries and base.lacks(one.name)]
        if last is not None and not lists_all_of(base, last):
            lost = not_listed(ledger.shards(), base)  # a removed manifest had listed them
        self._check_present(lost)
        # This check comes last and covers all shards of the next version: if it passes, the ledger
        # has bound each task to exactly one of these shards, and a later loss of the ledger does no
        # harm.
        unknown = self._names.unknown(ledger, base, [*entries, *lost], checked=last)
        if unknown:
            raise LedgerLostError(
                f"the ledger was rolled back: it lacks {unknown[0]}, which a manifest lists or "
                "which it had recorded"
            )
        return lost

    def _check_present(self, entries: Sequence[ShardEntry]) -> None:
        if not entries:
            return
        absent = absent_shards(self._fs, entries)
        devices = [entry for entry in absent if not entry.tasks]
        if devices:
            raise StoreError(
                f"{self._fs.describe(devices[0].name)} is gone or cut short: restore it from a "
                "backup, or start a new dataset folder"
            )
        if absent:
            where = self._fs.describe(absent[0].name)
            raise LedgerLostError(f"{where} was committed but is gone: its tasks are done again")
