"""Ray's errors as one line of text, for the packages that call Ray."""

from __future__ import annotations

from typing import Final

from llmperf_common.masking import masked

_LINES_SHOWN: Final = 4
_CHARACTERS_SHOWN: Final = 250
"""Maximum number of characters of the beginning of a long message. The whole line has at most twice
as many."""


def short_reason(error: BaseException) -> str:
    r"""Return an error of Ray as one line, without passwords.

    Ray's messages may hold a traceback of another process: the beginning says what failed, the last
    line says why.

    >>> short_reason(RuntimeError("setup failed\nTraceback:\n  File a\n  File b\nOSError: no such file"))
    'setup failed Traceback: … OSError: no such file'
    >>> short_reason(RuntimeError())
    'RuntimeError'
    """
    text = masked(str(error))  # mask before cutting: a shortened URL might not be recognised
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if len(lines) > _LINES_SHOWN:
        lines = [" ".join(lines[:2])[:_CHARACTERS_SHOWN], "…", lines[-1]]
    return " ".join(lines)[: 2 * _CHARACTERS_SHOWN]
