"""A worker's heartbeat: its report goes to the ledger every few seconds and once at the end.

Owns how often, and that a report which fails does not disturb the loop: a viewer sees the last one grow old.
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
    """Tells a ledger how one worker stands.

    Args:
        report: of the worker.
        worker_id: the name in the ledger.
        clock_s: monotonic seconds.
        heard: is given each document, too (an actor makes metrics of it).
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
        """Report if it is time to; ``is_last``: in any case."""
        now_s = self._clock_s()
        if now_s < self._after_s and not is_last:
            return
        self._after_s = now_s + INTERVAL_S
        try:
            document = self._report.document()
            self._heard(document)
            ledger.report(self._worker_id, json.dumps(document, ensure_ascii=False))
        except Exception as error:  # noqa: BLE001  (whatever it is: nothing that is collected depends on it)
            self._after_s = now_s + _WAIT_AFTER_FAILURE_S
            _logger.info("no heartbeat in the ledger: %s", error)
