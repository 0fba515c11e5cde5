"""Find the macros that a source expects from its host program, and define them.

Owns the search: read the parser's errors, define what they name, parse again, keep what takes errors away. What
a name stands for: ``macro_values.py``; parts shut off by ``#if``: ``preprocessor_guards.py``. The result goes into
the kernel's build options, so that every later reader and compiler sees the same kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from workers.clang_parse import diagnose
from workers.macro_values import (
    Role,
    function_for,
    qualifier_for,
    role_of,
    type_for,
    value_for,
    without_comments,
)
from workers.preprocessor_guards import escapes_of, openers_of

MAX_ROUNDS = 6
"""Each round can uncover names that the errors of the one before hid."""
MAX_MACROS = 64
MAX_SOURCE_BYTES = 256 * 1024
"""A larger source with errors would be parsed for minutes."""

_NAMED_BY_ERROR = re.compile(
    r"(unknown type name|use of undeclared identifier|call to undeclared function|implicit declaration of function)"
    r" '([A-Za-z_]\w*)'"
)
_MISSING_FILE = re.compile(r"file not found")
_LANGUAGE_NAME = re.compile(
    r"(?:ndrange|clk_event|queue|reserve_id|event|sampler|image\w+|atomic_\w+|memory_\w+|cl_\w+|intel_\w+)(?:_t)?|__\w+"
)
"""OpenCL's own, whether the parser knows it or not: a device's compiler does, and a macro would hide it."""
_CONSTANT_NAME = re.compile(r"_*[A-Z][A-Z0-9_]*")
_SCALAR_MEMBER = re.compile(r"member reference base type '[^']*\bfloat'")
_KERNEL_LINE = re.compile(r"\b(?:__kernel|kernel)\b")

Macros = Mapping[str, str]
"""Name to value; an empty value defines a name as nothing, ``None`` never occurs."""


def infer_macros(source: str, build_options: str = "") -> tuple[str, ...]:
    """Return the definitions (``-DNAME=VALUE``, by name) with which a source has fewer errors, or none.

    Args:
        source: OpenCL C text.
        build_options: what is defined already.

    Raises:
        ParserCrashError: libclang failed inside.

    >>> infer_macros("kernel void f(global REAL *x) { x[0] = SCALE; }")
    ('-DREAL=float', '-DSCALE=16')
    """
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        return ()
    search = _Search(source, build_options)
    return search.run()


def open_kernels(source: str) -> tuple[str, ...]:
    r"""Return the definitions that open the ``#if`` around a kernel, for a source that has none without them.

    >>> open_kernels("#ifdef GPU\nkernel void f(global int *x) {}\n#endif")
    ('-DGPU',)
    """
    return definitions(_by_name(openers_of(without_comments(source), _KERNEL_LINE)))


def definitions(macros: Macros) -> tuple[str, ...]:
    """Return macros as compiler options, by name. A bare ``-DNAME`` is 1, ``-DNAME=`` is nothing."""
    return tuple(
        f"-D{name}" if value == "1" else f"-D{name}={value}"
        for name, value in sorted(macros.items())
    )


class _Search:
    """The search for one source: what was tried, and the best found."""

    def __init__(self, source: str, build_options: str) -> None:
        self._source = source
        self._code = without_comments(source)
        self._options = build_options
        self._tried: set[str] = set()

    def run(self) -> tuple[str, ...]:
        errors = self._errors({})
        best: tuple[int, Macros] = (len(errors), {})
        macros: Macros = {}
        for _ in range(MAX_ROUNDS):
            if not errors or any(_MISSING_FILE.search(one) for one in errors):
                break
            fresh = self._candidates(errors)
            if not fresh or len(macros) + len(fresh) > MAX_MACROS:
                break
            macros = {**macros, **fresh}
            errors = self._errors(macros)
            macros, errors = self._widened(macros, errors)
            if len(errors) < best[0]:
                best = (len(errors), macros)
        return definitions(self._needed(best[1], best[0]))

    def _errors(self, macros: Macros) -> tuple[str, ...]:
        return diagnose(self._source, " ".join([self._options, *definitions(macros)]))

    def _candidates(self, errors: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for error in errors:
            match = _NAMED_BY_ERROR.search(error)
            if not match or _LANGUAGE_NAME.fullmatch(match.group(2)):
                continue
            if match.group(2) not in self._tried:
                self._tried.add(match.group(2))
                found.update(self._meaning(match.group(2), match.group(1)))
        if not found:
            # An #error is met: some branch above it wants to be chosen.
            for error in errors:
                line, _, _ = error.partition(":")
                found.update(self._untried(escapes_of(self._source, int(line))))
        return found

    def _untried(self, openers: Sequence[str]) -> dict[str, str]:
        fresh = {k: v for k, v in _by_name(openers).items() if k not in self._tried}
        self._tried.update(fresh)
        return fresh

    def _meaning(self, name: str, complaint: str) -> dict[str, str]:
        """Return the definitions that may give ``name`` a meaning: a guard's, or its own."""
        defined_in_a_branch = re.compile(
            rf"#[ \t]*define[ \t]+{name}\b|\btypedef\b[^;]*\b{name}\s*;"
        )
        openers = self._untried(openers_of(self._source, defined_in_a_branch))
        if openers:
            return openers
        role = role_of(name, self._code, is_type_by_parser=complaint == "unknown type name")
        if role is Role.QUALIFIER:
            return {name: qualifier_for(name)}
        if role is Role.TYPE:
            return {name: type_for(name)}
        if role is Role.FUNCTION:
            builtin = function_for(name)
            return {name: builtin} if builtin else {}
        return {name: value_for(name, self._code)} if _CONSTANT_NAME.fullmatch(name) else {}

    def _widened(self, macros: Macros, errors: tuple[str, ...]) -> tuple[Macros, tuple[str, ...]]:
        """Make a type a vector of four where its members are asked for."""
        for name, value in macros.items():
            if value != "float" or not any(_SCALAR_MEMBER.search(one) for one in errors):
                continue
            wider = {**macros, name: "float4"}
            then = self._errors(wider)
            if len(then) < len(errors):
                macros, errors = wider, then
        return macros, errors

    def _needed(self, macros: Macros, num_errors: int) -> Macros:
        """Drop what does not help: with it gone there are no more errors than before."""
        for name in sorted(macros):
            fewer = {k: v for k, v in macros.items() if k != name}
            if len(self._errors(fewer)) <= num_errors:
                macros = fewer
        return macros


def _by_name(openers: Sequence[str]) -> dict[str, str]:
    parts = [one.partition("=") for one in openers]
    return {name: value or "1" for name, _, value in parts}
