"""The entry point of the command: handles signals before the command tree is imported.

The imports of ``main.py`` take half a second. Without this module, Ctrl-C would print a traceback
in this time, and SIGTERM would end ``llmperf collect`` without its exit code.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from llmperf.exits import run_guarded


def run() -> None:
    """Run the command line and end the process with a code of ``llmperf.exits.Exit``."""
    if _command() == "collect":
        _let_signals_interrupt()
    run_guarded(_import_and_run)


def _command() -> str | None:
    """Return the first argument that is no option; no option before a command takes a value."""
    return next((word for word in sys.argv[1:] if not word.startswith("-")), None)


def _import_and_run() -> None:
    from llmperf.cli import main  # noqa: PLC0415

    main.run()


def _let_signals_interrupt() -> None:
    """Let SIGTERM, and SIGHUP if it is not ignored, act like Ctrl-C; later code may replace this."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
