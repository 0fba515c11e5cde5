"""Whether the compiler of another device reads another text than the one that a copy has.

Owns the search over the devices. The name of each macro that a device may define is replaced by a
mark. A condition that meets a mark asks a question about the device: is the macro defined, or which
value does it have? The text is expanded once for each combination of answers. What is left of the
marks shows which names of devices the text itself uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pcpp.preprocessor import Macro

from workers.analysis.copy.conditions import (
    CLANG_INTMAX_BITS,
    INTMAX_BITS,
    Number,
    is_true,
)
from workers.analysis.copy.device_macros import (
    KEYWORDS,
    PREDEFINED,
    VALUES,
    is_only_a_macro,
    may_be_a_devices,
)
from workers.analysis.copy.preprocess import SPLICE, ExpansionError, KernelPreprocessor

MOST_EXPANSIONS = 256
"""Maximum number of expansions. A text with more combinations of answers counts as one that varies
by device."""
MOST_EXPANDED_CHARACTERS = 3 * 2**18
"""Maximum number of characters of all expansions and their sources, about 1 s. A text that needs
more counts as one that varies by device; but two expansions are always made."""

_BEGIN, _END = "llmperf_begin_", "_end_llmperf"
_CUT_WORD = re.compile(r"\w(?:\\|\?\?/)[^\S\n]*\n\w")
"""A word that goes on in the next line; pcpp takes it for two."""
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_HASH = re.compile(r"#|%:|\?\?=")
_WITHOUT_QUESTION = re.compile(r"^[ \t]*#[ \t]*(?:define|undef|pragma|line)\b", re.MULTILINE)
_DIRECTIVE_LINE = re.compile(r"^[ \t]*#.*$|\s+", re.MULTILINE)
_MARK = re.compile(rf"{_BEGIN}(\w+?){_END}")
_WORD_OR_STRING = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[\w$]+")


class _DependsOnDeviceError(Exception):
    """Devices may read the text differently."""


@lru_cache(maxsize=4)
def varies_by_device(source: str, build_options: str = "") -> bool:
    r"""Whether the macros of another device may select other code than those of this one.

    The other device's ``#if`` may have wider numbers, too. A text with too many combinations of
    answers is taken for one that varies.

    >>> varies_by_device("#if __OPENCL_VERSION__ >= 200\nint twice;\n#endif\nint one;")
    True
    >>> varies_by_device("#ifdef cl_khr_fp16\n#pragma OPENCL FP_CONTRACT ON\n#endif\nint one;")
    False
    """
    if _CUT_WORD.search(source) or _BEGIN in source + build_options:
        return True
    if not _may_ask(source, build_options):
        return False
    try:
        _compare_devices(source, build_options)
    except (ExpansionError, _DependsOnDeviceError):  # malformed on one of the devices, or different
        return True
    return False


def _may_ask(source: str, build_options: str) -> bool:
    """Whether the text has conditions or headers, builds names or strings, or names macros."""
    lines = SPLICE.sub("", source)
    if len(_HASH.findall(lines)) > len(_WITHOUT_QUESTION.findall(lines)) or "#" in build_options:
        return True
    return any(map(is_only_a_macro, set(_IDENTIFIER.findall(f"{source} {build_options}"))))


def _compare_devices(source: str, build_options: str) -> None:
    """Expand the text for each combination of answers, beginning with those of this device.

    Raises:
        ExpansionError: The text is malformed on one of the devices.
        _DependsOnDeviceError: The texts differ, or there are too many.
    """
    here: list[str] | None = None
    to_do: list[dict[str, int | None]] = [{}]
    num_done = num_characters = 0
    while to_do:
        answers = to_do.pop()
        device = _Device(answers)
        text = device.expanded(source, build_options)
        code = _code(text)
        if here is not None and code != here:
            raise _DependsOnDeviceError
        here = code
        to_do += _alternatives(answers, device.answers)
        num_done += 1
        num_characters += len(source) + len(text)
        too_many = num_done + len(to_do) > MOST_EXPANSIONS
        if to_do and (too_many or (num_done > 1 and num_characters > MOST_EXPANDED_CHARACTERS)):
            raise _DependsOnDeviceError


def _alternatives(
    given: Mapping[str, int | None], answers: Mapping[str, int | None]
) -> Iterator[dict[str, int | None]]:
    """Yield what to try beside ``answers``: one new answer changed, those before it kept."""
    before = dict(given)
    for name, answer in answers.items():
        if name not in given:
            yield from (before | {name: other} for other in _values(name)[1:])
            before[name] = answer


def _values(name: str) -> tuple[int | None, ...]:
    """Return the values that a device's macro may have; None if it is not defined."""
    return VALUES.get(name, (None, 1))


