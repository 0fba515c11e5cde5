"""What a user of the trainer can get wrong.

::

    LlmperfError                   (llmperf_common.errors)
    +-- ConfigError                (llmperf_common.config; exit 2)
    |   +-- OutputTaken            (llmperf_common.outputs) the output folder holds what this command did not write
    |       +-- RunExists          the output folder holds another run
    +-- BadInput                   a kernel, argument, size, device, run or dataset that cannot be used (exit 3)
        +-- SeenRows               rows of families trained on, without leave to score them
"""

from __future__ import annotations

from llmperf_common.errors import LlmperfError
from llmperf_common.outputs import OutputTaken


class RunExists(OutputTaken):
    """The output folder holds a run of other data or another config."""


class BadInput(LlmperfError, ValueError):  # noqa: N818  (named for what is wrong)
    """An input that cannot be used; the message says what, where and what to do."""


class SeenRows(BadInput):
    """Rows of families that the model was trained on were asked for without ``allow_seen``."""
