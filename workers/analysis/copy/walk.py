"""Walk a function so that each memory access and each loop iteration calls a hook.

Hooks are functions of ``hooks.cl`` that record accesses and count iterations. Decides which
libclang cursors are accesses, addresses and loops. ``rewriter.py`` and ``calls.py`` rewrite these
cursors; ``instrument.py`` makes the whole file.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from workers.analysis.copy.calls import CallRewriter
from workers.analysis.copy.cursors import (
    CALL,
    COMPOUND,
    DO,
    FIRST_ATTRIBUTE,
    FOR,
    MEMBER,
    PAREN,
    REFERENCE,
    RETURN,
    STRING,
    SUBSCRIPT,
    TYPE_REF,
    UNEXPOSED,
    VARIABLE,
    WHILE,
    children_of,
    decayed_array,
    has_barrier,
    is_address,
    is_bit_field,
    is_dereference,
    is_division,
    lies_behind_pointer,
    statement_end,
    text_range,
)
from workers.analysis.copy.punctuation import punctuation
from workers.analysis.copy.rewriter import CONTEXT, Rewriter
from workers.analysis.copy.turn_weights import TurnWeights
from workers.source.clang.nodes import Space, TypeClass

_SIZEOF = 136
_LARGEST_VARIABLE = 2**20
"""Maximum bytes of a variable. A larger one could overflow a stack, or a runtime could drop the
launch silently."""
_OWN = frozenset({Space.LOCAL, Space.PRIVATE})


class _Use(Enum):
    """The use of an object: all of it is accessed, a part of it is, or its address is taken."""

    WHOLE = "whole"
    PART = "part"
    ADDRESS = "address"


class FunctionWalk:
    """Walks the body of one function and records its edits.

    Args:
        rewriter: the rewriter of the file.
        is_defined: whether the file defines a function of this name.
        calls: rewrites calls; None for the memory analysis's ``CallRewriter``.
        leave: code that runs before the kernel returns.
        weighs_turns: pass the weight of an iteration to the loops' hooks.
    """

    def __init__(
        self,
        rewriter: Rewriter,
        is_defined: Callable[[str], bool],
        *,
        calls: CallRewriter | None = None,
        leave: str = f"lp_end({CONTEXT});",
        weighs_turns: bool = False,
    ) -> None:
        self._rewriter = rewriter
        self._edits = rewriter.edits
        self._sites = rewriter.sites
        self._type = rewriter.type
        self._calls = calls or CallRewriter(rewriter, is_defined)
        self._leave = leave
        self._weighs_turns = weighs_turns
        self._weights = TurnWeights()
        self._is_kernel = False

    def rewrite(self, body: Any, *, is_kernel: bool) -> None:
        """Instrument one function's body; a kernel also runs ``leave`` at its end."""
        self._is_kernel = is_kernel
        if is_kernel:
            self._edits.insert_last(text_range(body)[1] - 1, f" {self._leave} ")
        num_before = len(self._sites.variables)
        self._visit(body)
        if not is_kernel:
            self._forget_at_end(body, num_before)

    def _forget_at_end(self, body: Any, num_before: int) -> None:
        """Make pointers to the function's variables and parameters invalid when it returns."""
        function, end = body.semantic_parent, text_range(body)[1]
        start = text_range(function)[0]
        variables = list(self._sites.variables.items())[num_before:]
        inside = [number for at, number in variables if start <= at < end]
        own = [number for number in inside if number not in self._sites.strings]
        if not own:
            return
        result = self._rewriter.result_type(function)
        if "(" in result:
            raise self._rewriter.unresolved(function, f"a function that returns {result!r}")
        forget = " ".join(f"LP_FORGET({number});" for number in own)
        self._edits.insert_last(end - 1, f" {forget} ")
        for statement in _returns(body):
            at = text_range(statement)[0]
            semicolon = _semicolon(self._edits.raw, at)
            head, tail = f"{{ {forget} return", "; }"
            if children_of(statement) and result == "void":
                head, tail = "{ (", f"); {forget} return; }}"
            elif children_of(statement):
                head, tail = f"{{ {result} lp_result = (", f"); {forget} return lp_result; }}"
            self._edits.replace(at, at + len("return"), head)
            self._edits.replace(semicolon, semicolon + 1, tail)

    def _visit(self, cursor: Any, use: _Use = _Use.WHOLE) -> None:
        kind = cursor._kind_id
        if kind in {_SIZEOF, TYPE_REF} or kind >= FIRST_ATTRIBUTE:
            return
        if kind in {SUBSCRIPT, MEMBER} or is_dereference(cursor):
            self._visit_place(cursor, use)
        elif kind in {UNEXPOSED, PAREN}:
            self._visit_transparent(cursor, use)
        elif kind == STRING and use is _Use.ADDRESS:
            self._rewriter.string(cursor, cursor)
        elif kind == REFERENCE:
            self._rewriter.constant(cursor, is_address=use is _Use.ADDRESS)
            if use is _Use.ADDRESS:
                self._rewriter.variable(cursor)
        elif is_address(cursor):
            for child in children_of(cursor):
                self._visit(child, _Use.ADDRESS)
        elif kind == CALL:
            for child, is_part in self._calls.rewrite(cursor):
                self._visit(child, _Use.PART if is_part else _Use.WHOLE)
        elif kind in {WHILE, DO, FOR}:
            self._visit_loop(cursor)
        elif kind != VARIABLE or self._type(cursor).space is not Space.CONSTANT:
            # A constant's initialiser is computed before the kernel runs.
            self._visit_other(cursor)

    def _visit_other(self, cursor: Any) -> None:
        if cursor._kind_id == RETURN and self._is_kernel:
            start, end = text_range(cursor)
            end = statement_end(self._edits.raw, cursor, end)
            self._edits.wrap(start, end, f"{{ {self._leave} ", " }")
        if is_division(cursor):
            self._guard_division(cursor)
        if cursor._kind_id == VARIABLE and self._type(cursor).size_bytes > _LARGEST_VARIABLE:
            raise self._rewriter.unresolved(cursor, f"a variable of over {_LARGEST_VARIABLE} bytes")
        for child in children_of(cursor):
            self._visit(child)

    def _guard_division(self, cursor: Any) -> None:
        """Replace a divisor of 0 by 1, because unoptimised CPU code crashes if it divides by 0."""
        divisor = children_of(cursor)[-1]
        kind = self._type(divisor)
        if kind.shape is TypeClass.SCALAR and not kind.is_float:
            start, end = text_range(divisor)
            self._edits.wrap(start, end, "((", ") ?: 1)")

    # -- places ------------------------------------------------------------------------------

    def _visit_place(self, cursor: Any, use: _Use) -> None:
        children = children_of(cursor)
        if not children:
            return
        if cursor._kind_id == MEMBER and is_bit_field(cursor):
            self._visit_bit_field(children[0])
            return
        if (
            use is _Use.WHOLE
            and self._type(cursor).shape is not TypeClass.ARRAY
            and lies_behind_pointer(cursor)
        ):
            self._rewriter.place(cursor)
        of_the_base = _Use.ADDRESS if use is _Use.ADDRESS else _Use.PART
        if cursor._kind_id == SUBSCRIPT and len(children) == 2:
            self._visit_subscript(children[0], children[1], of_the_base)
        else:
            self._visit_base(children[0], of_the_base)

    def _visit_base(self, base: Any, use: _Use) -> None:
        """Visit the base of a place: an array, a structure, or the pointer that is loaded."""
        array = decayed_array(base)
        if array is not None:
            self._visit(array, use)
        else:
            self._visit(base, _Use.WHOLE if self._is_pointer(base) else use)

    def _visit_subscript(self, first: Any, second: Any, use: _Use) -> None:
        base, index = (first, second) if self._is_indexed(first) else (second, first)
        array = decayed_array(base)
        if array is None:
            self._visit(base)  # loads a pointer, or accesses one lane of a vector
        else:
            self._visit(array, use)
            length = array.type.get_canonical().element_count
            # Taking an address accesses nothing, and the address may be that of the array's end.
            if use is not _Use.ADDRESS and self._is_own(array):
                if length <= 0:
                    raise self._rewriter.unresolved(first, "an array without a length")
                self._rewriter.index(index, length)
        self._visit(index)

    def _visit_bit_field(self, base: Any) -> None:
        """Visit a bit field as an access to its structure, because it has no address."""
        if self._is_pointer(base):
            self._visit_through(base)
        else:
            self._visit(base)

    def _visit_through(self, pointer: Any) -> None:
        """Visit a pointer whose target is accessed but cannot itself be wrapped."""
        array = decayed_array(pointer)
        if array is not None and not lies_behind_pointer(array):
            self._visit(array, _Use.PART)
            return
        pointee = self._type(pointer).pointee
        assert pointee is not None, "a pointer has a pointee"
        self._rewriter.pointer(pointer, pointee)
        self._visit(pointer)

    def _visit_transparent(self, cursor: Any, use: _Use) -> None:
        children = children_of(cursor)
        if len(children) != 1:
            for child in children:
                self._visit(child)
            return
        (child,) = children
        between = self._text_between(child, cursor)
        if between.startswith("->") and self._is_pointer(child):
            self._visit_through(child)
        elif between.startswith("."):
            self._visit(child)  # lanes of a vector: an access to the vector
        elif self._type(cursor).shape is TypeClass.POINTER and decayed_array(child) is not None:
            self._visit(child, _Use.ADDRESS)
        else:
            self._visit(child, use)

    # -- loops -------------------------------------------------------------------------------

    def _visit_loop(self, cursor: Any) -> None:
        children = children_of(cursor)
        body = children[0] if cursor._kind_id == DO else children[-1]
        # If a work-item left a loop with a barrier early, all others would wait at the barrier.
        weight = f", {self._weights.weight(body)}" if self._weighs_turns else ""
        hook = f"if (lp_turn({CONTEXT}{weight})) break; "
        if has_barrier(body):
            hook = f"lp_count({CONTEXT}{weight}); "
            self._sites.has_uncut_loops = True
        start, end = text_range(body)
        if body._kind_id == COMPOUND:
            self._edits.insert(start + 1, f" {hook}")
        else:
            end = statement_end(self._edits.raw, body, end)
            self._edits.wrap(start, end, f"{{ {hook}", " }")
        for child in children:
            self._visit(child)

    # -- what things are ---------------------------------------------------------------------

    def _is_pointer(self, cursor: Any) -> bool:
        shape = self._type(cursor).shape
        return shape is TypeClass.POINTER or (
            shape is TypeClass.ARRAY and decayed_array(cursor) is None
        )

    def _is_own(self, array: Any) -> bool:
        """Whether an array ends where its type says; an array in a buffer may be longer."""
        return not lies_behind_pointer(array) or self._type(array).space in _OWN

    def _is_indexed(self, cursor: Any) -> bool:
        return self._type(cursor).shape in {
            TypeClass.POINTER,
            TypeClass.ARRAY,
            TypeClass.VECTOR,
        }

    def _text_between(self, child: Any, parent: Any) -> str:
        """Return the text between the end of ``child`` and that of ``parent``."""
        return self._edits.raw[text_range(child)[1] : text_range(parent)[1]].decode().lstrip()


def _returns(body: Any) -> list[Any]:
    found, stack = [], [body]
    while stack:
        one = stack.pop()
        if one._kind_id == RETURN:
            found.append(one)
        stack.extend(children_of(one))
    return found


def _semicolon(raw: bytes, at: int) -> int:
    """Return the place of the semicolon of the plain statement that begins at ``at``.

    libclang ends ``return (float4)(x);`` before the parenthesis.
    """
    signs = punctuation(raw, at)
    return next(offset for offset, sign, depth in signs if sign == b";" and depth == 0)
