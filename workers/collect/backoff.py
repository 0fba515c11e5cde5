"""The backoff for a ledger that could not be reached.

Owns the waiting times and the warnings. Each wait is twice as long as the one before, so that a
thousand workers do not all call a server at once when it answers again.
"""

from __future__ import annotations

import logging

from llmperf_common.ledger.protocol import LedgerAwayError

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 15.0
_MOST_DOUBLINGS = 10
"""Doublings after which the wait grows no more; without a limit, 2.0**1024 would overflow."""
_logger = logging.getLogger(__name__)


class Backoff:
    """Counts failures in a row and says how long to wait; the caller gives the time.

    >>> backoff = Backoff()
    >>> [backoff.failed(now_s=10.0) for _ in range(3)]
    [0.5, 1.0, 2.0]
    >>> backoff.is_waiting(now_s=11.9), backoff.is_waiting(now_s=12.0)
    (True, False)
    >>> backoff.outage_s(now_s=12.0)
    2.0
    >>> backoff.succeeded()
    >>> backoff.outage_s(now_s=12.0)
    0.0
    """

    def __init__(self) -> None:
        self._num_failures = 0
        self._since_s = 0.0
        self._until_s = 0.0

    def failed(self, *, now_s: float) -> float:
        """Note one more failure; return how many seconds to wait before the next attempt."""
        if not self._num_failures:
            self._since_s = now_s
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self._num_failures, _MOST_DOUBLINGS))
        self._num_failures += 1
        self._until_s = now_s + wait_s
        return wait_s

    def note(self, error: LedgerAwayError, *, now_s: float, limit_s: float) -> None:
        """Count a failure and log ``error``; raise ``error`` if the outage exceeds ``limit_s``."""
        if self.outage_s(now_s=now_s) > limit_s:
            raise error
        _logger.warning("%s; asking again in %g s", error, self.failed(now_s=now_s))

    def succeeded(self) -> None:
        """Note that the ledger answered."""
        self._num_failures = 0
        self._until_s = 0.0

    def is_waiting(self, *, now_s: float) -> bool:
        """Whether it is too early to try again."""
        return now_s < self._until_s

    def outage_s(self, *, now_s: float) -> float:
        """Return for how many seconds the ledger has not answered; 0 if the last call succeeded."""
        return now_s - self._since_s if self._num_failures else 0.0
