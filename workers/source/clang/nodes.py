"""A kernel file as plain values: functions, statements, expressions, types.

Owns the small tree that the analyses walk (access, dimensions, static features). The analyses need
no libclang object, so they can be read and tested alone. ``clang/parse.py`` builds the tree, and
leaves out implicit casts, parentheses and vector swizzles, but no address or value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum

from llmperf_common.records import Leaf


class NodeKind(Enum):
    """The kind of a node in a function's body."""

    INT_LITERAL = "int_literal"
    FLOAT_LITERAL = "float_literal"
    REFERENCE = "reference"
    CALL = "call"
    SUBSCRIPT = "subscript"
    MEMBER = "member"
    UNARY = "unary"
    BINARY = "binary"
    ASSIGN = "assign"
    COMPOUND_ASSIGN = "compound_assign"
    CONDITIONAL = "conditional"
    CAST = "cast"
    INIT_LIST = "init_list"
    SIZEOF = "sizeof"
    VARIABLE = "variable"
    BLOCK = "block"
    IF = "if"
    SWITCH = "switch"
    CASE = "case"
    FOR = "for"
    WHILE = "while"
    DO = "do"
    RETURN = "return"
    JUMP = "jump"
    EMPTY = "empty"
    OTHER = "other"


LOOP_KINDS = frozenset({NodeKind.FOR, NodeKind.WHILE, NodeKind.DO})


class Space(Enum):
    """OpenCL address space of an object, or of what a pointer points to."""

    PRIVATE = "private"
    GLOBAL = "global"
    CONSTANT = "constant"
    LOCAL = "local"
    GENERIC = "generic"


class TypeClass(StrEnum):
    """The shape of a type, without typedefs and qualifiers."""

    SCALAR = "scalar"
    VECTOR = "vector"
    POINTER = "pointer"
    ARRAY = "array"
    RECORD = "record"
    IMAGE = "image"
    SAMPLER = "sampler"
    PIPE = "pipe"
    VOID = "void"
    FUNCTION = "function"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeFacts:
    """What the analyses need to know about a type.

    ``spelling``: the type as written, with typedefs. ``scalar``: the OpenCL scalar (``float``,
    ``uint``, ...); for arrays and records the scalar of all leaves, or "" if leaves differ.
    ``num_scalars``: lanes of a vector, leaves of a record or array. ``size_bytes``: the size that
    OpenCL defines (16 for a float3), 0 if unknown. ``space`` and ``is_const``: qualifiers of the
    type itself, not of its pointee.
    """

    spelling: str
    shape: TypeClass
    scalar: str
    num_scalars: int
    size_bytes: int
    space: Space
    is_const: bool
    pointee: TypeFacts | None = None
    has_pointer_leaf: bool = False
    leaves: tuple[Leaf, ...] = ()
    """The members of a record (or array of records) that has several scalar types, if all members
    are known."""

    @property
    def is_float(self) -> bool:
        """Whether the scalars are half, float or double."""
        return self.scalar in FLOAT_SCALARS


FLOAT_SCALARS = frozenset({"half", "float", "double"})


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a body.

    ``name``: operator (``+``, ``post++``, ``&``), callee, variable or member; for a floating-point
    literal, ``0`` or ``1`` if its value as a float is 0 or 1. ``key``: identity of the declaration
    that a REFERENCE, CALL or VARIABLE names. ``value``: value of an integer literal or enumerator.

    Children by kind: SUBSCRIPT (base, index); MEMBER (base,); CALL its arguments; VARIABLE its
    initialiser, if any; IF (condition, then[, else]); FOR (initialiser, condition, step, body),
    where each may be EMPTY; WHILE (condition, body); DO (body, condition); SWITCH (value, body).
    """

    kind: NodeKind
    type: TypeFacts
    children: tuple[Node, ...] = ()
    name: str = ""
    key: str = ""
    value: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a function."""

    name: str
    key: str
    type: TypeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function with a body; ``start`` and ``end`` are byte offsets in the source."""

    name: str
    key: str
    is_kernel: bool
    parameters: tuple[Parameter, ...]
    body: Node
    required_local_size: tuple[int, ...] | None
    start: int
    end: int
    num_errors: int
    """Parser errors inside the function; ``body`` may lack statements if there are any."""
    num_header_errors: int
    """Parser errors before the body; a parameter of an unknown type may then appear as ``int``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prototype:
    """A declaration of a function without its body; ``start`` and ``end`` are byte offsets."""

    key: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSource:
    """One parsed file.

    ``functions``: by declaration key, in source order. ``globals``: file-scope variables by key.
    ``errors``: the parser's messages, each ``line: text``. ``missing_files``: the includes that
    were not found.
    """

    functions: dict[str, Function]
    globals: dict[str, Node]
    errors: tuple[str, ...]
    missing_files: tuple[str, ...] = ()
    prototypes: tuple[Prototype, ...] = ()

    @property
    def kernels(self) -> tuple[Function, ...]:
        """The ``__kernel`` functions that have a body, in source order."""
        return tuple(one for one in self.functions.values() if one.is_kernel)


def walk(node: Node) -> Iterator[Node]:
    """Yield ``node`` and all nodes below it, parents first; no recursion, so any depth works."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack.extend(reversed(one.children))


def reachable(source: ParsedSource, start: Function) -> tuple[Function, ...]:
    """Return ``start`` and all functions with bodies that it calls, directly or not, each once."""
    found = {start.key: start}
    queue = [start]
    while queue:
        for node in walk(queue.pop().body):
            callee = source.functions.get(node.key) if node.kind is NodeKind.CALL else None
            if callee is not None and callee.key not in found:
                found[callee.key] = callee
                queue.append(callee)
    return tuple(found.values())
