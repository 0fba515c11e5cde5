"""Rewrite one function so that each access to memory and each turn of a loop calls a hook.

Owns the walk over libclang's cursors of a preprocessed file; part of the door ``clang_parse.py``. Only text is
inserted: the code stays what its author wrote. What the whole file becomes: ``instrument.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from workers.analysis.builtins import stand_in
from workers.analysis.cursors import (
    CALL,
    FIRST_ATTRIBUTE,
    MEMBER,
    PAREN,
    SUBSCRIPT,
    TYPE_REF,
    UNARY,
    UNEXPOSED,
    children_of,
    decayed_array,
    has_barrier,
    is_bit_field,
    is_dereference,
    is_division,
    lies_behind_pointer,
    operator,
    text_range,
)
from workers.analysis.edits import Edits
from workers.clang_nodes import Space, TypeClass, TypeFacts
from workers.clang_types import TypeReader
from workers.device.interface import Site

CONTEXT = "lp_c"
_COMPOUND, _IF, _WHILE, _DO, _FOR = 202, 205, 207, 208, 209
_LABEL, _CASE, _DEFAULT, _SWITCH, _DECL_STMT = 201, 203, 204, 206, 231
_SIZEOF, _VARIABLE, _RETURN = 136, 9, 214
_NESTING = frozenset({_IF, _WHILE, _FOR, _LABEL, _CASE, _DEFAULT, _SWITCH})
_ADDRESS_OF = 5
_HOOKED = frozenset({Space.GLOBAL, Space.CONSTANT, Space.LOCAL})
_UNTOUCHED_CALLS = frozenset({"__builtin_nanf", "printf", "wait_group_events"})
_UNNAMED = re.compile(r"\((?:unnamed|anonymous)")


class UnresolvedError(Exception):
    """Something that cannot be instrumented; the message names what and the line."""


class Sites:
    """The accesses and stand-ins of one instrumented file, numbered as they are met."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.stand_ins: dict[tuple[Any, ...], str] = {}
        self.definitions: list[str] = []

    def add(self, line: int, text: str) -> int:
        """Number one access; from 1, so that a record of 0 means none."""
        self.sites.append(Site(line=line, text=" ".join(text.split())[:80]))
        return len(self.sites)


