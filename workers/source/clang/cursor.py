"""Turn libclang's cursors into plain nodes, one function at a time.

Owns the numbers of libclang's cursor kinds and the C functions that its Python binding lacks. Only
``clang/parse.py`` uses ``CursorReader``.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from clang import cindex

from workers.source.clang.nodes import Function, Node, NodeKind, Parameter, Prototype, TypeFacts
from workers.source.clang.types import NO_TYPE, TypeReader, as_parameter

_TERSE_OUTPUT = 17
_VISIT_CONTINUE = 1
_EVAL_INT, _EVAL_FLOAT = 1, 2
_ENUM_CONSTANT_DECL, _FUNCTION_DECL, _VAR_DECL, _PARM_DECL = 7, 8, 9, 10
_TYPE_REF, _UNEXPOSED_EXPR, _CALL_EXPR, _DECL_REF_EXPR = 43, 100, 103, 101
_INT_LITERAL, _FLOAT_LITERAL, _CHAR_LITERAL, _PAREN_EXPR, _UNARY_EXPR, _BINARY_EXPR = (
    106,
    107,
    110,
    111,
    112,
    114,
)
_COMPOUND_ASSIGN_EXPR, _COMPOUND_LITERAL_EXPR, _FOR_STMT, _DECL_STMT = 115, 118, 209, 231
_FIRST_ATTRIBUTE = 400
_MAX_DEPTH = 2_000
_CALLS_A_LEVEL = 8
"""Maximum Python calls for each level of a syntax tree, including the calls of the modules that
rewrite copies. ``_MAX_DEPTH`` limits the levels, because a RecursionError of Python would be lost
in a callback of ctypes."""

_PLAIN_KINDS = {
    102: NodeKind.MEMBER, 113: NodeKind.SUBSCRIPT, 116: NodeKind.CONDITIONAL,
    117: NodeKind.CAST, 119: NodeKind.INIT_LIST, 136: NodeKind.SIZEOF, 202: NodeKind.BLOCK,
    203: NodeKind.CASE, 204: NodeKind.CASE, 205: NodeKind.IF, 206: NodeKind.SWITCH,
    207: NodeKind.WHILE, 208: NodeKind.DO, 210: NodeKind.JUMP, 211: NodeKind.JUMP,
    212: NodeKind.JUMP, 213: NodeKind.JUMP, 214: NodeKind.RETURN, 230: NodeKind.EMPTY,
}  # fmt: skip
_BINARY_NAMES = (
    "", ".*", "->*", "*", "/", "%", "+", "-", "<<", ">>", "<=>", "<", ">", "<=", ">=", "==", "!=",
    "&", "^", "|", "&&", "||", "=", "*", "/", "%", "+", "-", "<<", ">>", "&", "^", "|", ",",
)  # fmt: skip
_ASSIGN_OPERATOR = 22
_UNARY_NAMES = (
    "", "post++", "post--", "++", "--", "&", "*", "+", "-", "~", "!", "__real", "__imag",
    "__extension__", "co_await",
)  # fmt: skip
_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!=", "&&", "||", "!"})
_STEP_NAMES = frozenset({"post++", "post--", "++", "--"})
_REQUIRED_SIZE = re.compile(r"reqd_work_group_size\((\d+), (\d+), (\d+)\)")
_KERNEL_WORD = re.compile(r"\b(?:__)?kernel\b")


def register_functions() -> None:
    """Give ctypes the signatures of the C functions that clang.cindex 17 and 18 leave out."""
    library = cindex.conf.lib
    library.clang_getCursorBinaryOperatorKind.argtypes = [cindex.Cursor]
    library.clang_getCursorUnaryOperatorKind.argtypes = [cindex.Cursor]
    library.clang_getAddressSpace.argtypes = [cindex.Type]
    library.clang_getCursorPrintingPolicy.argtypes = [cindex.Cursor]
    library.clang_getCursorPrintingPolicy.restype = ctypes.c_void_p
    library.clang_PrintingPolicy_setProperty.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_uint,
    ]
    library.clang_PrintingPolicy_dispose.argtypes = [ctypes.c_void_p]
    library.clang_getCursorPrettyPrinted.argtypes = [cindex.Cursor, ctypes.c_void_p]
    library.clang_getCursorPrettyPrinted.restype = cindex._CXString
    library.clang_getCursorPrettyPrinted.errcheck = cindex._CXString.from_result
    library.clang_Cursor_getVarDeclInitializer.argtypes = [cindex.Cursor]
    library.clang_Cursor_getVarDeclInitializer.restype = cindex.Cursor
    library.clang_Cursor_Evaluate.argtypes = [cindex.Cursor]
    library.clang_Cursor_Evaluate.restype = ctypes.c_void_p
    library.clang_EvalResult_getKind.argtypes = [ctypes.c_void_p]
    library.clang_EvalResult_getAsLongLong.argtypes = [ctypes.c_void_p]
    library.clang_EvalResult_getAsLongLong.restype = ctypes.c_longlong
    library.clang_EvalResult_getAsDouble.argtypes = [ctypes.c_void_p]
    library.clang_EvalResult_getAsDouble.restype = ctypes.c_double
    library.clang_EvalResult_dispose.argtypes = [ctypes.c_void_p]


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise Python's recursion limit, so that a tree of ``_MAX_DEPTH`` levels can be walked.

    Since Python 3.11 these calls use no C stack.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + (_CALLS_A_LEVEL + 1) * _MAX_DEPTH)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class CursorReader:
    """Reads the functions of one translation unit; ``error_offsets``: byte offsets of errors."""

    def __init__(self, error_offsets: Sequence[int]) -> None:
        self._error_offsets = sorted(error_offsets)
        self._library = cindex.conf.lib
        self._types = TypeReader()
        self._found: list[Any] = []
        self._unit: Any = None
        # Keys are addresses of libclang's objects, because reading a type's name takes longer than
        # reading a node.
        self._facts: dict[int, TypeFacts] = {}
        self._targets: dict[int, tuple[str, str, int | None]] = {}
        self._depth = 0
        # One callback object serves all visits, because creating one takes longer than most visits.
        self._visitor = cindex.callbacks["cursor_visit"](self._keep)
        self._special: dict[int, Callable[[Any], Node]] = {
            _UNEXPOSED_EXPR: self._transparent,
            _PAREN_EXPR: self._transparent,
            _COMPOUND_LITERAL_EXPR: self._transparent,
            _CALL_EXPR: self._call,
            _DECL_REF_EXPR: self._reference,
            _INT_LITERAL: self._integer,
            _CHAR_LITERAL: self._integer,
            _FLOAT_LITERAL: self._floating,
            _UNARY_EXPR: self._unary,
            _BINARY_EXPR: self._binary,
            _COMPOUND_ASSIGN_EXPR: self._binary,
            _FOR_STMT: self._for,
            _DECL_STMT: self._declarations,
            _VAR_DECL: self.variable,
        }

    def function(self, cursor: Any) -> Function | None:
        """Return a function definition; None if the parser dropped its body."""
        self._unit, self._depth = cursor._tu, 0
        parts = self._children(cursor)
        bodies = [part for part in parts if part._kind_id == 202]
        if not bodies:
            return None
        header = ""
        if any(part._kind_id >= _FIRST_ATTRIBUTE for part in parts):
            header = self._pretty(cursor)
        required = _REQUIRED_SIZE.search(header)
        extent = cursor.extent
        start, end = extent.start.offset, extent.end.offset
        return Function(
            name=cursor.spelling,
            key=self._key(cursor),
            is_kernel=_KERNEL_WORD.search(header) is not None,
            parameters=tuple(
                Parameter(
                    name=part.spelling,
                    key=self._key(part),
                    type=as_parameter(self._types.read(part.type)),
                )
                for part in parts
                if part._kind_id == _PARM_DECL
            ),
            body=self._node(bodies[-1]),
            required_local_size=tuple(map(int, required.groups())) if required else None,
            start=start,
            end=end,
            num_errors=self._errors_between(start, end),
            num_header_errors=self._errors_between(start, bodies[-1].extent.start.offset),
        )

    def _errors_between(self, start: int, end: int) -> int:
        return bisect_right(self._error_offsets, end) - bisect_left(self._error_offsets, start)

    def prototype(self, cursor: Any) -> Prototype:
        """Return the declaration of a function without a body."""
        extent = cursor.extent
        return Prototype(key=self._key(cursor), start=extent.start.offset, end=extent.end.offset)

    def variable(self, cursor: Any) -> Node:
        """Return the declaration of one variable as a VARIABLE node."""
        self._unit = cursor._tu
        initialiser = self._library.clang_Cursor_getVarDeclInitializer(cursor)
        children: tuple[Node, ...] = ()
        # 70 to 73 are the kinds of invalid cursors, which mean that there is no initialiser.
        if not 70 <= initialiser._kind_id <= 73:
            initialiser._tu = self._unit
            children = (self._node(initialiser),)
        return Node(
            NodeKind.VARIABLE,
            self._types.read(cursor.type),
            children,
            cursor.spelling,
            self._key(cursor),
        )

    def _keep(self, child: Any, _parent: Any, _data: Any) -> int:
        child._tu = self._unit
        self._found.append(child)
        return _VISIT_CONTINUE

    def _children(self, cursor: Any) -> list[Any]:
        found: list[Any] = []
        self._found = found
        self._library.clang_visitChildren(cursor, self._visitor, None)
        return found

    def _node(self, cursor: Any) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RecursionError(f"more than {_MAX_DEPTH} levels")
        special = self._special.get(cursor._kind_id)
        node = special(cursor) if special is not None else self._plain(cursor)
        self._depth -= 1
        return node

    def _plain(self, cursor: Any) -> Node:
        kind = _PLAIN_KINDS.get(cursor._kind_id, NodeKind.OTHER)
        name = cursor.spelling if kind is NodeKind.MEMBER else ""
        return Node(kind, self._type(cursor), self._inner(cursor), name)

    def _inner(self, cursor: Any) -> tuple[Node, ...]:
        return tuple(
            [
                self._node(child)
                for child in self._children(cursor)
                if child._kind_id != _TYPE_REF and child._kind_id < _FIRST_ATTRIBUTE
            ]
        )

    def _type(self, cursor: Any) -> TypeFacts:
        if cursor._kind_id >= 200:
            return NO_TYPE
        kind = cursor.type
        address = kind.data[0]
        facts = self._facts.get(address)
        if facts is None:
            facts = self._types.read(kind)
            self._facts[address] = facts
        return facts

    def _transparent(self, cursor: Any) -> Node:
        inner = self._inner(cursor)
        return inner[0] if len(inner) == 1 else Node(NodeKind.OTHER, self._type(cursor), inner)

    def _call(self, cursor: Any) -> Node:
        callee, *arguments = self._inner(cursor) or (Node(NodeKind.OTHER, NO_TYPE),)
        return Node(
            NodeKind.CALL, self._type(cursor), tuple(arguments), cursor.spelling, callee.key
        )

    def _reference(self, cursor: Any) -> Node:
        target = cursor.referenced
        if target is None:
            return Node(NodeKind.OTHER, self._type(cursor))
        address = target.data[0]
        known = self._targets.get(address)
        if known is None:
            value = target.enum_value if target._kind_id == _ENUM_CONSTANT_DECL else None
            known = (target.spelling, self._key(target), value)
            self._targets[address] = known
        return Node(NodeKind.REFERENCE, self._type(cursor), (), *known)

    def _integer(self, cursor: Any) -> Node:
        result = self._library.clang_Cursor_Evaluate(cursor)
        value = None
        if result:
            if self._library.clang_EvalResult_getKind(result) == _EVAL_INT:
                value = self._library.clang_EvalResult_getAsLongLong(result)
            self._library.clang_EvalResult_dispose(result)
        return Node(NodeKind.INT_LITERAL, self._type(cursor), (), "", "", value)

    def _floating(self, cursor: Any) -> Node:
        result = self._library.clang_Cursor_Evaluate(cursor)
        name = ""
        if result:
            if self._library.clang_EvalResult_getKind(result) == _EVAL_FLOAT:
                value = ctypes.c_float(self._library.clang_EvalResult_getAsDouble(result)).value
                name = {0.0: "0", 1.0: "1"}.get(value, "")
            self._library.clang_EvalResult_dispose(result)
        return Node(NodeKind.FLOAT_LITERAL, self._type(cursor), (), name)

    def _unary(self, cursor: Any) -> Node:
        name = _UNARY_NAMES[self._library.clang_getCursorUnaryOperatorKind(cursor)]
        inner = self._inner(cursor)
        if name == "__extension__" and inner:
            return inner[0]
        return Node(NodeKind.UNARY, self._type(cursor), inner, name)

    def _binary(self, cursor: Any) -> Node:
        operator = self._library.clang_getCursorBinaryOperatorKind(cursor)
        kind = NodeKind.BINARY
        if operator == _ASSIGN_OPERATOR:
            kind = NodeKind.ASSIGN
        elif cursor._kind_id == _COMPOUND_ASSIGN_EXPR:
            kind = NodeKind.COMPOUND_ASSIGN
        return Node(kind, self._type(cursor), self._inner(cursor), _BINARY_NAMES[operator])

    def _declarations(self, cursor: Any) -> Node:
        inner = tuple([self.variable(c) for c in self._children(cursor) if c._kind_id == _VAR_DECL])
        return inner[0] if len(inner) == 1 else Node(NodeKind.BLOCK, NO_TYPE, inner)

    def _for(self, cursor: Any) -> Node:
        # libclang omits the empty parts of a for header; the nodes' kinds show which ones remain.
        *header, body = self._inner(cursor) or (Node(NodeKind.EMPTY, NO_TYPE),)
        empty = Node(NodeKind.EMPTY, NO_TYPE)
        parts = {"initialiser": empty, "condition": empty, "step": empty}
        if len(header) == len(parts):
            parts = dict(zip(parts, header, strict=True))
        else:
            for node in header:
                parts[_header_role(node, parts["condition"] is not empty)] = node
        return Node(NodeKind.FOR, NO_TYPE, (*parts.values(), body))

    def _key(self, cursor: Any) -> str:
        canonical = cursor.canonical if cursor._kind_id == _FUNCTION_DECL else cursor
        return f"{cursor.spelling}#{canonical.hash & 0xFFFFFFFF:x}"

    def _pretty(self, cursor: Any) -> str:
        # In the pretty-printed header, attributes have expanded macros and evaluated arguments.
        policy = self._library.clang_getCursorPrintingPolicy(cursor)
        self._library.clang_PrintingPolicy_setProperty(policy, _TERSE_OUTPUT, 1)
        text = str(self._library.clang_getCursorPrettyPrinted(cursor, policy))
        self._library.clang_PrintingPolicy_dispose(policy)
        return text


def _header_role(node: Node, condition_seen: bool) -> str:
    if node.kind in {NodeKind.VARIABLE, NodeKind.BLOCK}:
        return "initialiser"
    if node.kind is NodeKind.COMPOUND_ASSIGN or node.name in _STEP_NAMES:
        return "step"
    if node.kind is NodeKind.ASSIGN or node.name == ",":
        return "step" if condition_seen else "initialiser"
    return "condition"
