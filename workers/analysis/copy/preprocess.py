"""Expand the macros of a kernel file, so that every access is in the text and can be rewritten.

Uses pcpp (a C99 preprocessor in Python), because libclang gives no preprocessed text. Replaces the
parts of pcpp that differ from a compiler: its tokens (``preprocessor_tokens.py``) and the value of
``#if`` (``conditions.py``). Refuses what pcpp lacks and clang obeys. ``device_macros.py`` owns the
macros of the devices, and ``other_devices.py`` tells whether they matter.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from pcpp import Action, OutputDirective, Preprocessor
from pcpp.evaluator import Value

from workers.analysis.copy.conditions import INTMAX_BITS, is_true
from workers.analysis.copy.device_macros import KEYWORDS, KNOWN_IN_CONDITIONS, PREDEFINED
from workers.analysis.copy.preprocessor_tokens import kept_apart, new_lexer
from workers.device.opencl.build_options import parser_options

MAX_EXPANDED_CHARACTERS = 4 * 2**20
MAX_EXPANDED_TOKENS = 2**16
"""Maximum number of tokens. A larger expansion is a macro bomb, not a kernel."""

SPLICE = re.compile(r"(?:\\|\?\?/)[^\S\n]*\n")
_DIGRAPH = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|(?P<hash>%:)|(?P<open>[\"'][^\n]*/\*)",
    re.DOTALL,
)
"""The sign ``%:``, which clang reads as ``#``, or what may contain it without that meaning. After a
quotation mark without a partner, as in ``#error don't /*``, pcpp begins a comment and clang not."""
_NOT_OF_PCPP = frozenset({"elifdef", "elifndef", "import", "include_next", "assert", "unassert"})
_DECIDES_MACROS = re.compile(r"push_macro|pop_macro|__VA_OPT__")
"""What pcpp leaves in the text, although it decides how clang expands macros."""


class ExpansionError(Exception):
    """The text cannot be preprocessed; the message says where."""


class KernelPreprocessor(Preprocessor):  # type: ignore[misc]
    """Writes ``#line`` directives, which keep the line numbers of the file; reads no other file."""

    macros: dict[str, Any]

    def __init__(self) -> None:
        super().__init__(new_lexer())
        self.errors: list[str] = []
        self.line_directive = "#line"
        self.evaluator = self._evaluated
        self.known = dict(KNOWN_IN_CONDITIONS)
        """The macros that each device defines, but for those that the text undefines."""
        for name in ("__PCPP__", "__DATE__", "__TIME__"):  # pcpp's own name; two that compilers set
            del self.macros[name]

    def expanded(self, source: str, build_options: str) -> str:
        """Return the text, expanded with the macros that are defined here and by the options.

        Raises:
            ExpansionError: A directive is malformed or unknown, or the expansion is too large.
        """
        text = _BoundedText()
        try:
            self._define_options(build_options)
            _refuse_digraphs(source)
            self.parse(source, "kernel.cl")
            self.write(text)
        except ExpansionError:
            raise
        except Exception as error:  # pcpp raises many kinds of exceptions for malformed directives
            raise ExpansionError(f"a directive is malformed ({type(error).__name__})") from error
        if self.errors:
            raise ExpansionError("; ".join(self.errors[:3]))
        _refuse_what_decides_macros(text.getvalue())
        return text.getvalue()

    def _define_options(self, build_options: str) -> None:
        words = iter(parser_options(build_options))
        for word in words:
            option, value = word[:2], word[2:] or (next(words, "") if len(word) == 2 else "")
            if option == "-D":
                name, _, body = value.partition("=")
                self.define(f"{name} {body or '1'}")
            elif option == "-U":
                self.undef(value)

    def _evaluated(self, tokens: Any, **_hooks: Any) -> Any:
        return Value(int(self.is_true([one.value for one in tokens if one.type not in self.t_WS])))

    def is_true(self, words: list[str]) -> bool:
        """Whether a condition, expanded to ``words``, selects its part of the text."""
        return is_true(words, {**KEYWORDS, **self.known}, INTMAX_BITS)

    def parsegen(self, *arguments: Any) -> Iterator[Any]:
        """Yield the expanded tokens, with blanks between those that would join."""
        return kept_apart(super().parsegen(*arguments))

    def undef(self, tokens: Any) -> None:
        """Remove a macro, also one that each device defines."""
        super().undef(tokens)
        name = tokens if isinstance(tokens, str) else tokens[0].value
        self.known.pop(name, None)

    def on_unknown_macro_in_defined_expr(self, token: Any) -> bool:
        """Whether each device defines a macro that the text does not define."""
        return token.value in self.known

    def on_directive_handle(self, directive: Any, tokens: Any, *more: Any) -> Any:
        """Refuse what pcpp ignores and clang obeys."""
        name = directive.value
        if name in _NOT_OF_PCPP:  # clang obeys some of them even in a part that is left out
            raise ExpansionError(f"line {directive.lineno}: #{name} is not supported")
        pragma = tokens[0].value if name == "pragma" and tokens else ""
        if _DECIDES_MACROS.fullmatch(pragma):
            raise ExpansionError(f"line {directive.lineno}: #pragma {pragma} is not supported")
        return super().on_directive_handle(directive, tokens, *more)

    def expand_macros(self, tokens: Any, *arguments: Any, **more: Any) -> Any:
        """Expand a line or a chunk of lines; refuse an expansion that is too long."""
        expanded = super().expand_macros(tokens, *arguments, **more)
        if len(expanded) > MAX_EXPANDED_TOKENS:
            raise ExpansionError(f"a macro expands to over {MAX_EXPANDED_TOKENS} tokens")
        return expanded

    def on_error(self, file: str, line: int, message: str) -> None:
        """Note an error, where pcpp would print it."""
        del file
        self.errors.append(f"line {line}: {message}")

    def on_file_open(self, _is_system_include: bool, include_path: str) -> Any:
        """Refuse to read a file."""
        raise FileNotFoundError(include_path)  # pcpp would read files of the working directory

    def on_include_not_found(self, *_arguments: Any) -> None:
        """Leave the directive out."""
        raise OutputDirective(Action.IgnoreAndRemove)

    def on_comment(self, _token: Any) -> bool:
        """Leave the comment out."""
        return False


class _BoundedText(io.StringIO):
    def write(self, text: str) -> int:
        if self.tell() + len(text) > MAX_EXPANDED_CHARACTERS:
            raise ExpansionError(f"its macros expand to over {MAX_EXPANDED_CHARACTERS} characters")
        return super().write(text)


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
    preprocessor = KernelPreprocessor()
    for macro in PREDEFINED:
        preprocessor.define(macro)
    return preprocessor.expanded(source, build_options)


def _refuse_digraphs(source: str) -> None:
    text = SPLICE.sub("", source.replace("??/", "\\"))
    for found in _DIGRAPH.finditer(text):
        if found["hash"] or found["open"]:
            line = text.count("\n", 0, found.start()) + 1
            what = "%: in place of #" if found["hash"] else "a comment after an open quotation mark"
            raise ExpansionError(f"near line {line}: {what} is not supported")


def _refuse_what_decides_macros(text: str) -> None:
    """Refuse ``_Pragma("push_macro(…)")``, which a macro may have built."""
    found = _DECIDES_MACROS.search(re.sub(r"[\\\s]", "", text))
    if found is not None:
        raise ExpansionError(f"{found[0]} is not supported")
