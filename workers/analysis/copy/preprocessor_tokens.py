"""The tokens of C for pcpp, and the blanks that keep them apart when they are written as text.

pcpp's own lexer splits ``0.1F`` and ``1e5f``, so that macros expand within them. pcpp writes tokens
without a blank in between: ``-NEG`` becomes ``--1`` if ``NEG`` is ``-1``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

import pcpp.parser

BLANK = "CPP_WS"
_LINE_CONTINUATION = "CPP_LINECONT"
_NUMBER = r"\.?[0-9](?:[eEpP][+-]|[\w.$])*"
_RULES = {
    "t_CPP_INTEGER": _NUMBER,  # each number, as pcpp does not tell integers from others
    "t_CPP_ID": r"(?:[^\W\d]|\$)[\w$]*",
    "t_CPP_XOREQUAL": r"\^=",
}
_JOINING = frozenset(
    (*(f"{one}=" for one in "+-*/%&|^<>=!"), *(one * 2 for one in "+-&|<>/#"), "->", "/*")
)
"""Two neighbouring characters that belong to one token, or begin a comment."""
_OF_WORD = re.compile(r"[\w$]")


@cache
def _lexer() -> Any:
    rules = {
        name: rule
        for name, rule in vars(pcpp.parser).items()
        if name.startswith("t_") or name in {"tokens", "__file__"}
    }
    del rules["t_CPP_FLOAT"]
    return pcpp.parser.lex.lex(
        module=SimpleNamespace(**(rules | _RULES)), optimize=True, lextab=None
    )


def new_lexer() -> Any:
    """Return a lexer for ``pcpp.Preprocessor``."""
    return _lexer().clone()


def kept_apart(tokens: Iterable[Any]) -> Iterator[Any]:
    """Yield the tokens, with a blank between two that would be read as one or as a comment."""
    before: Any = None
    for token in tokens:
        if token.type == _LINE_CONTINUATION:
            before = None  # the text goes on, perhaps in the middle of a token
        elif token.value:
            if before is not None and _joins(before.value, token.value):
                blank = copy(token)
                blank.type, blank.value = BLANK, " "
                yield blank
            before = token
        yield token


@cache
def _pair_joins(last: str, first: str) -> bool:
    if _OF_WORD.match(first):
        return _OF_WORD.match(last) is not None
    return last + first in _JOINING


def _joins(before: str, after: str) -> bool:
    last, first = before[-1], after[0]
    if _pair_joins(last, first):
        return True
    if first in "+-":
        return last in "eEpP" and _is_number(before)
    if first == ".":
        return _is_number(before)
    if last == ".":
        return first.isdigit() or (_is_number(before) and _pair_joins("0", first))
    return first in "\"'" and before == "L"


def _is_number(text: str) -> bool:
    return text[0].isdigit() or (text[0] == "." and text[1:2].isdigit())
