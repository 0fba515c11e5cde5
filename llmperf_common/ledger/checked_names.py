"""Ask a ledger which shards it has recorded, so that no rollback in between goes unnoticed.

A ledger can be restored to an earlier state while it is in use, at any moment and more than once,
for example together with the host of its Redis server. An answer that it gave before then proves
nothing about its present state. So each check leaves its number in the ledger (``check_names``),
and the next check requires this number. Only a restored earlier state lacks it: all states that
follow from the state of a check have its number, and all shards that this check has found.

Owns the numbers of one publisher's checks. ``agreement.py`` decides which names are asked for.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial

from llmperf_common.ledger.agreement import not_listed, unknown_shards
from llmperf_common.ledger.protocol import Ledger, LedgerLostError
from llmperf_common.store.manifests.manifest import Manifest, ShardEntry

_AT_ONCE = 500
"""Maximum number of names in one call: a ledger answers no other worker meanwhile."""


class _BehindError(Exception):
    """The ledger lacks the number of our last check."""


class CheckedNames:
    """The checks that one publisher has made on its ledger.

    The ledger keeps the number of the last check (40 bytes) as long as it exists: a publisher that
    was killed could not remove it anyway.
    """

    def __init__(self) -> None:
        # No other publisher has this name, so that two at once do not disturb each other.
        self._checker = secrets.token_hex(8)
        self._number = 0
        """Number of the last check that was sent. A check whose answer got lost has a number, too:
        it may take effect at any later time."""
        self._after = 0
        """Number of the last check that was answered since the last full pass began; 0 for none."""
        self._owes_all = True
        """Whether all names must be asked for. A full pass that ends early, for example because an
        answer got lost, leaves this True: its checks have begun a new chain of numbers, and the
        states of this chain need not have the shards that were found before it."""

    def unknown(
        self,
        ledger: Ledger,
        manifest: Manifest,
        waiting: Sequence[ShardEntry],
        *,
        checked: Manifest | None,
    ) -> list[str]:
        """Return the kernels shards of ``manifest`` and ``waiting`` that ``ledger`` lacks.

        If there are none, one state of the ledger has recorded all of them. This holds for the
        state of the last check that this method has made.

        Args:
            ledger: the dataset's ledger.
            manifest: a version of the dataset.
            waiting: further shards, which the ledger has named before.
            checked: a manifest for whose shards and this ledger an earlier call has found nothing
                unknown; None asks for all names, for example because the ledger is another one.

        Raises:
            LedgerLostError: The ledger is lost, or was restored twice in this moment.
        """
        names = [entry.name for entry in waiting if entry.table == "kernels"]
        self._owes_all |= checked is None
        try:
            return self._pass(ledger, manifest, names, checked)
        except _BehindError:
            self._owes_all = True  # the restored state may have forgotten any shard
        try:
            return self._pass(ledger, manifest, names, checked)
        except _BehindError:
            raise LedgerLostError(
                "the ledger was rolled back while it was compared with the manifest"
            ) from None

    def _pass(
        self, ledger: Ledger, manifest: Manifest, further: Sequence[str], checked: Manifest | None
    ) -> list[str]:
        """Ask for the names that ``checked`` lacks, or for all names if that is owed."""
        if self._owes_all:
            self._after = 0
            if checked is not None:  # the next pass may skip its names, so ask for all of them
                gone = not_listed(checked.of_table("kernels"), manifest)
                further, checked = [*further, *(entry.name for entry in gone)], None
        unknown = unknown_shards(
            partial(self._check, ledger), manifest, checked=checked, further=further
        )
        self._owes_all = bool(unknown)
        return unknown

    def _check(self, ledger: Ledger, names: Sequence[str]) -> list[str]:
        unknown: list[str] = []
        for first in range(0, max(1, len(names)), _AT_ONCE):
            self._number += 1
            number = self._number
            found = ledger.check_names(
                names[first : first + _AT_ONCE],
                checker=self._checker,
                number=number,
                after=self._after,
            )
            if found is None:
                raise _BehindError
            self._after = number
            unknown += found
        return unknown
