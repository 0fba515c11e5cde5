"""Convert exceptions to messages and exit codes (``llmperf_common/errors.py`` has the codes).

0 done, 2 usage, 3 bad input, 4 no usable device, 5 more failures than ``--max-failures`` or no
kernel compiles, 130 interrupted with state saved. Other exceptions are bugs and show a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import NoReturn

from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.files.visible import visible_lines
from llmperf_common.masking import masked

__all__ = [
    "STANDARD_OUTPUT",
    "CommandError",
    "Exit",
    "exit_code_of",
    "leave",
    "run_guarded",
    "show_bug",
    "sigterm_interrupts",
]


STANDARD_OUTPUT = "standard output"
"""Used as the file name in errors about the stream to which results are written."""


class CommandError(LlmperfError):
    """A mistake that the user can correct; the message says what is wrong, where and what to do."""

    def __init__(self, exit_code: Exit, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code_of(error: BaseException) -> Exit | None:
    """Return the exit code of a foreseeable error; None for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return Exit.INTERRUPTED
    return error.exit_code if isinstance(error, LlmperfError) else None


_ENVIRONMENT_ERRORS = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG,
        errno.ENOSPC, errno.EDQUOT, errno.EIO,
    }
)  # fmt: skip
"""Numbers of errors that the machine or its file system causes, not a bug of LLMPerf."""


def _environment_message(error: BaseException) -> str | None:
    """Return the message for an error of the machine (full disk, no memory), else None."""
    if isinstance(error, MemoryError) or _is_of_thread_start(error):
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        mend = "raise `ulimit -v`" if limited else "free some memory, or use a larger machine"
        return (
            f"not enough memory ({str(error) or 'none was granted'}): nothing committed is lost; {mend} "
            "and run the same command again"
        )
    if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
        return (
            f"{STANDARD_OUTPUT}: {error.strerror}: the result is not printed completely; free some "
            "space there, or send the output to another place, and run the same command again"
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f"{error.strerror}: nothing committed is lost; raise `ulimit -n` and run the same "
            "command again"
        )
    if not isinstance(error, OSError) or error.errno not in _ENVIRONMENT_ERRORS:
        return None
    path = error.filename2 or error.filename
    where = f"{path}: " if path else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "nothing committed is lost; free some space and run the same command again"
    else:
        what = "name another path, or correct this one"
    return f"{where}{error.strerror}: {what}"


def _is_of_thread_start(error: BaseException) -> bool:
    """Whether the machine refused a new thread, which Python reports by a ``RuntimeError``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (
        isinstance(error, RuntimeError)
        and trace is not None
        and trace.tb_frame.f_code is threading.Thread.start.__code__
    )


def run_guarded(command: Callable[[], None]) -> None:
    """Run ``command``; on a foreseeable error print its message and exit with its code."""
    try:
        _with_flush(command)
    except BaseException as error:
        code, text = exit_code_of(error), str(error) or "interrupted"
        environment = _environment_message(error)
        if environment is not None:
            code, text = Exit.BAD_INPUT, environment
        if code is None:
            raise
        if _is_said_elsewhere(error, code):
            time.sleep(_FIRST_SPEAKS_S)
        else:
            with contextlib.suppress(OSError):  # the exit code still reports the error
                sys.stderr.write(f"llmperf: {visible_lines(masked(text))}\n")
                sys.stderr.flush()
        sys.exit(code)


def _with_flush(command: Callable[[], None]) -> None:
    """Run ``command`` and, if it succeeds, write out its results, so that their loss is an error."""
    end: SystemExit | None = None
    try:
        command()
    except SystemExit as error:
        if error.code:
            raise
        end = error
    # A reader may want no more (`| head`), and a library may have closed the stream.
    with contextlib.suppress(BrokenPipeError, ValueError):
        if sys.stdout:
            sys.stdout.flush()
    if end is not None:
        raise end


@contextlib.contextmanager
def sigterm_interrupts(message: str) -> Iterator[None]:
    """End the ``with`` block on SIGTERM or Ctrl-C, and raise an error with ``message``.

    Code inside the block may handle both signals itself, as a fit does to save its state.

    Raises:
        CommandError: Ctrl-C or SIGTERM arrived; the exit code is 130.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    except KeyboardInterrupt:
        raise CommandError(Exit.INTERRUPTED, message) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Write the traceback of a bug to stderr, as Python does, with passwords masked."""
    sys.stderr.write(masked("".join(traceback.format_exception(kind, error, trace))))


_FIRST_SPEAKS_S = 10.0
"""Seconds that other processes wait before they exit, so that the first process can report the
cause. ``torchrun`` ends all processes as soon as one has ended."""


def _is_said_elsewhere(error: BaseException, code: Exit) -> bool:
    """Whether ``torchrun`` started this process, and its first process reports the error, too."""
    if not re.fullmatch("[1-9][0-9]{0,8}", os.environ.get("RANK", "0")):
        return False
    is_echo = isinstance(error, LlmperfError) and error.is_echo
    return is_echo or code in (Exit.USAGE, Exit.INTERRUPTED)


def leave(code: str | int | None) -> NoReturn:
    """End the process with ``code`` at once, without the interpreter's shutdown.

    During that shutdown a library's thread once aborted the process (exit code 134), after the
    command had printed its message. LLMPerf has nothing left to clean up here.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
