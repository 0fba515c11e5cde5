"""Parse OpenCL C text with libclang into plain values (``clang/nodes.py``).

Owns the parser's options. ``clang/cursor.py`` and ``clang/types.py`` translate libclang's cursors
and types; ``signature.py`` judges the kernels. libclang can crash on hostile input and cannot be
interrupted, so a collecting run calls this module in a child process (``parse_pool.py``).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from clang import cindex

from workers.device.opencl.build_options import parser_options
from workers.source.clang.cursor import CursorReader, deep_recursion, register_functions
from workers.source.clang.nodes import Function, Node, ParsedSource, Prototype

FILE_NAME = "/nonexistent/llmperf/llmperf_kernel.cl"
"""Name under which the text is parsed, in a folder that exists on no machine."""
_PRELUDE_NAME = "/nonexistent/llmperf/llmperf_prelude.h"
_PRELUDE = Path(__file__).with_name("prelude.h")
_NO_FILES = Path(__file__).with_name("no_files.yaml")
"""An empty virtual file system. The non-existent folder of ``FILE_NAME`` does not suffice: libclang
reads ``x/../..`` as ``..`` and looks for ``<stdio.h>`` in the machine's own folders."""

DEFAULT_STANDARD = "CL2.0"
FALLBACK_STANDARD = "CL1.2"
_TARGET = (
    "-target", "spir64-unknown-unknown", "-ferror-limit=0", "-w", "-fbracket-depth=1024",
    "-cl-no-stdinc", "-nostdinc", "-Xclang", "-fdeclare-opencl-builtins", "-include", _PRELUDE_NAME,
    "-Xclang", "-disable-pragma-debug-crash",
)  # fmt: skip
"""The last option disarms ``#pragma clang __debug``, also if a macro or ``_Pragma`` makes it. Without
the option, this pragma can crash the parser, or keep it busy until its time is up."""
_KEEP_GOING = 0x200
"""libclang's flag KeepGoing. With it, a type that a missing header would declare gives an error;
otherwise libclang guesses the type."""
_ERROR = 3
_MISSING_FILE = re.compile(r"'(.*)' file not found")
_FUNCTION_DECL, _VAR_DECL = 8, 9


class ParserCrashError(Exception):
    """libclang caught a crash of its own and returns no result for the file."""


def parse(source: str, build_options: str = "") -> ParsedSource:
    """Parse one file.

    ``build_options`` may choose the language standard. Otherwise OpenCL C 2.0 is used, because
    it accepts nearly all older code. If 2.0 gives errors, OpenCL C 1.2 is tried, and used if it
    gives fewer errors. For example, ``pipe`` is a keyword in 2.0 but a common name in older code.

    Raises:
        RecursionError: An expression is nested too deeply to be walked.
        ParserCrashError: libclang crashed.
    """
    unit = _best_unit(source, build_options)
    with deep_recursion():
        return _read(unit)


def diagnose(source: str, build_options: str = "") -> tuple[str, ...]:
    """Return the errors that ``parse`` would give, several times faster because no tree is walked.

    Raises:
        ParserCrashError: libclang crashed.
    """
    unit = _best_unit(source, build_options)  # the diagnostics are valid while the unit lives
    return _messages(_problems(unit))


def _best_unit(source: str, build_options: str) -> Any:
    options = parser_options(build_options)
    if any(option.startswith("-cl-std=") for option in options):
        return translate(source, options)
    newer = translate(source, (*options, f"-cl-std={DEFAULT_STANDARD}"))
    num_errors = len(_problems(newer))
    if not num_errors:
        return newer
    older = translate(source, (*options, f"-cl-std={FALLBACK_STANDARD}"))
    return older if len(_problems(older)) < num_errors else newer


@cache
def _index() -> Any:
    register_functions()
    return cindex.Index.create()


@cache
def _prelude() -> str:
    return _PRELUDE.read_text(encoding="utf-8")


def translate(source: str, options: tuple[str, ...]) -> Any:
    """Return libclang's translation unit of a text that is parsed as ``FILE_NAME``.

    The parser sees no file of this machine.

    Raises:
        ParserCrashError: libclang crashed.
    """
    arguments = ["-x", "cl", *_TARGET, *options, "-ivfsoverlay", str(_NO_FILES)]
    # libclang would take a NUL byte for the end of the text; every compiler rejects NUL bytes.
    text = source.replace("\0", " ")
    try:
        return _index().parse(
            FILE_NAME,
            args=arguments,
            unsaved_files=[(FILE_NAME, text), (_PRELUDE_NAME, _prelude())],
            options=_KEEP_GOING,
        )
    except cindex.TranslationUnitLoadError:
        raise ParserCrashError("libclang crashed on this source and gave no result") from None


def _problems(unit: Any) -> list[Any]:
    return [one for one in unit.diagnostics if one.severity >= _ERROR]


def _messages(problems: list[Any]) -> tuple[str, ...]:
    return tuple(f"{one.location.line}: {one.spelling}" for one in problems)


def _read(unit: Any) -> ParsedSource:
    problems = _problems(unit)
    offsets = [one.location.offset for one in problems if _in_file(one.location)]
    reader = CursorReader(offsets)
    functions: dict[str, Function] = {}
    variables: dict[str, Node] = {}
    prototypes: list[Prototype] = []
    for cursor in unit.cursor.get_children():
        if cursor._kind_id == _FUNCTION_DECL and cursor.is_definition():
            function = reader.function(cursor)
            if function is not None:
                functions[function.key] = function
        elif cursor._kind_id == _FUNCTION_DECL and _in_file(cursor.location):
            prototypes.append(reader.prototype(cursor))
        elif cursor._kind_id == _VAR_DECL:
            variable = reader.variable(cursor)
            variables[variable.key] = variable
    return ParsedSource(
        functions=functions,
        globals=variables,
        errors=_messages(problems),
        missing_files=tuple(
            dict.fromkeys(
                match[1] for one in problems if (match := _MISSING_FILE.fullmatch(one.spelling))
            )
        ),
        prototypes=tuple(prototypes),
    )


def _in_file(location: Any) -> bool:
    return location.file is not None and location.file.name == FILE_NAME
