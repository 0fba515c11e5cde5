"""Write the warnings of Python's ``logging`` into a worker's event log, as JSON lines.

Owns the handler. Until the dataset's event log is open, the newest records wait in memory.
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
    """Writes records of level ``WARNING`` and above into an event log, once that log is open."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._log: EventLog | None = None
        self._tasks_in_hand: Callable[[], Sequence[str]] = list
        self._told: Callable[[str], None] = _discard_message
        self._waiting: deque[logging.LogRecord] = deque(maxlen=_WAITING_LIMIT)

    @property
    def has_waiting(self) -> bool:
        """Whether there are records that no event log has received."""
        return bool(self._waiting)

    @contextlib.contextmanager
    def writing_to(
        self,
        log: EventLog,
        *,
        tasks_in_hand: Callable[[], Sequence[str]] = list,
        told: Callable[[str], None] = lambda _message: None,
    ) -> Iterator[None]:
        """Write records into ``log`` while a ``with`` block runs.

        Args:
            log: the event log.
            tasks_in_hand: returns the ids of the tasks that the worker has in hand.
            told: is called with each message.
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
        """Write or keep a record; ``logging`` calls this with the handler's lock held."""
        if logging.lastResort is not None and logging.getLogger().handlers == [self]:
            logging.lastResort.handle(record)  # on stderr, as it would be without this handler
        if self._log is None:
            self._waiting.append(record)
        else:
            self._write(self._log, record)

    def _write(self, log: EventLog, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
            if record.exc_info:
                message += "\n" + logging.Formatter().formatException(record.exc_info)
        except Exception:  # noqa: BLE001  (a bad format string must not end the worker)
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
    """Receive this process's log records while a ``with`` block runs; stderr still shows them."""
    handler = EventLogHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)


def _discard_message(_message: str) -> None:
    return
