"""Expand the macros of a kernel file, so that every access is in the text and can be rewritten.

Uses pcpp (a C99 preprocessor in Python), because libclang gives no preprocessed text. Replaces the
parts of pcpp that differ from a compiler: its tokens (``preprocessor_tokens.py``) and the value of
``#if`` (``conditions.py``). ``device_macros.py`` owns the macros of the devices.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pcpp import Action, OutputDirective, Preprocessor
from pcpp.evaluator import Value

from workers.analysis.copy.conditions import CLANG_INTMAX_BITS, INTMAX_BITS, is_true
from workers.analysis.copy.device_macros import (
    ANOTHER_DEVICE,
    DEVICE_MACRO,
    KEYWORDS,
    KNOWN_IN_CONDITIONS,
    PREDEFINED,
    may_be_a_devices,
)
from workers.analysis.copy.preprocessor_tokens import kept_apart, new_lexer
from workers.device.opencl.build_options import parser_options

MAX_EXPANDED_CHARACTERS = 4 * 2**20
MAX_EXPANDED_TOKENS = 2**16
"""Maximum number of tokens. A larger expansion is a macro bomb, not a kernel."""

_MAX_DEVICES = 8
"""Maximum number of further devices that are tried; each has one more macro that the text tests."""
_MOST_ROUNDS = 5
"""Maximum number of expansions. Each may show names that only another device's conditions test."""
_CONDITION = re.compile(r"(?:#|\?\?=|%:)\s*(?:(?:el)?if|/\*|\\|\?\?/)")
_CUT_WORD = re.compile(r"\w(?:\\|\?\?/)[^\S\n]*\n\w")
"""Matches a word that is continued in the next line; pcpp takes such a word for two."""
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_PREDEFINED_NAMES = frozenset(macro.split()[0] for macro in PREDEFINED)
_DIRECTIVE_LINE = re.compile(r"^[ \t]*#.*$|\s+", re.MULTILINE)


class ExpansionError(Exception):
    """The text cannot be preprocessed; the message says where."""


class _Preprocessor(Preprocessor):  # type: ignore[misc]
    """Writes ``#line`` directives, which keep the line numbers of the file; reads no other file."""

    def __init__(self, intmax_bits: int) -> None:
        super().__init__(new_lexer())
        self.errors: list[str] = []
        self.line_directive = "#line"
        self.evaluator = self._evaluated
        self._intmax_bits = intmax_bits
        self._known = dict(KNOWN_IN_CONDITIONS)
        self.asked: dict[str, None] = {}
        """The names that conditions test, but that are neither defined nor known."""
        self.valued: dict[str, None] = {}
        """The names in ``asked`` whose values a condition uses."""
        for name in ("__PCPP__", "__DATE__", "__TIME__"):  # pcpp's own name; two that compilers set
            del self.macros[name]

    def _evaluated(self, tokens: Any, **_hooks: Any) -> Any:
        words = [token.value for token in tokens if token.type not in self.t_WS]
        names = (word for word in words if _IDENTIFIER.fullmatch(word))
        self.valued |= dict.fromkeys(name for name in names if name not in self._known)
        return Value(int(is_true(words, {**KEYWORDS, **self._known}, self._intmax_bits)))

    def parsegen(self, *arguments: Any) -> Iterator[Any]:
        return kept_apart(super().parsegen(*arguments))

    def undef(self, tokens: Any) -> None:
        super().undef(tokens)
        name = tokens if isinstance(tokens, str) else tokens[0].value
        self._known.pop(name, None)

    def on_unknown_macro_in_defined_expr(self, token: Any) -> bool:
        is_known = token.value in self._known
        if not is_known:
            self.asked[token.value] = None
        return is_known

    def expand_macros(self, tokens: Any, *arguments: Any, **more: Any) -> Any:
        expanded = super().expand_macros(tokens, *arguments, **more)
        if len(expanded) > MAX_EXPANDED_TOKENS:
            raise ExpansionError(f"a macro expands to over {MAX_EXPANDED_TOKENS} tokens")
        return expanded

    def on_error(self, file: str, line: int, message: str) -> None:
        del file
        self.errors.append(f"line {line}: {message}")

    def on_file_open(self, _is_system_include: bool, include_path: str) -> Any:
        raise FileNotFoundError(include_path)  # pcpp would read files of the working directory

    def on_include_not_found(self, *_arguments: Any) -> None:
        raise OutputDirective(Action.IgnoreAndRemove)

    def on_comment(self, _token: Any) -> bool:
        return False


