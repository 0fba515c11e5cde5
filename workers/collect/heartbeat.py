"""Send a worker's report to the ledger every few seconds and once at the end.

Owns the interval. A failure to send does not disturb the loop; ``llmperf status`` then shows the
last report, which grows older.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from llmperf_common.ledger.protocol import Ledger
from workers.collect.self_report import SelfReport

INTERVAL_S = 2.0
_WAIT_AFTER_FAILURE_S = 30.0

_logger = logging.getLogger(__name__)


class HeartbeatWriter:
    """Sends one worker's reports to a ledger.

    Args:
        report: makes the worker's document.
        worker_id: the worker's name in the ledger.
        clock_s: monotonic seconds.
        heard: is called with each document (an actor makes metrics of it).
    """

    def __init__(
        self,
        report: SelfReport,
        *,
        worker_id: str,
        clock_s: Callable[[], float],
        heard: Callable[[Mapping[str, Any]], None] = lambda _document: None,
    ) -> None:
        self._report = report
        self._worker_id = worker_id
        self._clock_s = clock_s
        self._heard = heard
        self._after_s = clock_s()

    def tell(self, ledger: Ledger, *, is_last: bool = False) -> None:
        """Send a report if one is due; with ``is_last`` send it in any case."""
        now_s = self._clock_s()
        if now_s < self._after_s and not is_last:
            return
        self._after_s = now_s + INTERVAL_S
        try:
            document = self._report.document()
            self._heard(document)
            ledger.report(self._worker_id, json.dumps(document, ensure_ascii=False))
        except Exception as error:  # noqa: BLE001  (no collected data depends on a heartbeat)
            self._after_s = now_s + _WAIT_AFTER_FAILURE_S
            _logger.info("cannot write a heartbeat into the ledger: %s", error)
