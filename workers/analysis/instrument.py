"""Make the instrumented copy of a kernel: the same code, recording how far it reaches.

Owns the file as a whole: which functions stay, the kernel's parameters, the context that is handed down. The
rewriting of a body is ``walk.py``'s, the hooks are ``hooks.cl``.
"""

from __future__ import annotations

import ctypes
import re
from importlib import resources
from typing import Any

from clang import cindex

from workers.analysis.cursors import ARRAYS, POINTER, children_of
from workers.analysis.edits import Edits
from workers.analysis.preprocess import ExpansionError, expand_macros
from workers.analysis.rewriter import (
    CONSTANT_BYTES,
    CONTEXT,
    GLOBAL_BYTES,
    LOCAL_BYTES,
    WIDEST_PLAIN_BYTES,
    Rewriter,
    Sites,
    UnresolvedError,
)
from workers.analysis.walk import FunctionWalk
from workers.build_options import parser_options
from workers.clang_parse import FILE_NAME, ParserCrashError, translate
from workers.clang_types import TypeReader
from workers.device.interface import Instrumented

KERNEL_NAME = "lp_instrumented"
SLACK_BYTES = 256
"""Behind the room of each pointer argument, so that a wide access at its end stays inside."""
HEAD_WORDS = 3
"""Words of a launch's record before those of its pointers: turns, flags, trace."""
_FUNCTION_DECL, _PARAMETER, _COMPOUND, _CALL = 8, 10, 202, 103
_ERROR = 3
_GLOBAL_MASK, _CONSTANT_MASK, _LOCAL_MASK = "LP_GLOBAL_MASK", "LP_CONSTANT_MASK", "LP_LOCAL_MASK"
_MASKS = {1: _GLOBAL_MASK, 2: _LOCAL_MASK, 3: _CONSTANT_MASK}
"""By libclang's number of the address space."""


def instrument(source: str, name: str, build_options: str = "") -> Instrumented:
    """Instrument the kernel ``name`` of a source.

    Raises:
        UnresolvedError: Something in it cannot be followed; the message says what and where.
    """
    try:
        expanded = expand_macros(source, build_options)
        unit, problems = _parse(expanded, build_options)
        return _File(expanded, unit, problems, name).instrumented()
    except (ExpansionError, ParserCrashError) as error:
        raise UnresolvedError(str(error)) from error
    except RecursionError:
        raise UnresolvedError("an expression is nested too deeply") from None


def _parse(text: str, build_options: str) -> tuple[Any, list[Any]]:
    """Parse as the device will: OpenCL C 1.2 unless the options or the text ask for more."""
    options = tuple(one for one in parser_options(build_options) if one.startswith("-cl-std="))
    tried: list[tuple[Any, list[Any]]] = []
    for standard in [options] if options else [("-cl-std=CL1.2",), ("-cl-std=CL2.0",)]:
        unit = translate(text, standard)
        problems = [one for one in unit.diagnostics if one.severity >= _ERROR]
        if not problems:
            return unit, problems
        tried.append((unit, problems))
    return min(tried, key=lambda one: len(one[1]))


