"""Find the macros that would enable a part of a file that ``#if`` excludes.

Owns the reading of conditional directives, line by line and without evaluating them.
``macro_inference.py`` and ``front_end.py`` define the macros that it names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(ifdef|ifndef|if|elif|else|endif)\b[ \t]*(.*)$")
_DEFINED = re.compile(r"(?<!!)(?<!! )\bdefined\s*\(?\s*([A-Za-z_]\w*)")
_COMPARED = re.compile(r"\(?\s*([A-Za-z_]\w*)\s*(?:==|>=)\s*(\d+)\b")
_NAME_ALONE = re.compile(r"\(?\s*([A-Za-z_]\w*)\s*\)?\s*(?://.*|/\*.*)?$")
_NOT_OURS = re.compile(r"__\w*|cl_\w+|CL_\w+|NVIDIA|AMD|INTEL|APPLE|MAC|cplusplus")
"""Names that a compiler or device sets. They are not defined here, because that would pretend to be
another device."""
_SECOND_CHOICE = re.compile(r"DOUBLE|FP64|F64|HALF|FP16|DEBUG|TRACE|PRINT", re.IGNORECASE)

_MAX_NESTING = _MAX_EARLIER = 64
"""Maximum open branches of a line, and maximum earlier branches of a conditional. C99 asks for 63
levels. Without limits, the memory would grow with the square of the number of directives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One branch of a conditional that is open at some line.

    ``opens``: the definition (``NAME`` or ``NAME=VALUE``) that would select the branch, "" if
    unknown. ``before``: such definitions for the earlier branches of the conditional.
    ``condition``: the text after ``#if`` or ``#elif``.
    """

    opens: str
    before: tuple[str, ...] = ()
    condition: str = ""
    otherwise: str = ""
    """For ``#ifndef``: the definition that selects its ``#else``."""


@lru_cache(maxsize=2)
def branches_by_line(source: str) -> list[tuple[Branch, ...]]:
    r"""Return the open branches of every line, outermost first; index 0 is line 1.

    Only a newline ends a line. Directives in comments would count, so remove comments first, but
    keep the lines (``tokens.without_comments``). Of more than 64 nested branches only the outermost
    64 are returned. The last two results are cached, because the caller asks again for each error,
    and there may be thousands.

    >>> branches_by_line("#ifdef A\nint x;\n#endif")[1][0].opens
    'A'
    """
    stack: list[Branch] = []
    around: list[tuple[Branch, ...]] = [()]
    found = []
    for line in source.split("\n"):
        match = _DIRECTIVE.match(line)
        word = match.group(1) if match else ""
        if match and word in {"if", "ifdef"}:
            opens = _opening(match.group(2), plain=word == "ifdef")
            stack.append(Branch(opens=opens, condition=match.group(2)))
        elif match and word == "ifndef":
            stack.append(Branch(opens="", otherwise=_opening(match.group(2), plain=True)))
        elif match and word in {"elif", "else"} and stack:
            last = stack.pop()
            condition = match.group(2) if word == "elif" else ""
            opens = _opening(condition, plain=False) if condition else last.otherwise
            before = last.before
            if len(before) < _MAX_EARLIER:
                before = (*before, last.opens)
            stack.append(Branch(opens=opens, before=before, condition=condition))
        elif word == "endif" and stack:
            stack.pop()
        if word:
            _follow(stack, around)
        found.append(around[-1])
    return found


def _follow(stack: list[Branch], around: list[tuple[Branch, ...]]) -> None:
    """Update ``around`` after one directive: its last entry becomes the branches in ``stack``."""
    del around[max(1, len(stack)) :]
    if stack:
        outer = around[-1]
        around.append((*outer, stack[-1]) if len(outer) < _MAX_NESTING else outer)


def openers_of(source: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    """Return what to define so that a line that ``pattern`` matches is compiled; () if unknown.

    Among several such lines, a line that needs neither double precision nor debugging is preferred.
    """
    choices = []
    for line, branches in zip(source.split("\n"), branches_by_line(source), strict=True):
        if branches and pattern.search(line):
            openers = opening(branches)
            if openers:
                choices.append(openers)
    return min(choices, key=_reluctance, default=())


def opening(branches: Sequence[Branch]) -> tuple[str, ...]:
    """Return what to define to select all of ``branches``, as far as that is known."""
    return tuple(dict.fromkeys(one.opens for one in branches if one.opens))


def escapes_of(source: str, line_number: int) -> tuple[str, ...]:
    """Return what to define to exclude a line, such as an ``#error`` in a last ``#else``."""
    branches = branches_by_line(source)
    if not 1 <= line_number <= len(branches) or not branches[line_number - 1]:
        return ()
    choices = [(one,) for one in branches[line_number - 1][-1].before if one]
    return min(choices, key=_reluctance, default=())


def _reluctance(openers: Sequence[str]) -> int:
    return sum(_SECOND_CHOICE.search(one) is not None for one in openers)


def _opening(condition: str, *, plain: bool) -> str:
    if match := _COMPARED.match(condition):
        name, value = match.groups()
    elif (match := _DEFINED.search(condition)) or (match := _NAME_ALONE.match(condition)):
        name, value = match.group(1), ""
    else:
        return ""
    if not plain and name == "defined":
        return ""
    if _NOT_OURS.match(name):
        return ""
    return f"{name}={value}" if value else name
