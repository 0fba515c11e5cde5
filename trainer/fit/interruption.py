"""Ctrl-C and SIGTERM as a flag that the fit looks at between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruption(event: threading.Event | None = None) -> Iterator[threading.Event]:
    """Give an event that is set by the first SIGINT or SIGTERM; the second raises KeyboardInterrupt.

    Outside the main thread, as in a worker of Ray, signals are not this function's: the caller sets ``event``.

    Args:
        event: the one to set; None makes one.
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
