"""Ask a ledger which shards it has recorded, and notice if it was rolled back between questions.

A ledger can be restored to an earlier state while it is in use, at any moment and more than once,
for example together with the host of its Redis server. Its earlier answers then prove nothing about
its present state. So each check stores its number in the ledger (``check_names``), and the next
check requires this number. If the number is there, the ledger's present state follows from the
state that was checked, and still has all shards that were found. If it is missing, the ledger was
restored.

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
"""Maximum number of names in one call, because a ledger answers no other worker meanwhile."""


class _BehindError(Exception):
    """The ledger lacks the number of our last check."""


class CheckedNames:
    """The checks that one publisher has made on its ledger.

    Nothing removes the number of the last check (40 bytes) from the ledger, because a publisher
    that was killed could not do so.
    """

    def __init__(self) -> None:
        # A random name, so that publishers that check at the same time do not disturb each other.
        self._checker = secrets.token_hex(8)
        self._number = 0
        """Number of the last check that was sent. A check whose answer got lost counts, too: it may
        still take effect."""
        self._after = 0
        """Number of the last check that was answered since the last full pass began; 0 for none."""
        self._owes_all = True
        """Whether the next pass must ask for all names. It stays True if such a pass ends early,
        for example because an answer got lost: the pass has begun a new series of numbers, which
        proves nothing about shards that were found before."""

    def unknown(
        self,
        ledger: Ledger,
        manifest: Manifest,
        waiting: Sequence[ShardEntry],
        *,
        checked: Manifest | None,
    ) -> list[str]:
        """Return the kernels shards of ``manifest`` and ``waiting`` that ``ledger`` lacks.

        If the result is empty, the ledger has recorded all of them in one and the same state: its
        state at the last check of this call.

        Args:
            ledger: the dataset's ledger.
            manifest: a version of the dataset.
            waiting: further shards, which the ledger has named before.
            checked: a manifest of which this ledger lacked no shard in an earlier call. None asks
                for all names, for example because the ledger is a new one.

        Raises:
            LedgerLostError: The ledger is lost, or was restored twice during this call.
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
        """Ask for the names that ``checked`` lacks, or for all names if ``_owes_all`` is set."""
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
