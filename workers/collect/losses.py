"""What the losses of a ledger have cost, and when there are too many of them.

Owns the limit of losses, and the tasks whose results were dropped. ``loop.py`` attaches again.
"""

from __future__ import annotations

from collections.abc import Iterable

from llmperf_common.store.files.filesystem import StoreError

_MOST_IN_A_ROW = 5
"""Number of losses of one epoch's ledger without a commit in between. By then, each new attempt has
opened the same ledger, so a further attempt will not mend it."""


class Losses:
    """Counts the losses of a loop's ledgers.

    >>> losses = Losses()
    >>> losses.note(1, "it is gone", [7, 8])
    >>> losses.committed([8])
    >>> losses.num_dropped
    1
    """

    def __init__(self) -> None:
        self._epoch = 0
        self._num_in_a_row = 0
        self._dropped: set[int] = set()

    @property
    def num_dropped(self) -> int:
        """Number of tasks that had finished when a ledger was lost, and are not committed since."""
        return len(self._dropped)

    def note(self, epoch: int, why: str, finished: Iterable[int]) -> None:
        """Note that the ledger of ``epoch`` is lost, and with it the results of ``finished``.

        Raises:
            StoreError: This ledger was lost too often in a row.
        """
        self._dropped.update(finished)
        self._num_in_a_row = self._num_in_a_row + 1 if epoch == self._epoch else 1
        self._epoch = epoch
        if self._num_in_a_row >= _MOST_IN_A_ROW:
            raise StoreError(
                f"the ledger was lost {self._num_in_a_row} times, although the same ledger was "
                f"opened again each time: {why}. Nothing committed is lost; "
                f"{self.num_dropped} finished tasks could not be committed. If the cause is not "
                "the disk, move the ledger away, then run the same command again: the ledger is "
                "built from the shards"
            )

    def committed(self, tasks: Iterable[int]) -> None:
        """Note that the results of ``tasks`` are durable."""
        self._dropped.difference_update(tasks)
        self._num_in_a_row = 0