def _code(text: str) -> list[str]:
    """Return the text's words without directives and marks.

    Raises:
        _DependsOnDeviceError: A device's macro remains, or is a part of a longer word or string.
    """
    text = _DIRECTIVE_LINE.sub(" ", text)
    for word in _WORD_OR_STRING.findall(text):
        if _BEGIN in word:
            _name_of(word, is_text=True)
    return _MARK.sub(r"\1", text).split()


def _name_of(word: str, *, is_text: bool = False) -> str:
    """Return the name that a mark stands for; other words stand for themselves."""
    if _BEGIN not in word:
        return word
    found = _MARK.fullmatch(word)
    if found is None or (is_text and is_only_a_macro(found[1])):
        raise _DependsOnDeviceError
    return found[1]


class _Macros(dict[str, Any]):
    """The macros of a text and, behind them, those of a device."""

    def __init__(self, device: _Device, macros: Mapping[str, Any]) -> None:
        super().__init__(macros)
        self._device = device
        self._marks: dict[str, Any] = {}
        self.undefined: set[str] = set()
        self.is_expanding = 0

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        if not isinstance(name, str) or name in self.undefined or not may_be_a_devices(name):
            return False
        return self.is_expanding > 0 or self._device.defines(name)

    def __missing__(self, name: str) -> Any:
        if name not in self._marks:
            self._marks[name] = Macro(name, self._device.tokenize(f"{_BEGIN}{name}{_END}"))
        return self._marks[name]


class _Device(KernelPreprocessor):
    """Expands a text for a device with the given answers, and adds an answer to each new question.

    Attributes:
        answers: the values of the device's macros, by name; None for those that it does not define.
    """

    def __init__(self, answers: Mapping[str, int | None]) -> None:
        super().__init__()
        self.answers = dict(answers)
        self.expand_filemacro = False
        self.macros.pop("__FILE__", None)
        for macro in PREDEFINED:
            if macro.split()[0] not in VALUES:
                self.define(macro)
        self._macros = self.macros = _Macros(self, self.macros)

    def defines(self, name: str) -> bool:
        """Whether the device defines the macro before it reads the text."""
        return name in self.known or None not in _values(name) or self._answer(name) is not None

    def _answer(self, name: str) -> int | None:
        return self.answers.setdefault(name, _values(name)[0])

    def is_true(self, words: list[str]) -> bool:
        names = [_name_of(word) for word in words]
        known = {**KEYWORDS, **self.known}
        for word, name in zip(words, names, strict=True):
            if word == name or name in known:
                continue
            if name not in VALUES:
                raise _DependsOnDeviceError  # no list of values stands for all devices
            known[name] = Number(self._answer(name) or 0)
        narrow, wide = (is_true(names, known, one) for one in (INTMAX_BITS, CLANG_INTMAX_BITS))
        if narrow != wide:
            raise _DependsOnDeviceError
        return narrow

    def on_unknown_macro_in_defined_expr(self, token: Any) -> bool:
        if _BEGIN in token.value:  # the operator ``defined`` comes from a macro's expansion
            return self.defines(_name_of(token.value))
        return super().on_unknown_macro_in_defined_expr(token)

    def on_include_not_found(self, *_arguments: Any) -> None:
        raise _DependsOnDeviceError  # the device's compiler may find the file

    def undef(self, tokens: Any) -> None:
        super().undef(tokens)
        self._macros.undefined.add(tokens if isinstance(tokens, str) else tokens[0].value)

    def expand_macros(self, tokens: Any, *arguments: Any, **more: Any) -> Any:
        self._macros.is_expanding += 1
        try:
            return super().expand_macros(tokens, *arguments, **more)
        finally:
            self._macros.is_expanding -= 1
