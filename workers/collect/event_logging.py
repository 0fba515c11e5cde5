"""Python's ``logging`` in the event log: its warnings as JSON lines beside everything else that a worker does.

Owns the handler. What is logged before the dataset's event log is open waits, the newest of it.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from workers.collect.events import EventLog

_WAITING_LIMIT = 200
_TASKS_SHOWN = 16
_MESSAGE_LIMIT = 4000


class EventLogHandler(logging.Handler):
    """Writes records from ``WARNING`` on into an event log, once there is one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log: EventLog | None = None
        self._tasks_in_hand: Callable[[], Sequence[str]] = list
        self._told: Callable[[str], None] = _discard_message
        self._waiting: deque[logging.LogRecord] = deque(maxlen=_WAITING_LIMIT)

    @property
    def has_waiting(self) -> bool:
        """Whether something was logged that no event log has."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def writing_to(
        self,
        log: EventLog,
        *,
        tasks_in_hand: Callable[[], Sequence[str]] = list,
        told: Callable[[str], None] = lambda _message: None,
    ) -> Iterator[None]:
        """Write into ``log`` for the length of a ``with``.

        Args:
            log: where to.
            tasks_in_hand: ids of the tasks that the worker is at.
            told: is given each message, too.
        """
        with self._locked():
            self._log, self._tasks_in_hand, self._told = log, tasks_in_hand, told
            while self._waiting:
                self._write(log, self._waiting.popleft())
        try:
            yield
        finally:
            with self._locked():
                self._log, self._tasks_in_hand, self._told = None, list, _discard_message

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record; the handler's lock is held."""
        if logging.lastResort is not None and logging.getLogger().handlers == [self]:
            logging.lastResort.handle(record)  # as it would be without us: on stderr
        if self._log is None:
            self._waiting.append(record)
        else:
            self._write(self._log, record)

    def _write(self, log: EventLog, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception:  # noqa: BLE001  (as ``Handler.handleError``: a bad format string ends nothing)
            message = str(record.msg)
        fields = {"task_id": record.__dict__["task_id"]} if "task_id" in record.__dict__ else {}
        log.note(
            "log",
            at_s=round(record.created, 3),
            level=record.levelname.lower(),
            logger=record.name,
            message=message[:_MESSAGE_LIMIT],
            tasks_in_hand=list(self._tasks_in_hand())[:_TASKS_SHOWN],
            **fields,
        )
        self._told(message)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


@contextlib.contextmanager
def logging_taken() -> Iterator[EventLogHandler]:
    """Take what this process logs for the length of a ``with``; it appears on stderr as before."""
    handler = EventLogHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)


def _discard_message(_message: str) -> None:
    return