class _BoundedText(io.StringIO):
    def write(self, text: str) -> int:
        if self.tell() + len(text) > MAX_EXPANDED_CHARACTERS:
            raise ExpansionError(f"its macros expand to over {MAX_EXPANDED_CHARACTERS} characters")
        return super().write(text)


@lru_cache(maxsize=4)
def varies_by_device(source: str, build_options: str = "") -> bool:
    r"""Whether the macros of another device may select other code than those of this device.

    The other device also computes ``#if`` with wider numbers.

    >>> varies_by_device("#if __OPENCL_VERSION__ >= 200\nint twice;\n#endif\nint one;")
    True
    >>> varies_by_device("#ifdef cl_khr_fp16\n#pragma OPENCL FP_CONTRACT ON\n#endif\nint one;")
    False
    """
    if _CUT_WORD.search(source):
        return True
    names = dict.fromkeys(DEVICE_MACRO.findall(source))
    if not names and _CONDITION.search(source) is None:
        return False
    try:
        return _varies(source, build_options, names)
    except ExpansionError:  # malformed on one of the devices
        return True


def _varies(source: str, build_options: str, names: dict[str, None]) -> bool:
    """Whether the expanded text differs on devices that define more macros than this one."""
    first = _expand(source, build_options, (), INTMAX_BITS)
    here, expanded = _code(first.text), first
    for number in range(_MOST_ROUNDS):
        if any(map(may_be_a_devices, expanded.valued)):
            return True  # their values differ between devices
        more = [one for one in expanded.asked if one not in names and may_be_a_devices(one)]
        if number and not more:
            break
        names |= dict.fromkeys(more)
        macros = [*_defined(names), *ANOTHER_DEVICE]
        expanded = _expand(source, build_options, macros, CLANG_INTMAX_BITS)
        if _code(expanded.text) != here:
            return True
    ones = _defined(names)
    return len(ones) > 1 and any(
        _code(_expand(source, build_options, [one], CLANG_INTMAX_BITS).text) != here
        for one in ones[:_MAX_DEVICES]
    )


def _defined(names: Iterable[str]) -> list[str]:
    return [
        f"{name}(...) 1" if name.startswith("__has_") else f"{name} 1"
        for name in names
        if name not in _PREDEFINED_NAMES
    ]


def _code(text: str) -> list[str]:
    return _DIRECTIVE_LINE.sub(" ", text).split()


def expand_macros(source: str, build_options: str = "") -> str:
    r"""Return the text with macros expanded, comments removed and conditional parts selected.

    ``#pragma`` lines stay; ``#line`` directives give the line numbers of the original.

    Args:
        source: OpenCL C text.
        build_options: options for the device's compiler; only ``-D`` and ``-U`` have an effect.

    Raises:
        ExpansionError: A directive is malformed, or the expansion is too large.

    >>> expand_macros("#define AT(i) a[(i) * 4]\nint f(int *a) { return AT(1); }").split("{")[1]
    ' return a[(1) * 4]; }\n'
    """
    return _expand(source, build_options, (), INTMAX_BITS).text


class _Expanded(NamedTuple):
    """An expanded text, and names that its conditions test and that nothing defines.

    ``valued``: those whose values are used; ``asked``: those that are only tested for existence.
    """

    text: str
    asked: list[str]
    valued: list[str]


def _expand(
    source: str, build_options: str, predefined: Sequence[str], intmax_bits: int
) -> _Expanded:
    """Expand a text; ``predefined``: further macros of the device, each as ``name value``."""
    preprocessor = _Preprocessor(intmax_bits)
    for macro in (*PREDEFINED, *predefined):
        preprocessor.define(macro)
    words = iter(parser_options(build_options))
    for word in words:
        option, value = word[:2], word[2:] or (next(words, "") if len(word) == 2 else "")
        if option == "-D":
            name, _, body = value.partition("=")
            preprocessor.define(f"{name} {body or '1'}")
        elif option == "-U":
            preprocessor.undef(value)
    text = _BoundedText()
    try:
        preprocessor.parse(source, "kernel.cl")
        preprocessor.write(text)
    except ExpansionError:
        raise
    except Exception as error:  # pcpp raises many kinds of exceptions for malformed directives
        raise ExpansionError(f"a directive is malformed ({type(error).__name__})") from error
    if preprocessor.errors:
        raise ExpansionError("; ".join(preprocessor.errors[:3]))
    return _Expanded(text.getvalue(), list(preprocessor.asked), list(preprocessor.valued))
