"""The rewritten copy of one kernel file: which functions stay, and which code is refused.

Owns the parts that the copies for the memory analysis (``instrument.py``) and for the work counts
(``workers/work``) share. Those modules rewrite the kernel's own header and body.
"""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from typing import Any

from clang import cindex

from workers.analysis.copy.conditional_barriers import MOST_CONDITIONAL, move_barriers
from workers.analysis.copy.cursors import ARRAYS, POINTER, children_of
from workers.analysis.copy.edits import Edits
from workers.analysis.copy.outside import plain_text, refuse_extensions, refuse_outside, renaming
from workers.analysis.copy.preprocess import ExpansionError, expand_macros
from workers.analysis.copy.punctuation import punctuation
from workers.analysis.copy.rewriter import CONTEXT, Sites, UnresolvedError
from workers.device.opencl.build_options import parser_options
from workers.source.clang.parse import FILE_NAME, ParserCrashError, translate
from workers.source.clang.types import TypeReader

_FUNCTION_DECL, _VARIABLE, _PARAMETER, _COMPOUND, _CALL = 8, 9, 10, 202, 103
_ERROR = 3
NO_BARRIERS = "#define barrier(...)\n#define work_group_barrier(...)\n"
"""Text before a copy that leaves the kernel's barriers out."""
GLOBAL, LOCAL, CONSTANT = 1, 2, 3
"""libclang's numbers for the address spaces."""


class SourceCopy:
    """The text of one kernel file with its edits.

    Args:
        source: OpenCL C text.
        name: the kernel's name.
        build_options: options for the device's compiler.

    Raises:
        UnresolvedError: The text cannot be parsed or lacks the kernel; the message says why.
    """

    def __init__(self, source: str, name: str, build_options: str = "") -> None:
        try:
            self.text = plain_text(expand_macros(source, build_options))
            unit, self._problems = _parse(self.text, build_options)
        except (ExpansionError, ParserCrashError) as error:
            raise UnresolvedError(str(error)) from error
        self.name = name
        self.edits = Edits(self.text)
        self.sites = Sites()
        self.types = TypeReader()
        self.functions = [
            cursor
            for cursor in unit.cursor.get_children()
            if cursor._kind_id == _FUNCTION_DECL and _in_file(cursor)
        ]
        self._variables = [
            cursor
            for cursor in unit.cursor.get_children()
            if cursor._kind_id == _VARIABLE and _in_file(cursor)
        ]
        self.bodies = {
            cursor.spelling: cursor for cursor in self.functions if cursor.is_definition()
        }
        self.has_costly_barriers = False
        """Whether a build with the barriers would take very long; set by ``prepare``."""
        self._unit = unit  # keeps the cursors valid
        self._renamed: list[str] = []

    def prepare(self) -> tuple[Any, dict[str, None]]:
        """Drop functions that the kernel does not call, and pass the context to all others.

        Returns:
            The kernel's cursor, and the names of all functions that stay.
        """
        kernel = self.bodies.get(self.name)
        if kernel is None:
            raise UnresolvedError(f"the preprocessed source has no kernel {self.name!r}")
        reachable = self._reachable(kernel)
        self._refuse_errors(reachable)
        variables = (one.spelling for one in self._variables)
        self._renamed = sorted({*reachable, *variables} - {self.name})
        for cursor in self.functions:
            start, end = offsets(cursor.extent)
            if cursor.spelling not in reachable or cursor.get_definition() is None:
                self.edits.replace(start, end, "")
            elif cursor.spelling == self.name:
                if not cursor.is_definition():
                    self.edits.replace(start, end, "")
            else:
                self._helper_header(cursor)
        self._move_barriers(reachable)
        return kernel, reachable

    def _move_barriers(self, reachable: dict[str, None]) -> None:
        bodies = self.defined(reachable)
        of_kernel = next(body for body, is_kernel in bodies if is_kernel)
        helpers = [body for body, is_kernel in bodies if not is_kernel]
        num_left = move_barriers(self.edits, of_kernel, helpers)
        self.has_costly_barriers = num_left > MOST_CONDITIONAL

    def defined(self, reachable: dict[str, None]) -> list[tuple[Any, bool]]:
        """Return the bodies of the functions that stay, in order; True marks the kernel's body."""
        return [
            (body_of(cursor), cursor.spelling == self.name)
            for cursor in self.functions
            if cursor.is_definition() and cursor.spelling in reachable
        ]

    def _reachable(self, kernel: Any) -> dict[str, None]:
        """Return the names of all called functions; overloads of one name stay together."""
        found: dict[str, None] = {self.name: None}
        defined = frozenset(self.bodies)
        stack = [*self._variables, *children_of(kernel)]
        while stack:
            cursor = stack.pop()
            if cursor._kind_id == _FUNCTION_DECL:
                # Such a function could be one of the C library, which a CPU device would find.
                line = _presumed_line(cursor.location)
                raise UnresolvedError(
                    f"line {line}: {cursor.spelling} is declared in a function's body"
                )
            refuse_outside(cursor, line_of(cursor), defined)
            if cursor._kind_id == _CALL:
                name = cursor.spelling
                if name in self.bodies and name not in found:
                    found[name] = None
                    for one in self.functions:
                        stack += children_of(one) if one.spelling == name else []
            stack.extend(children_of(cursor))
        return found

    def _refuse_errors(self, reachable: dict[str, None]) -> None:
        """Raise UnresolvedError for parse errors in code that stays: its tree may lack parts."""
        defined = [one for one in self.functions if one.is_definition()]
        spans = [offsets(one.extent) for one in defined if one.spelling in reachable]
        bodies = [offsets(one.extent) for one in defined]
        for problem in self._problems:
            offset = problem.location.offset
            outside = not any(start <= offset <= end for start, end in bodies)
            if outside or any(start <= offset <= end for start, end in spans):
                line = _presumed_line(problem.location)
                raise UnresolvedError(f"line {line}: {problem.spelling}")

    def applied(self) -> str:
        """Return the edited text. Raises UnresolvedError for an extension that may do harm."""
        edited = self.edits.applied()
        refuse_extensions(edited)
        return renaming(self._renamed) + edited

    def rename_kernel(self, kernel: Any, new_name: str, extra_parameters: str) -> None:
        """Rename the kernel and append parameters to its own."""
        name_at = offset_of(kernel.location)
        self.edits.rename(name_at, self.name, new_name)
        closing = self.edits.raw.rindex(b")", 0, self._parameters_end(kernel) + 1)
        if any(c._kind_id == _PARAMETER for c in kernel.get_children()):
            self.edits.insert(closing, f", {extra_parameters}")
        else:  # `k()` or `k(void)`
            self.edits.replace(self.edits.raw.index(b"(", name_at) + 1, closing, extra_parameters)

    def _parameters_end(self, function: Any) -> int:
        """Return the offset of the parenthesis that closes a function's parameters."""
        raw = self.edits.raw
        at = raw.index(b"(", offset_of(function.location))
        for offset, _, depth in punctuation(raw, at):
            if depth == 0:
                return offset
        raise UnresolvedError(f"{function.spelling}: its parameter list has no end")

    def _helper_header(self, function: Any) -> None:
        name_at = offset_of(function.location)
        raw = self.edits.raw
        start, _ = offsets(function.extent)
        head = raw[start:name_at].decode()
        if re.search(r"\b(?:__)?kernel\b", head):
            # A kernel that another kernel calls becomes a plain function.
            self.edits.replace(start, name_at, "void ")
        elif re.search(r"\binline\b", head) and not re.search(r"\bstatic\b", head):
            # An unoptimised build needs an external definition, which C99's inline does not give.
            self.edits.insert(start, "static ")
        at, end = raw.index(b"(", name_at), self._parameters_end(function)
        inside = raw[at + 1 : end].decode().strip()
        parameter = f"lp_ctx *{CONTEXT}"
        if inside in {"", "void"}:
            self.edits.replace(at + 1, end, parameter)
        else:
            self.edits.insert(at + 1, f"{parameter}, ")


