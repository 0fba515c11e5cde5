"""What a user of the trainer can get wrong.

::

    LlmperfError                   (llmperf_common.errors)
    +-- ConfigError                (llmperf_common.config; exit 2)
    |   +-- OutputTaken            (llmperf_common.files.outputs) the output folder holds what this command did not write
    |       +-- RunExists          the output folder holds another run
    +-- BadInput                   a kernel, argument, size, device, run or dataset that cannot be used (exit 3)
    |   +-- SeenRows               rows of families trained on, without leave to score them
    |   +-- FitFailed              a fit that cannot go on: a loss that is no number, a full disk
    |       +-- PeerLost           another process of the fit has ended
    +-- Interrupted                a fit that was asked to end, its state saved (exit 130)
"""

from __future__ import annotations

from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.files.outputs import OutputTaken


class RunExists(OutputTaken):
    """The output folder holds a run of other data or another config."""


class BadInput(LlmperfError, ValueError):  # noqa: N818  (named for what is wrong)
    """An input that cannot be used; the message says what, where and what to do."""


class SeenRows(BadInput):
    """Rows of families that the model was trained on were asked for without ``allow_seen``."""


class FitFailed(BadInput):
    """A fit cannot go on. Its last whole checkpoint stays; the message says what to change."""


class PeerLost(FitFailed):
    """Another process of the fit has ended; that process, or what watches it, knows the cause."""

    is_echo = True


class Interrupted(LlmperfError):  # noqa: N818  (it names a state, as the house's other errors do)
    """A signal ended the fit between two steps; the same command goes on from the checkpoint it saved."""

    exit_code = Exit.INTERRUPTED
