"""Exit codes, and the one place where an error becomes a message and a code.

0 done, 2 usage, 3 bad input, 4 no usable device, 5 more failures than ``--max-failures``, 130 interrupted with
state saved. Anything else that is thrown is a bug and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import IntEnum


class Exit(IntEnum):
    """What the process ends with."""

    DONE = 0
    USAGE = 2
    BAD_INPUT = 3
    NO_DEVICE = 4
    TOO_MANY_FAILURES = 5
    INTERRUPTED = 130


class CommandError(Exception):
    """A mistake that the user can mend: what is wrong, where, what to do."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


def exit_code_of(error: BaseException) -> Exit | None:
    """Return the code of a foreseeable error, None for a bug.

    Matched by the names of the error's classes, so that a command which never opened a dataset or a
    device need not load the rooms that define them.
    """
    if isinstance(error, CommandError):
        return error.code
    for kind in type(error).__mro__:
        code = _CODES.get(f"{kind.__module__}.{kind.__name__}")
        if code is not None:
            return code
    return None


_CODES = {
    "builtins.KeyboardInterrupt": Exit.INTERRUPTED,
    "llmperf_common.config.ConfigError": Exit.USAGE,
    "llmperf_common.extras.MissingExtra": Exit.USAGE,
    "llmperf_common.store.run.ForeignRunError": Exit.USAGE,
    "llmperf_common.store.filesystem.StoreError": Exit.BAD_INPUT,
    "trainer.errors.BadInput": Exit.BAD_INPUT,
    "llmperf_common.splits.SplitError": Exit.BAD_INPUT,
    "workers.corpus.CorpusError": Exit.BAD_INPUT,
    "workers.launch_plan.NotInThisRelease": Exit.USAGE,
    "workers.running.DeviceLostError": Exit.NO_DEVICE,
}


def run_guarded(command: Callable[[], None]) -> None:
    """Run ``command`` and end the process with its exit code; no traceback for foreseeable mistakes."""
    try:
        command()
    except BaseException as error:
        code = exit_code_of(error)
        if code is None:
            raise
        text = str(error) or "interrupted"
        sys.stderr.write(f"llmperf: {text}\n")
        sys.exit(code)
