"""Refuse texts that no parser may see.

Owns two refusals. First, a kernel must not read files of this machine: ``#include "/etc/passwd"``
would quote the file in a dataset's failure_detail, ``"/dev/zero"`` would fill the memory, and
``"/dev/stdin"`` would wait for ever. Second, half of a character (a lone surrogate) cannot be
encoded as bytes. An include path that a macro builds is not refused here, but ``clang/parse.py``
shows the parser no files, and ``compiler_text.py`` lets no such directive reach the compiler.
"""

from __future__ import annotations

import re

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.families.tokens import COMMENT_OR_TEXT

_COMMENT_OR_TEXT = re.compile(COMMENT_OR_TEXT, re.DOTALL)
_ABSOLUTE_INCLUDE = re.compile(
    r"^[ \t\f\v]*(?:#|%:|\?\?=)[ \t\f\v]*(?:include|include_next|import|__include_macros)"
    r"[ \t\f\v]*([\"<][ \t]*/[^\n]*)",
    re.MULTILINE,
)


def refused(source: str) -> Failure | None:
    """Return why no parser or compiler may see this text, or None.

    >>> refused('#include "/dev/zero"').code
    <FailureCode.BUILD_ERROR: 'build_error'>
    >>> refused('#include "types.h"') is None
    True
    """
    try:
        source.encode()
    except UnicodeEncodeError as error:
        return _failure(f"the text is not UTF-8: {error.reason} at character {error.start}")
    code = _COMMENT_OR_TEXT.sub(_without_comment, source.replace("\r", "").replace("\\\n", ""))
    found = _ABSOLUTE_INCLUDE.search(code)
    if found:
        return _failure(
            f"#include {found.group(1).strip()}: a kernel must not read files of this machine; "
            "name a file beside it"
        )
    return None


def _without_comment(match: re.Match[str]) -> str:
    text = match.group()
    return text if text[0] in "\"'" else " "


def _failure(detail: str) -> Failure:
    return Failure(code=FailureCode.BUILD_ERROR, stage=Stage.SIGNATURE, detail=detail)
