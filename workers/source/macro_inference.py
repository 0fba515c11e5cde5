"""Find the macros that a source expects from its host program, and define them.

Owns the search: read the parser's errors, define the names in them, parse again, and keep the
definitions that reduce the errors. ``macro_values.py`` chooses the values;
``preprocessor_guards.py`` reads ``#if``. The definitions become part of the kernel's build
options, so that every later parser and compiler sees the same kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import assert_never

from llmperf_common.families.tokens import without_comments
from workers.source.clang.parse import diagnose
from workers.source.macro_values import (
    Role,
    directives_apart,
    function_for,
    qualifier_for,
    role_of,
    type_for,
    value_for,
)
from workers.source.preprocessor_guards import escapes_of, openers_of

MAX_ROUNDS = 6
"""Maximum rounds of inference. Each round can reveal errors that earlier errors hid."""
MAX_MACROS = 64
MAX_SOURCE_BYTES = 256 * 1024
"""Maximum bytes of a source. Parsing a larger source with errors repeatedly would take minutes."""
MAX_PARSED_CHARS = 2 * 2**20
"""Maximum characters that all parses of one file may read. Such parses take about 6 s, which leaves
enough of the file's time limit to read its kernels."""
_CHARS_PER_PARSE = 4096
"""Minimum number of characters charged for one parse, because each parse has a fixed cost."""

MAX_EXAMINED_CHARS = 12 * 2**20
"""Maximum characters that are examined for the meanings of unknown names. Each name examines the
whole source. This takes about 5 s; a file with thousands of unknown names would take minutes."""
_CHARS_PER_NAME = 8192
"""Number of characters that each name costs in addition, because its patterns must be compiled."""

_NAMED_BY_ERROR = re.compile(
    r"(unknown type name|use of undeclared identifier|call to undeclared function"
    r"|implicit declaration of function)"
    r" '([A-Za-z_]\w*)'"
)
_MISSING_FILE = re.compile(r"file not found")
_LANGUAGE_NAME = re.compile(
    r"(?:ndrange|clk_event|queue|reserve_id|event|sampler|image\w+|atomic_\w+|memory_\w+|cl_\w+"
    r"|intel_\w+)(?:_t)?|__\w+"
)
"""Names that OpenCL defines. They get no macro, because a device's compiler knows them."""
_CONSTANT_NAME = re.compile(r"_*[A-Z][A-Z0-9_]*")
_SCALAR_MEMBER = re.compile(r"member reference base type '[^']*\bfloat'")

_OTHER_ROLE = {Role.TYPE: Role.VALUE, Role.VALUE: Role.TYPE, Role.QUALIFIER: Role.VALUE}

Macros = Mapping[str, str]
"""A mapping from name to value. An empty value defines the name as nothing."""


class ParseBudget:
    """How much of one file may still be parsed.

    The budget counts characters, not seconds, so that results do not depend on a machine's speed.
    """

    def __init__(self, num_chars: int = MAX_PARSED_CHARS) -> None:
        self._left = num_chars

    def allows(self, source: str) -> bool:
        """Charge one parse of ``source`` to the budget; False if not enough was left for it."""
        self._left -= len(source) + _CHARS_PER_PARSE
        return self._left >= 0


class _SpentError(Exception):
    """The budget does not allow another parse."""


def infer_macros(
    source: str, build_options: str = "", budget: ParseBudget | None = None
) -> tuple[str, ...]:
    """Return definitions (``-DNAME=VALUE``, sorted by name) that reduce a source's errors.

    Args:
        source: OpenCL C text.
        build_options: the compiler options, with the macros that are already defined.
        budget: how much may still be parsed; when it is spent, the best result so far is returned.

    Raises:
        ParserCrashError: libclang crashed.

    >>> infer_macros("kernel void f(global REAL *x) { x[0] = SCALE; }")
    ('-DREAL=float', '-DSCALE=16')
    """
    if len(source.encode("utf-8", "replace")) > MAX_SOURCE_BYTES:
        return ()
    return _Search(source, build_options, budget or ParseBudget()).run()


def definitions(macros: Macros) -> tuple[str, ...]:
    """Return macros as sorted compiler options; ``-DNAME`` defines 1, ``-DNAME=`` nothing."""
    return tuple(
        f"-D{name}" if value == "1" else f"-D{name}={value}"
        for name, value in sorted(macros.items())
    )


