"""The value of a ``#if`` expression, by the rules of clang's preprocessor.

Each number is as wide as ``intmax_t``, and signed or unsigned. pcpp's own evaluator divides as
Python does, and does not widen to unsigned as C does.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

INTMAX_BITS = 64
"""Bits of C's ``intmax_t``: ``long`` is the longest type of OpenCL C."""
CLANG_INTMAX_BITS = 128
"""Bits of ``intmax_t`` in clang's OpenCL C, which has a ``long long`` of 128 bits."""
_WIDE_OR_NOT = r"(?:ll|LL|[lL])"
_INTEGER = re.compile(
    r"(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<binary>[01]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9]\d*))"
    rf"(?P<suffix>[uU]?{_WIDE_OR_NOT}?|{_WIDE_OR_NOT}[uU])",
    re.ASCII,
)
_BASES = {"hex": 16, "binary": 2, "octal": 8, "decimal": 10}
_CHARACTERS = re.compile(r"(L?)'((?:\\(?:x[0-9a-fA-F]+|[0-7]{1,3}|.)|[^\\])+)'", re.ASCII)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]+)|\\([0-7]{1,3})|\\(.)|(.)", re.ASCII)
_ESCAPES = dict(zip("abefnrtv", (7, 8, 27, 12, 10, 13, 9, 11), strict=True))
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_QUESTION = "__has_"
"""Start of the names with which a text asks clang for features, such as ``__has_builtin(name)``."""

_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
}  # fmt: skip
_PRECEDENCE = {
    word: level
    for level, words in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %")
    )
    for word in words.split()
}


class ConditionError(ValueError):
    """The expression is malformed, or has no value; a compiler refuses it, too."""


class Number(NamedTuple):
    """An integer of the preprocessor."""

    value: int
    is_unsigned: bool = False


def is_true(
    words: Sequence[str], known: Mapping[str, Number | None], bits: int = INTMAX_BITS
) -> bool:
    """Whether an expression, in which macros are expanded, selects its part of the text.

    Args:
        words: the tokens without blanks.
        known: values of identifiers; None for one that is no integer. All other identifiers are 0.
        bits: width of ``intmax_t``.

    Raises:
        ConditionError: The expression is malformed.

    >>> is_true("- 7 % 3 == - 1".split(), {}), is_true("- 1 < 0u".split(), {})
    (True, False)
    """
    return _Condition(words, known, bits).is_true()