class FunctionRewriter:
    """Walks the body of one function and records its edits.

    Args:
        edits: of the file's text.
        sites: shared by all functions of the file.
        types: of the translation unit.
        is_defined: whether the file defines a function of this name.
        line_of: the line of a cursor in the file as its author wrote it.
    """

    def __init__(
        self,
        *,
        edits: Edits,
        sites: Sites,
        types: TypeReader,
        is_defined: Callable[[str], bool],
        line_of: Callable[[Any], int],
    ) -> None:
        self._edits = edits
        self._sites = sites
        self._types = types
        self._is_defined = is_defined
        self._line_of = line_of
        self._is_kernel = False

    def rewrite(self, body: Any, *, is_kernel: bool) -> None:
        """Instrument one function's body; a kernel hands in its record at its end. Raises UnresolvedError."""
        self._is_kernel = is_kernel
        if is_kernel:
            self._edits.close(text_range(body)[1] - 1, f" lp_end({CONTEXT}); ")
        self._visit(body, touched=True)

    def _visit(self, cursor: Any, *, touched: bool) -> None:
        """``touched``: the object is read or written here; else only its address is taken."""
        kind = cursor._kind_id
        if kind in {_SIZEOF, TYPE_REF} or kind >= FIRST_ATTRIBUTE:
            return
        if kind in {SUBSCRIPT, MEMBER} or is_dereference(cursor):
            self._visit_place(cursor, touched=touched)
        elif kind in {UNEXPOSED, PAREN}:
            self._visit_transparent(cursor, touched=touched)
        elif kind == UNARY and operator(cursor) == _ADDRESS_OF:
            for child in children_of(cursor):
                self._visit(child, touched=False)
        elif kind == CALL:
            self._visit_call(cursor)
        elif kind in {_WHILE, _DO, _FOR}:
            self._visit_loop(cursor)
        else:
            if kind == _RETURN and self._is_kernel:
                start, end = text_range(cursor)
                self._edits.insert(start, f"{{ lp_end({CONTEXT}); ")
                self._edits.close(self._statement_end(cursor, end), " }")
            if is_division(cursor):
                self._guard_division(cursor)
            for child in children_of(cursor):
                self._visit(child, touched=True)

    def _guard_division(self, cursor: Any) -> None:
        """A division by zero is undefined, and unoptimised on a CPU it ends the process."""
        divisor = children_of(cursor)[-1]
        kind = self._type(divisor)
        if kind.shape is TypeClass.SCALAR and not kind.is_float:
            start, end = text_range(divisor)
            self._edits.insert(start, "((")
            self._edits.close(end, ") ?: 1)")

    # -- places ------------------------------------------------------------------------------

    def _visit_place(self, cursor: Any, *, touched: bool) -> None:
        kind = self._type(cursor)
        children = children_of(cursor)
        if not children:
            return
        if cursor._kind_id == MEMBER and is_bit_field(cursor):
            self._visit_bit_field(children[0])
            return
        if touched and kind.shape is not TypeClass.ARRAY and lies_behind_pointer(cursor):
            self._wrap(cursor, kind)
        if cursor._kind_id == SUBSCRIPT and len(children) == 2:
            self._visit_subscript(*children)
            return
        base = children[0]
        self._visit(base, touched=self._is_pointer(base))

    def _visit_subscript(self, first: Any, second: Any) -> None:
        base, index = (first, second) if self._is_indexed(first) else (second, first)
        array = decayed_array(base)
        if array is None:
            self._visit(base, touched=True)  # a pointer is loaded; of a vector, one lane is touched
        else:
            self._visit(base, touched=False)
            length = array.type.get_canonical().element_count
            if length > 0 and not lies_behind_pointer(array):
                start, end = text_range(index)
                self._edits.insert(start, f"lp_clip({CONTEXT}, (ulong)(")
                self._edits.close(end, f"), {length}ul)")
                self._visit(index, touched=True)
                return
        self._visit(index, touched=True)

    def _visit_bit_field(self, base: Any) -> None:
        """A bit field has no address: its structure is touched instead."""
        if self._is_pointer(base):
            pointee = self._type(base).pointee
            assert pointee is not None, "a pointer has a pointee"
            self._wrap_pointer(base, pointee)
            self._visit(base, touched=True)
        else:
            self._visit(base, touched=True)

    def _visit_transparent(self, cursor: Any, *, touched: bool) -> None:
        children = children_of(cursor)
        if len(children) != 1:
            for child in children:
                self._visit(child, touched=True)
            return
        (child,) = children
        own, inner = self._type(cursor), self._type(child)
        if inner.shape is TypeClass.ARRAY and own.shape is TypeClass.POINTER:
            self._visit(child, touched=False)
        elif inner.shape is TypeClass.POINTER and self._text_between(child, cursor).startswith(
            "->"
        ):
            assert inner.pointee is not None, "a pointer has a pointee"
            self._wrap_pointer(child, inner.pointee)
            self._visit(child, touched=True)
        elif self._text_between(child, cursor).startswith("."):
            self._visit(child, touched=True)  # lanes of a vector: the vector is touched
        else:
            self._visit(child, touched=touched)

    def _wrap(self, cursor: Any, kind: TypeFacts) -> None:
        if kind.space not in _HOOKED:
            if kind.space is Space.GENERIC:
                raise UnresolvedError(
                    f"line {self._line_of(cursor)}: a pointer into the generic address space"
                )
            return
        start, end = text_range(cursor)
        text = self._edits.raw[start:end].decode()
        spelling = f"__typeof__({text})" if _UNNAMED.search(kind.spelling) else _opencl_name(kind)
        site = self._sites.add(self._line_of(cursor), text)
        hook = _hook(kind.space)
        self._edits.insert(start, f"(*({spelling} *){hook}({CONTEXT}, {site}, (ulong)&(")
        self._edits.close(end, f"), sizeof({spelling})))")

    def _wrap_pointer(self, cursor: Any, pointee: TypeFacts) -> None:
        if pointee.space not in _HOOKED:
            return
        start, end = text_range(cursor)
        text = self._edits.raw[start:end].decode()
        spelling = _opencl_name(pointee)
        site = self._sites.add(self._line_of(cursor), text)
        hook = _hook(pointee.space)
        size = "1" if pointee.shape is TypeClass.VOID else f"sizeof({spelling})"
        self._edits.insert(start, f"(({spelling} *){hook}({CONTEXT}, {site}, (ulong)(")
        self._edits.close(end, f"), {size}))")

    # -- calls -------------------------------------------------------------------------------

    def _visit_call(self, cursor: Any) -> None:
        name = cursor.spelling
        arguments = list(cursor.get_arguments())
        if not name:
            raise UnresolvedError(f"line {self._line_of(cursor)}: a call through a pointer")
        if self._is_defined(name):
            self._pass_context(cursor, arguments)
        elif name == "prefetch":
            start, end = text_range(cursor)
            self._edits.replace(start, end, "((void)0)")
            return
        elif not self._stand_in(cursor, name, arguments) and name not in _UNTOUCHED_CALLS:
            for argument in arguments:
                pointee = self._type(argument).pointee
                if self._is_pointer(argument) and pointee is not None:
                    self._wrap_pointer(argument, pointee)
        for argument in arguments:
            self._visit(argument, touched=True)

    def _pass_context(self, cursor: Any, arguments: list[Any]) -> None:
        if arguments:
            self._edits.insert(text_range(arguments[0])[0], f"{CONTEXT}, ")
        else:
            self._edits.insert(text_range(cursor)[1] - 1, CONTEXT)

    def _stand_in(self, cursor: Any, name: str, arguments: list[Any]) -> bool:
        pointees = [
            self._type(one).pointee
            for one in arguments
            if self._type(one).shape in {TypeClass.POINTER, TypeClass.ARRAY}
        ]
        if any(one is None or one.space not in _HOOKED for one in pointees):
            return False
        kinds = tuple(one for one in pointees if one is not None)
        value_type = _opencl_name(self._type(arguments[0])) if arguments else ""
        spellings = tuple(_opencl_name(one) for one in kinds)
        hooks = tuple(_hook(one.space) for one in kinds)
        key = (name, spellings, value_type if name.startswith("vstore") else "")
        function = self._sites.stand_ins.get(key)
        if function is None:
            function = f"lp_{name}_{len(self._sites.stand_ins)}"
            definition = stand_in(name, function, spellings, value_type, hooks)
            if definition is None:
                return False
            self._sites.stand_ins[key] = function
            self._sites.definitions.append(definition)
        start, end = text_range(cursor)
        site = self._sites.add(self._line_of(cursor), self._edits.raw[start:end].decode())
        self._edits.replace(start, text_range(arguments[0])[0], f"{function}({CONTEXT}, {site}, ")
        return True

    # -- loops -------------------------------------------------------------------------------

    def _visit_loop(self, cursor: Any) -> None:
        children = children_of(cursor)
        body = children[0] if cursor._kind_id == _DO else children[-1]
        # Leaving a loop early where work-items meet at a barrier would leave the others waiting.
        hook = f"lp_count({CONTEXT}); " if has_barrier(body) else f"if (lp_turn({CONTEXT})) break; "
        start, end = text_range(body)
        if body._kind_id == _COMPOUND:
            self._edits.insert(start + 1, f" {hook}")
        else:
            self._edits.insert(start, f"{{ {hook}")
            self._edits.close(self._statement_end(body, end), " }")
        for child in children:
            self._visit(child, touched=True)

    def _statement_end(self, statement: Any, end: int) -> int:
        """Libclang's range of an expression statement leaves out its semicolon."""
        while statement._kind_id in _NESTING:
            statement = children_of(statement)[-1]
        if statement._kind_id in {_COMPOUND, _DECL_STMT}:
            return end
        match = re.compile(rb"\s*;").match(self._edits.raw, end)
        return match.end() if match and not self._edits.raw[:end].endswith(b";") else end

    # -- what things are ---------------------------------------------------------------------

    def _type(self, cursor: Any) -> TypeFacts:
        return self._types.read(cursor.type)

    def _is_pointer(self, cursor: Any) -> bool:
        return self._type(cursor).shape is TypeClass.POINTER

    def _is_indexed(self, cursor: Any) -> bool:
        return self._type(cursor).shape in {
            TypeClass.POINTER,
            TypeClass.ARRAY,
            TypeClass.VECTOR,
        }

    def _text_between(self, child: Any, parent: Any) -> str:
        """Return what stands between the end of ``child`` and that of ``parent``."""
        return self._edits.raw[text_range(child)[1] : text_range(parent)[1]].decode().lstrip()


def _hook(space: Space) -> str:
    return "lp_touch" if space is Space.GLOBAL else "lp_pass"


def _opencl_name(kind: TypeFacts) -> str:
    """Return a type with its qualifiers; scalars and vectors by OpenCL's own names.

    As they were written they may be ``float __attribute__((ext_vector_type(4)))``, the type of a sum.
    """
    is_plain = kind.shape in {TypeClass.SCALAR, TypeClass.VECTOR} and "atomic" not in kind.spelling
    if not is_plain or not kind.scalar:
        return kind.spelling
    words = [word for word in kind.spelling.split() if word in {"const", "volatile"}]
    if kind.space is not Space.PRIVATE:
        words.append(f"__{kind.space.value}")
    lanes = str(kind.num_scalars) if kind.shape is TypeClass.VECTOR else ""
    return " ".join([*words, kind.scalar + lanes])
