"""The driver's own heartbeat in the ledger: the slots, and why some of them do not collect.

An actor that cannot open its device never reports to the ledger, so only this heartbeat shows its
slot. Owns an observer, which wraps the observer that shows the run, and the thread that writes the
heartbeat. (The pool must not wait for a ledger that does not answer.)
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
from cluster.pool.pool import ActorPool
from cluster.pool.slot_records import SlotState
from cluster.pool.slots import ActorSlot
from llmperf_common.ledger.attach import LedgerLocation, process_name
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
_SLOTS_TOLD = 10
_WHY_LIMIT = 120
_TOLD_STATES = (SlotState.DRAINED, SlotState.GONE, SlotState.PAUSED, SlotState.WAITING)

_logger = logging.getLogger(__name__)


class SlotHeartbeat:
    """Passes every call on to an observer, and keeps a heartbeat about the slots in the ledger.

    Args:
        observer: receives every call.
        fs: the dataset.
        ledger_location_of: returns the location of a run's ledgers.
        events: folder of the event logs, which record every change of a slot's state.
    """

    def __init__(
        self,
        observer: ClusterObserver,
        fs: Filesystem,
        ledger_location_of: Callable[[RunRecord], LedgerLocation],
        *,
        events: Path,
    ) -> None:
        self._observer = observer
        self._fs = fs
        self._ledger_location_of = ledger_location_of
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
        self._states: dict[ActorSlot, SlotState] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Pass on a message for the operator."""
        self._observer.say(text)

    def began(self, plan: Plan, devices: tuple[Device, ...], num_tasks_done: int) -> None:
        """Pass the start of the run on, and start the reporting thread."""
        self._observer.began(plan, devices, num_tasks_done)
        self._log = open_event_log(self._events, self._worker_id)
        self._thread = threading.Thread(target=self._report, name="slot-heartbeat", daemon=True)
        self._thread.start()

    def stands(self, pool: ActorPool) -> None:
        """Pass the state of the actors on, log changed slots and update the report."""
        self._observer.stands(pool)
        self._note_changes(pool)
        self._document = self._facts | slots_document(pool)

    def close(self) -> None:
        """Report a last time; do not wait for a ledger that does not answer."""
        if self._document:
            self._document |= {"state": "ended"}
        self._closing.set()
        if self._thread is not None:
            self._thread.join(INTERVAL_S)
        if self._log is not None:
            self._log.close()

    def _note_changes(self, pool: ActorPool) -> None:
        for slot, record in pool.slots.items():
            if self._log is not None and self._states.get(slot) is not record.state:
                self._states[slot] = record.state
                self._log.note("seat", seat=slot.name, state=record.state.value, why=record.why)

    def _report(self) -> None:
        ledger: Ledger | None = None
        is_last = False
        while not is_last:
            is_last = self._closing.wait(INTERVAL_S)
            try:
                ledger = ledger or self._open()
                if ledger is not None and self._document:
                    ledger.report(self._worker_id, json.dumps(self._document, ensure_ascii=False))
            except Exception as error:  # noqa: BLE001  (nothing depends on a heartbeat)
                _logger.info("cannot write a heartbeat into the ledger: %s", error)
                ledger = None
        if ledger is not None:
            ledger.close()

    def _open(self) -> Ledger | None:
        """Open the ledger that the actors have created; the driver never creates one."""
        run, epoch = read_run(self._fs), latest_epoch(self._fs)
        return self._ledger_location_of(run).open(epoch, run.plan_hash) if run and epoch else None


def slots_document(pool: ActorPool) -> dict[str, Any]:
    """Return the number of slots in each state, and why some slots do not collect."""
    records = list(pool.slots.values())
    told = [
        {"seat": record.slot.name, "state": record.state.value, "why": _first_line(record.why)}
        for record in records
        if record.state in _TOLD_STATES
    ]
    return {
        "state": "collecting",
        "seats": dict(Counter(record.state.value for record in records)),
        "not_collecting": told[:_SLOTS_TOLD],
        "missing_labels": [_first_line(text) for text in pool.missing_labels[:3]],
    }


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_WHY_LIMIT]