class _File:
    def __init__(self, text: str, unit: Any, problems: list[Any], name: str) -> None:
        self._edits = Edits(text)
        self._sites = Sites()
        self._types = TypeReader()
        self._text = text
        self._name = name
        self._problems = problems
        self._functions = [
            cursor
            for cursor in unit.cursor.get_children()
            if cursor._kind_id == _FUNCTION_DECL and _in_file(cursor)
        ]
        self._bodies = {
            cursor.spelling: cursor for cursor in self._functions if cursor.is_definition()
        }

    def instrumented(self) -> Instrumented:
        kernel = self._bodies.get(self._name)
        if kernel is None:
            raise UnresolvedError(f"kernel {self._name!r} is not there after preprocessing")
        reachable = self._reachable(kernel)
        self._refuse_errors(reachable)
        positions = self._kernel_header(kernel)
        rewriter = Rewriter(
            edits=self._edits, sites=self._sites, types=self._types, line_of=line_of
        )
        walk = FunctionWalk(rewriter, self._bodies.__contains__)
        for cursor in self._functions:
            start, end = _offsets(cursor.extent)
            if cursor.spelling not in reachable:
                self._edits.replace(start, end, "")
            elif cursor.spelling == self._name:
                if not cursor.is_definition():
                    self._edits.replace(start, end, "")
            else:
                self._helper_header(cursor)
        for cursor in self._functions:
            if cursor.is_definition() and cursor.spelling in reachable:
                walk.rewrite(_body(cursor), is_kernel=cursor.spelling == self._name)
        hooks = resources.files("workers.analysis").joinpath("hooks.cl").read_text()
        if len(self._sites.sites) >= 2**16:
            raise UnresolvedError("more than 65,535 accesses")
        source = (
            self._head(len(positions))
            + hooks
            + "".join(self._sites.definitions)
            + self._edits.applied()
        )
        return Instrumented(
            source=source,
            expanded=self._text,
            sites=tuple(self._sites.sites),
            positions=positions,
            has_arrays=self._sites.has_arrays,
            has_uncut_loops=self._sites.has_uncut_loops,
        )

    def _head(self, num_pointers: int) -> str:
        sites = self._sites
        sizes = {
            "BUFFERS": f"{num_pointers + 1}",
            "SPARE": f"{num_pointers}",
            "TAGS": f"{num_pointers + 1 + len(sites.variables)}",
            "HEAD": f"{HEAD_WORDS}",
            "GLOBAL_MASK": f"{GLOBAL_BYTES - 1}ul",
            "CONSTANT_MASK": f"{CONSTANT_BYTES - 1}ul",
            "LOCAL_MASK": f"{LOCAL_BYTES - 1}ul",
            "TABLE_BYTES": f"{8 * row_words(num_pointers)}",
            "SLACK_BYTES": f"{SLACK_BYTES}ul",
            "WIDEST": f"{-(-sites.widest_bytes // WIDEST_PLAIN_BYTES)}",
        }
        return "".join(f"#define LP_{name} {value}\n" for name, value in sizes.items())

    def _reachable(self, kernel: Any) -> dict[str, None]:
        """Return the names of all functions that are called; overloads of one name stay together."""
        found: dict[str, None] = {self._name: None}
        stack = [kernel]
        while stack:
            cursor = stack.pop()
            if cursor._kind_id == _CALL:
                name = cursor.spelling
                if name in self._bodies and name not in found:
                    found[name] = None
                    stack += [one for one in self._functions if one.spelling == name]
            stack.extend(children_of(cursor))
        return found

    def _refuse_errors(self, reachable: dict[str, None]) -> None:
        """Where the parser complained, statements may be missing from its tree."""
        defined = [one for one in self._functions if one.is_definition()]
        spans = [_offsets(one.extent) for one in defined if one.spelling in reachable]
        bodies = [_offsets(one.extent) for one in defined]
        for problem in self._problems:
            offset = problem.location.offset
            outside = not any(start <= offset <= end for start, end in bodies)
            if outside or any(start <= offset <= end for start, end in spans):
                line = _presumed_line(problem.location)
                raise UnresolvedError(f"line {line}: {problem.spelling}")

    def _kernel_header(self, kernel: Any) -> tuple[int, ...]:
        """Rename kernel and pointers, add the table, and open the body with the context and the tags."""
        positions: list[int] = []
        lines = [
            f" lp_ctx lp_own; lp_ctx *{CONTEXT} = &lp_own; lp_own.table = lp_table; lp_own.most_turns = lp_most_turns; lp_own.turns = 0; lp_own.trace = 0; lp_begin({CONTEXT});"
        ]
        parameters = [c for c in kernel.get_children() if c._kind_id == _PARAMETER]
        for position, parameter in enumerate(parameters):
            canonical = parameter.type.get_canonical()
            is_array = canonical._kind_id in ARRAYS  # written `float a[]`: a pointer, too
            if not (is_array or canonical._kind_id == POINTER) or not parameter.spelling:
                continue
            row = len(positions)
            positions.append(position)
            mask = _LOCAL_MASK if "__local" in parameter.type.spelling.split() else _GLOBAL_MASK
            if not is_array:
                space = cindex.conf.lib.clang_getAddressSpace(canonical.get_pointee())
                mask = _MASKS.get(space, _GLOBAL_MASK)
            elif "__constant" in parameter.type.spelling.split():
                mask = _CONSTANT_MASK
            at = _offset(parameter.location)
            self._edits.replace(at, at + len(parameter.spelling), f"lp_a{position}")
            lines.append(
                f" lp_own.base[{row}] = (ulong)lp_a{position};"
                f" lp_own.mask[{row}] = {mask};"
                f" __typeof__(lp_a{position}) {parameter.spelling} ="
                f" (__typeof__(lp_a{position}))LP_TAG({row});"
            )
        lines.append(
            f" lp_own.base[{len(positions)}] = (ulong)(lp_table + lp_slot) + LP_TABLE_BYTES;"
            f" lp_own.mask[{len(positions)}] = 0;"
        )
        lines[0] = lines[0].replace("lp_table;", "lp_table + lp_slot;")
        name_at = _offset(kernel.location)
        self._edits.replace(name_at, name_at + len(self._name), KERNEL_NAME)
        body_start, _ = _offsets(_body(kernel).extent)
        closing = self._edits.raw.rindex(b")", 0, self._parameters_end(kernel) + 1)
        extra = "__global ulong *lp_table, ulong lp_slot, ulong lp_most_turns"
        if parameters:
            self._edits.insert(closing, f", {extra}")
        else:  # `k()` or `k(void)`
            self._edits.replace(self._edits.raw.index(b"(", name_at) + 1, closing, extra)
        self._edits.insert(body_start + 1, "".join(lines))
        return tuple(positions)

    def _parameters_end(self, function: Any) -> int:
        """Return the offset of the parenthesis that ends a function's parameters."""
        raw = self._edits.raw
        at = raw.index(b"(", _offset(function.location))
        depth = 0
        for offset in range(at, len(raw)):
            if raw[offset] in b"()":
                depth += 1 if raw[offset] == ord("(") else -1
                if depth == 0:
                    return offset
        raise UnresolvedError(f"{function.spelling}: its parameter list has no end")

    def _helper_header(self, function: Any) -> None:
        name_at = _offset(function.location)
        raw = self._edits.raw
        start, _ = _offsets(function.extent)
        head = raw[start:name_at].decode()
        if re.search(r"\b(?:__)?kernel\b", head):
            # A kernel called by another: a plain function here.
            self._edits.replace(start, name_at, "void ")
        elif re.search(r"\binline\b", head) and not re.search(r"\bstatic\b", head):
            # C99's inline leaves the function itself to another file, which an unoptimised build asks for.
            self._edits.insert(start, "static ")
        at, end = raw.index(b"(", name_at), self._parameters_end(function)
        inside = raw[at + 1 : end].decode().strip()
        parameter = f"lp_ctx *{CONTEXT}"
        if inside in {"", "void"}:
            self._edits.replace(at + 1, end, parameter)
        else:
            self._edits.insert(at + 1, f"{parameter}, ")


def row_words(num_pointers: int) -> int:
    """Return how many 64-bit words one launch records: the head, and two for each pointer."""
    return HEAD_WORDS + 2 * num_pointers


def line_of(cursor: Any) -> int:
    """Return the line of a cursor in the file as its author wrote it."""
    return _presumed_line(cursor.extent.start)


def _presumed_line(location: Any) -> int:
    line = ctypes.c_uint()
    cindex.conf.lib.clang_getPresumedLocation(location, None, ctypes.byref(line), None)
    return int(line.value)


def _in_file(cursor: Any) -> bool:
    file = cursor.location.file
    return file is not None and file.name == FILE_NAME


def _body(function: Any) -> Any:
    return next(one for one in function.get_children() if one._kind_id == _COMPOUND)


def _offset(location: Any) -> int:
    return int(location.offset)


def _offsets(extent: Any) -> tuple[int, int]:
    return int(extent.start.offset), int(extent.end.offset)
