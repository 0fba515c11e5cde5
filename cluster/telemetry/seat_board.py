"""The driver's own report on the ledger's board: the seats, and why some of them do not collect.

Owns an observer around the one that shows the run, and the thread that reports: a ledger that does not answer must not hold the pool
up. A seat whose device cannot be opened never reaches the ledger itself; it is seen here.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.collect import ClusterObserver
from cluster.pool.pool import ActorPool, SeatState
from cluster.pool.seats import Seat
from llmperf_common.ledger.attach import LedgerHome, process_name
from llmperf_common.ledger.holder import this_process
from llmperf_common.ledger.protocol import Ledger
from llmperf_common.records import Device
from llmperf_common.store.files.filesystem import Filesystem
from llmperf_common.store.manifests.epochs import latest_epoch
from llmperf_common.store.manifests.run import RunRecord, read_run
from workers.collect.events import EventLog, open_event_log
from workers.plan.plan import Plan

DRIVER_PREFIX = "driver/"
INTERVAL_S = 2.0
_SEATS_TOLD = 10
_WHY_LIMIT = 120
_TOLD_STATES = (SeatState.DRAINED, SeatState.GONE, SeatState.PAUSED, SeatState.WAITING)

_logger = logging.getLogger(__name__)


class SeatBoard:
    """Passes everything on to an observer, and keeps a report of the seats on the ledger's board.

    Args:
        observer: is told everything.
        fs: the dataset.
        home_of: where the ledgers of a run are kept.
        events: folder of the event logs; every change of a seat's state is written there.
    """

    def __init__(
        self,
        observer: ClusterObserver,
        fs: Filesystem,
        home_of: Callable[[RunRecord], LedgerHome],
        *,
        events: Path,
    ) -> None:
        self._observer = observer
        self._fs = fs
        self._home_of = home_of
        holder = this_process()
        self._worker_id = DRIVER_PREFIX + process_name(holder)
        self._facts = {
            "role": "driver",
            "worker": self._worker_id,
            "host": holder.host,
            "pid": holder.pid,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._document: dict[str, Any] = {}
        self._events = events
        self._log: EventLog | None = None
        self._states: dict[Seat, SeatState] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Something that an operator should know."""
        self._observer.say(text)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """The plan is made and actors begin."""
        self._observer.began(plan, devices, num_tasks_done)
        self._log = open_event_log(self._events, self._worker_id)
        self._thread = threading.Thread(target=self._report, name="seat-board", daemon=True)
        self._thread.start()

    def stands(self, pool: ActorPool) -> None:
        """How all actors are now."""
        self._observer.stands(pool)
        self._note_changes(pool)
        self._document = self._facts | seats_document(pool)

    def close(self) -> None:
        """Report a last time; a ledger that does not answer is not waited for."""
        if self._document:
            self._document |= {"state": "ended"}
        self._closing.set()
        if self._thread is not None:
            self._thread.join(INTERVAL_S)
        if self._log is not None:
            self._log.close()

    def _note_changes(self, pool: ActorPool) -> None:
        for seat, place in pool.places.items():
            if self._log is not None and self._states.get(seat) is not place.state:
                self._states[seat] = place.state
                self._log.note("seat", seat=seat.name, state=place.state.value, why=place.why)

    def _report(self) -> None:
        ledger: Ledger | None = None
        is_last = False
        while not is_last:
            is_last = self._closing.wait(INTERVAL_S)
            try:
                ledger = ledger or self._open()
                if ledger is not None and self._document:
                    ledger.report(self._worker_id, json.dumps(self._document, ensure_ascii=False))
            except Exception as error:  # noqa: BLE001  (as in workers/collect/heartbeat.py: nothing depends on it)
                _logger.info("no report on the ledger's board: %s", error)
                ledger = None
        if ledger is not None:
            ledger.close()

    def _open(self) -> Ledger | None:
        """Open the ledger that the actors have made; making one is theirs."""
        run, epoch = read_run(self._fs), latest_epoch(self._fs)
        return self._home_of(run).open(epoch, run.plan_hash) if run and epoch else None


def seats_document(pool: ActorPool) -> dict[str, Any]:
    """Return how many seats are in each state, and of those that do not collect a few with the reason."""
    places = list(pool.places.values())
    told = [
        {"seat": place.seat.name, "state": place.state.value, "why": _first_line(place.why)}
        for place in places
        if place.state in _TOLD_STATES
    ]
    return {
        "state": "collecting",
        "seats": dict(Counter(place.state.value for place in places)),
        "not_collecting": told[:_SEATS_TOLD],
        "missing_labels": [_first_line(text) for text in pool.missing_labels[:3]],
    }


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_WHY_LIMIT]