def with_hooks(copy: SourceCopy, head: str, hooks: str) -> str:
    """Return a copy's text: sizes, shared tags, hooks, shared pointers, stand-ins, edited code."""
    shared = resources.files("workers.analysis.copy")
    before, after = (shared.joinpath(name).read_text() for name in ("tags.cl", "pointers.cl"))
    parts = (head, before, hooks, after, *copy.sites.definitions, copy.applied())
    return "".join(parts)


def parameters_of(function: Any) -> list[Any]:
    """Return a function's parameters."""
    return [one for one in function.get_children() if one._kind_id == _PARAMETER]


def pointer_space(parameter: Any) -> int | None:
    """Return libclang's number of a pointer parameter's address space; None if it is no pointer."""
    canonical = parameter.type.get_canonical()
    words = parameter.type.spelling.split()
    if canonical._kind_id in ARRAYS:  # a parameter `float a[]` is a pointer, too
        named = {"__local": LOCAL, "__constant": CONSTANT}
        return next((number for word, number in named.items() if word in words), GLOBAL)
    if canonical._kind_id != POINTER:
        return None
    if "__local" in words:
        return LOCAL
    return int(cindex.conf.lib.clang_getAddressSpace(canonical.get_pointee()))


def line_of(cursor: Any) -> int:
    """Return a cursor's line in the original file."""
    return _presumed_line(cursor.extent.start)


def _presumed_line(location: Any) -> int:
    line = ctypes.c_uint()
    cindex.conf.lib.clang_getPresumedLocation(location, None, ctypes.byref(line), None)
    return int(line.value)


def _in_file(cursor: Any) -> bool:
    file = cursor.location.file
    return file is not None and file.name == FILE_NAME


def body_of(function: Any) -> Any:
    """Return the compound statement of a definition."""
    return next(one for one in function.get_children() if one._kind_id == _COMPOUND)


def offset_of(location: Any) -> int:
    """Return the byte offset of a location."""
    return int(location.offset)


def offsets(extent: Any) -> tuple[int, int]:
    """Return the byte offsets of an extent."""
    return int(extent.start.offset), int(extent.end.offset)


def _parse(text: str, build_options: str) -> tuple[Any, list[Any]]:
    """Parse like the device: as OpenCL C 1.2, unless options or errors require a later standard."""
    options = tuple(one for one in parser_options(build_options) if one.startswith("-cl-std="))
    tried: list[tuple[Any, list[Any]]] = []
    for standard in [options] if options else [("-cl-std=CL1.2",), ("-cl-std=CL2.0",)]:
        unit = translate(text, standard)
        problems = [one for one in unit.diagnostics if one.severity >= _ERROR]
        if not problems:
            return unit, problems
        tried.append((unit, problems))
    return min(tried, key=lambda one: len(one[1]))