class _Condition:
    """Evaluates words by recursive descent; ``live`` is False in parts that C does not evaluate."""

    def __init__(self, words: Sequence[str], known: Mapping[str, Number | None], bits: int) -> None:
        self._words = words
        self._known = known
        self._bits = bits
        self._at = 0

    def is_true(self) -> bool:
        number = self._choice(live=True)
        if self._at < len(self._words):
            raise ConditionError(f"{self._words[self._at]!r} is no operator")
        return number.value != 0

    def _next(self) -> str:
        if self._at == len(self._words):
            raise ConditionError("the expression ends too early")
        self._at += 1
        return self._words[self._at - 1]

    def _accept(self, word: str) -> bool:
        found = self._at < len(self._words) and self._words[self._at] == word
        self._at += found
        return found

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise ConditionError(f"{word!r} is missing")

    def _sequence(self, *, live: bool) -> Number:
        number = self._choice(live=live)
        while self._accept(","):
            number = self._choice(live=live)
        return number

    def _choice(self, *, live: bool) -> Number:
        number = self._binary(0, live=live)
        if not self._accept("?"):
            return number
        is_first = number.value != 0
        first = self._sequence(live=live and is_first)
        self._expect(":")
        second = self._choice(live=live and not is_first)
        chosen = first if is_first else second
        return self._wrapped(chosen.value, first.is_unsigned or second.is_unsigned)

    def _binary(self, lowest: int, *, live: bool) -> Number:
        left = self._unary(live=live)
        while self._at < len(self._words):
            word = self._words[self._at]
            level = _PRECEDENCE.get(word, -1)
            if level < lowest:
                break
            self._at += 1
            decided = (word == "&&" and not left.value) or (word == "||" and left.value != 0)
            right = self._binary(level + 1, live=live and not decided)
            left = self._applied(word, left, right, live=live)
        return left

    def _unary(self, *, live: bool) -> Number:
        word = self._next()
        if word == "(":
            number = self._sequence(live=live)
            self._expect(")")
            return number
        if word not in {"+", "-", "!", "~"}:
            return self._primary(word)
        value, is_unsigned = self._unary(live=live)
        if word == "!":
            return Number(int(not value))
        return self._wrapped({"+": value, "-": -value, "~": ~value}[word], is_unsigned)

    def _applied(self, word: str, left: Number, right: Number, *, live: bool) -> Number:
        if word in {"&&", "||"}:
            both = (left.value != 0, right.value != 0)
            return Number(int(all(both) if word == "&&" else any(both)))
        if word in {"<<", ">>"}:
            amount = right.value if 0 <= right.value < self._bits else self._bits  # as clang
            shifted = left.value << amount if word == "<<" else left.value >> amount
            return self._wrapped(shifted, left.is_unsigned)
        is_unsigned = left.is_unsigned or right.is_unsigned
        one = self._wrapped(left.value, is_unsigned).value
        other = self._wrapped(right.value, is_unsigned).value
        if word in _COMPARISONS:
            return Number(int(_COMPARISONS[word](one, other)))
        if word in _ARITHMETIC:
            return self._wrapped(_ARITHMETIC[word](one, other), is_unsigned)
        if not other and live:
            raise ConditionError("division by zero")
        quotient = abs(one) // abs(other or 1) * (-1 if (one < 0) != (other < 0) else 1)
        return self._wrapped(quotient if word == "/" else one - quotient * other, is_unsigned)

    def _primary(self, word: str) -> Number:
        if (match := _INTEGER.fullmatch(word)) is not None:
            base = next(name for name in _BASES if match[name] is not None)
            value = int(match[base], _BASES[base])
            if value >> self._bits:
                raise ConditionError(f"{word} is too large")
            return Number(value, "u" in match["suffix"].lower() or value >> self._bits - 1 != 0)
        if (match := _CHARACTERS.fullmatch(word)) is not None:
            return _character(match[1] == "L", match[2])
        if _IDENTIFIER.fullmatch(word) is None:
            raise ConditionError(f"{word!r} is no integer")
        if self._accept("("):
            if not word.startswith(_QUESTION):
                raise ConditionError(f"the macro {word!r} is not defined")
            self._skip_arguments()
        number = self._known.get(word, Number(0))
        if number is None:
            raise ConditionError(f"{word} is no integer")
        return number

    def _skip_arguments(self) -> None:
        depth = 1
        while depth:
            depth += {"(": 1, ")": -1}.get(self._next(), 0)

    def _wrapped(self, value: int, is_unsigned: bool) -> Number:
        value &= (1 << self._bits) - 1
        if not is_unsigned and value >> self._bits - 1:
            value -= 1 << self._bits
        return Number(value, is_unsigned)


def _character(is_wide: bool, text: str) -> Number:
    values = [
        int(digits, 16) if digits else int(octal, 8) if octal
        else _ESCAPES.get(escape, ord(escape)) if escape else ord(plain)
        for digits, octal, escape, plain in _CHARACTER.findall(text)
    ]  # fmt: skip
    if not is_wide and max(values) > 255:
        raise ConditionError(f"{text} is no character of one byte")
    if is_wide:
        value, bits = values[-1], 32
    else:
        value, bits = int.from_bytes(values[-4:], "big"), 8 if len(values) == 1 else 32
    value &= (1 << bits) - 1
    return Number(value - (1 << bits) if value >> bits - 1 else value)
