"""SIGINT and SIGTERM as an event that the fit checks between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruption(event: threading.Event | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second raises KeyboardInterrupt.

    Outside of the main thread (as in a Ray worker) no signal handler is set, so the caller must
    set ``event``.

    Args:
        event: the event to set; None makes a new one.
    """
    asked = event or threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
