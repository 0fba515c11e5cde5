"""The report of a collecting process: its state, its rows and rate, the condition of its device.

Owns the document of at most about 2 KB that heartbeats carry (``collect/heartbeat.py`` sends it).
``SelfReport`` observes the loop; all its counts are of this process since it began.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from llmperf_common.failures import OK_STATUS, Failure
from llmperf_common.ledger.protocol import Lease
from llmperf_common.records import Device, TaskResult
from workers.collect.observers import SilentObserver, statuses_of
from workers.device.nvidia.monitor import Reading
from workers.plan.plan import Task

RATE_WINDOW_S = 60.0
_SAMPLES_LOOKED_AT = 500
_TEXT_LIMIT = 300


class WorkerState(StrEnum):
    """The state of a collecting process; the last three are final."""

    COLLECTING = "collecting"
    ENDED = "ended"
    """No task is left for the process, or it was asked to stop."""
    DRAINED = "drained"
    """The process's device gives no times, or times that cannot be trusted."""
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether a report with this state is the process's last one."""
        return self is not WorkerState.COLLECTING


class SelfReport(SilentObserver):
    """Observes one process's loop and makes its report at any moment.

    Args:
        worker_id: ``host/pid``.
        device: the device that collects.
        context: the ids of actor, node and slot on a cluster; empty elsewhere.
        read: returns the device's present condition; None where it is not known.
        clock_s: monotonic seconds.
    """

    def __init__(
        self,
        *,
        worker_id: str,
        device: Device,
        context: Mapping[str, str],
        read: Callable[[], Reading | None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        host, _, pid = worker_id.rpartition("/")
        self._facts: dict[str, Any] = {
            "worker": worker_id,
            "host": host,
            "pid": int(pid),
            **context,
            "device": device.name,
            "device_class": device.device_class,
            "device_uuid": device.device_uuid,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._read = read
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._state, self._why = WorkerState.COLLECTING, ""
        self._statuses: Counter[str] = Counter()
        self._num_tasks_done = 0
        self._committed: deque[tuple[float, int, int]] = deque()
        self._in_hand: dict[int, str] = {}
        self._throttled: deque[bool] = deque(maxlen=_SAMPLES_LOOKED_AT)
        self.last_error = ""

    @property
    def tasks_in_hand(self) -> list[str]:
        """Ids of the tasks that were claimed and have no result yet."""
        return list(self._in_hand.values())

    def ends(self, state: WorkerState, why: str) -> None:
        """Note how the process ended, and that it holds no tasks any more."""
        self._state, self._why = state, why
        self._in_hand.clear()

    def note_error(self, message: str) -> None:
        """Note the latest error or warning."""
        self.last_error = message

    def document(self) -> dict[str, Any]:
        """Return the current report; its rates count durable tasks and durable rows that are ok."""
        now_s = self._clock_s()
        while self._committed and self._committed[0][0] < now_s - RATE_WINDOW_S:
            self._committed.popleft()
        elapsed_s = max(now_s - self._began_s, 1e-3)
        window_s = min(elapsed_s, RATE_WINDOW_S)
        reading = self._read()
        num_throttled = sum(self._throttled)
        return {
            **self._facts,
            "state": self._state.value,
            "why": _cut(self._why),
            "ok": self._statuses[OK_STATUS],
            "failed": {code: n for code, n in sorted(self._statuses.items()) if code != OK_STATUS},
            "ok_per_s": round(sum(ok for _, ok, _ in self._committed) / window_s, 3),
            "ok_per_s_overall": round(self._statuses[OK_STATUS] / elapsed_s, 3),
            "tasks_per_s": round(sum(tasks for _, _, tasks in self._committed) / window_s, 5),
            "tasks_done": self._num_tasks_done,
            "tasks_in_hand": len(self._in_hand),
            "busy_share": reading.busy_share if reading else None,
            "temperature_c": reading.temperature_c if reading else None,
            "throttled_share": num_throttled / len(self._throttled) if self._throttled else None,
            "last_error": _cut(self.last_error),
            "seconds": round(elapsed_s, 1),
        }

    def claimed(self, task: Task, lease: Lease) -> None:
        """A task was leased."""
        self._in_hand[lease.task] = task.task_id

    def finished(self, lease: Lease, result: TaskResult) -> None:
        """A task has its result, not yet durable."""
        self._in_hand.pop(lease.task, None)
        self._throttled.extend(
            one.outcome.throttled
            for one in result.samples
            if not isinstance(one.outcome, Failure) and one.outcome.throttled is not None
        )

    def committed(self, stem: str, results: Sequence[TaskResult], epoch: int) -> None:
        """Results are durable."""
        del stem, epoch
        rows = statuses_of(results)
        self._statuses += rows
        self._num_tasks_done += len(results)
        self._committed.append((self._clock_s(), rows[OK_STATUS], len(results)))

    def refused(self, stem: str, stale_tasks: Sequence[int]) -> None:
        """The ledger did not accept a shard."""
        self.last_error = (
            f"the ledger refused shard {stem}: another worker had leased "
            f"{len(stale_tasks)} of its tasks"
        )

    def lost(self, tasks: Sequence[int], why: str) -> None:
        """Leases were lost and their work dropped."""
        for task in tasks:
            self._in_hand.pop(task, None)
        self.last_error = f"{len(tasks)} tasks given up: {why}"


def _cut(text: str) -> str:
    """Return the first line of a text, cut to ``_TEXT_LIMIT`` characters.

    >>> _cut("no space left")
    'no space left'
    """
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _TEXT_LIMIT else line[: _TEXT_LIMIT - 1] + "…"
