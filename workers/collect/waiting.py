"""Tell the user when a collector has long had nothing to do, because others hold the last tasks.

Owns when a warning is logged and what it says.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from llmperf_common.ledger.protocol import Ledger

_MOST_SHOWN = 3
_logger = logging.getLogger(__name__)


class WaitingNote:
    """Warns after one TTL of waiting, and again each time that the wait has doubled.

    By then a dead holder's leases have usually expired. A live holder may need longer for a task.

    Args:
        clock_s: monotonic seconds.
        ttl_s: seconds for which a lease lives without renewal.
    """

    def __init__(self, clock_s: Callable[[], float], *, ttl_s: float) -> None:
        self._clock_s = clock_s
        self._ttl_s = ttl_s
        self._since_s: float | None = None
        self._after_s = ttl_s

    def update(self, ledger: Ledger, tasks: range, *, is_waiting: bool) -> None:
        """Note whether the collector has no task and can claim none; warn if that is due."""
        if not is_waiting:
            self._since_s = None
            return
        now_s = self._clock_s()
        if self._since_s is None:
            self._since_s, self._after_s = now_s, self._ttl_s
        waited_s = now_s - self._since_s
        if waited_s < self._after_s:
            return
        self._after_s = 2 * waited_s
        found = ledger.holdings(tasks)
        if not found:
            return
        texts = [
            f"{one.holder} holds {one.num_tasks:,} (the leases end in {one.expires_in_s:.0f} s "
            "unless it renews them)"
            for one in found[:_MOST_SHOWN]
        ]
        if len(found) > _MOST_SHOWN:
            texts.append(f"{len(found) - _MOST_SHOWN:,} more collectors hold the others")
        _logger.warning(
            "no task for %.0f s, because other collectors hold the last tasks: %s; if one of these "
            "collectors is dead, this collector takes its tasks when its leases end",
            waited_s,
            "; ".join(texts),
        )
