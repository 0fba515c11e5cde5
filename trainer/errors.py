"""The errors that the trainer raises.

::

    LlmperfError                   (llmperf_common.errors)
    +-- ConfigError                (llmperf_common.config; exit 2)
    |   +-- OutputTaken            (llmperf_common.files.outputs; the output folder is in use)
    |       +-- RunExists          the output folder holds another run
    +-- BadInput                   an unusable kernel, argument, device, run or dataset (exit 3)
    |   +-- SeenRows               rows of train families, without ``allow_seen``
    |   +-- FitFailed              a fit that cannot go on: a non-finite loss, a full disk
    |       +-- PeerLost           another process of the fit has ended
    +-- Interrupted                a signal ended the fit; its state is saved (exit 130)
"""

from __future__ import annotations

from llmperf_common.errors import Exit, LlmperfError
from llmperf_common.files.outputs import OutputTaken


class RunExists(OutputTaken):
    """The folder holds a run with other data or config, or another process trains in it."""


class BadInput(LlmperfError, ValueError):  # noqa: N818  (named for what is wrong)
    """An input cannot be used. The message says what is wrong, where, and what to do."""


class SeenRows(BadInput):
    """Rows to score are of families that the model was trained on; ``allow_seen`` accepts them."""


class FitFailed(BadInput):
    """A fit cannot go on. Its last complete checkpoint stays; the message says what to change."""


class PeerLost(FitFailed):
    """Another process of the fit has ended. That process or its supervisor reports the cause."""

    is_echo = True


class Interrupted(LlmperfError):  # noqa: N818  (it names a state, as the house's other errors do)
    """A signal ended the fit between two steps. The same command resumes from its checkpoint."""

    exit_code = Exit.INTERRUPTED