class _Search:
    """The search for one source: the names tried so far and the best macros found."""

    def __init__(self, source: str, build_options: str, budget: ParseBudget) -> None:
        self._source = source
        self._plain = without_comments(source)
        self._lines = self._plain.split("\n")
        self._code = directives_apart(self._plain)
        self._options = build_options
        self._budget = budget
        self._tried: set[str] = set()
        self._examined_chars = 0
        self._roles: dict[str, Role] = {}
        self._best: tuple[int, Macros] = (0, {})

    def run(self) -> tuple[str, ...]:
        with suppress(_SpentError):
            self._search()
        return definitions(self._needed(*self._best))

    def _search(self) -> None:
        errors = self._errors({})
        self._best = (len(errors), {})
        macros: Macros = {}
        for _ in range(MAX_ROUNDS):
            if not errors or any(_MISSING_FILE.search(one) for one in errors):
                break
            room = MAX_MACROS - len(macros)
            fresh = self._candidates(errors, room)
            if not fresh or len(fresh) > room:
                break
            macros = {**macros, **fresh}
            errors = self._noted(macros)
            macros, errors = self._widened(macros, errors)
            macros, errors = self._turned(fresh, macros, errors)

    def _noted(self, macros: Macros) -> tuple[str, ...]:
        """Return the errors that remain with ``macros``; keep ``macros`` if they are the fewest."""
        errors = self._errors(macros)
        if len(errors) < self._best[0]:
            self._best = (len(errors), macros)
        return errors

    def _errors(self, macros: Macros) -> tuple[str, ...]:
        if not self._budget.allows(self._source):
            raise _SpentError
        return diagnose(self._source, " ".join([self._options, *definitions(macros)]))

    def _candidates(self, errors: Sequence[str], room: int) -> dict[str, str]:
        """Return definitions of the unknown names; stop once there are more than ``room``."""
        found: dict[str, str] = {}
        for error in errors:
            if len(found) > room:
                return found  # the caller ends the search
            match = _NAMED_BY_ERROR.search(error)
            if not match or _LANGUAGE_NAME.fullmatch(match.group(2)):
                continue
            if match.group(2) not in self._tried:
                self._tried.add(match.group(2))
                found.update(self._meaning(match.group(2), match.group(1)))
        if not found:
            # The remaining error may be an #error. So try to select one of the branches above it.
            for error in errors:
                line, _, _ = error.partition(":")
                found.update(self._untried(escapes_of(self._plain, int(line))))
        return found

    def _untried(self, openers: Sequence[str]) -> dict[str, str]:
        fresh = {k: v for k, v in _by_name(openers).items() if k not in self._tried}
        self._tried.update(fresh)
        return fresh

    def _meaning(self, name: str, complaint: str) -> dict[str, str]:
        """Return definitions of ``name``, or of the macros that select a branch that defines it."""
        self._examined_chars += len(self._code) + _CHARS_PER_NAME
        if self._examined_chars > MAX_EXAMINED_CHARS:
            raise _SpentError
        defined_in_a_branch = re.compile(
            rf"#[ \t]*define[ \t]+{name}\b|\btypedef\b[^;]{{0,500}}\b{name}\s*;"
        )
        openers = self._untried(openers_of(self._plain, defined_in_a_branch))
        if openers:
            return openers
        role = role_of(name, self._code, is_type_by_parser=complaint == "unknown type name")
        self._roles[name] = role
        value = self._value(name, role)
        return {} if value is None else {name: value}

    def _value(self, name: str, role: Role) -> str | None:
        match role:
            case Role.QUALIFIER:
                return qualifier_for(name)
            case Role.TYPE:
                return type_for(name)
            case Role.FUNCTION:
                return function_for(name)
            case Role.VALUE:
                return value_for(name, self._code) if _CONSTANT_NAME.fullmatch(name) else None
            case _:
                assert_never(role)

    def _turned(
        self, fresh: Macros, macros: Macros, errors: tuple[str, ...]
    ) -> tuple[Macros, tuple[str, ...]]:
        """Try another role, type or value of a name if an error remains on a line with the name."""
        for name in fresh:
            other = _OTHER_ROLE.get(self._roles.get(name, Role.FUNCTION))
            value = self._value(name, other) if other is not None else None
            if value is None or not self._is_on_a_line_of(errors, name):
                continue
            turned = {**macros, name: value}
            then = self._noted(turned)
            if len(then) < len(errors):
                macros, errors = turned, then
        return macros, errors

    def _is_on_a_line_of(self, errors: Sequence[str], name: str) -> bool:
        """Whether a line with ``name`` has an error that does not say which name causes it."""
        word = re.compile(rf"\b{name}\b")
        numbers = {int(one.partition(":")[0]) for one in errors if not _NAMED_BY_ERROR.search(one)}
        return any(
            word.search(self._lines[number - 1]) for number in numbers if number <= len(self._lines)
        )

    def _widened(self, macros: Macros, errors: tuple[str, ...]) -> tuple[Macros, tuple[str, ...]]:
        """Define float types as float4 if errors say that the source uses their members."""
        for name, value in macros.items():
            if value != "float" or not any(_SCALAR_MEMBER.search(one) for one in errors):
                continue
            wider = {**macros, name: "float4"}
            then = self._noted(wider)
            if len(then) < len(errors):
                macros, errors = wider, then
        return macros, errors

    def _needed(self, num_errors: int, macros: Macros) -> Macros:
        """Drop every definition that can go while at most ``num_errors`` errors remain."""
        with suppress(_SpentError):
            for name in sorted(macros):
                fewer = {k: v for k, v in macros.items() if k != name}
                if len(self._errors(fewer)) <= num_errors:
                    macros = fewer
        return macros


def _by_name(openers: Sequence[str]) -> dict[str, str]:
    parts = [one.partition("=") for one in openers]
    return {name: value or "1" for name, _, value in parts}
