"""How a kernel uses each of its buffers: read, written, both, or not at all.

Owns the data flow of pointers: which parameters a pointer may come from (through variables,
arithmetic, casts, helper functions and their return values), and the accesses through the pointer.
The analysis is flow-insensitive: it ignores the order of statements. If a pointer cannot be
followed, the answer is ``READ_WRITE``, which only makes LLMPerf refill the buffer before each
launch, outside the measured time. A wrong ``READ`` or ``WRITE`` would spoil timings, because the
buffer would not be refilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmperf_common.records import Access
from workers.source.clang.nodes import (
    Function,
    Node,
    NodeKind,
    ParsedSource,
    TypeClass,
    TypeFacts,
    walk,
)

_MAX_PARAMETERS = 1024
"""Maximum parameters of a function that is analysed. The time grows with their square."""
_READ, _WRITE, _BOTH = 1, 2, 3
Roots = frozenset[int]
_NONE: Roots = frozenset()
_STEPS = frozenset({"++", "--", "post++", "post--"})

_WRITTEN_POINTERS: dict[str, int] = {
    "fract": 1, "modf": 1, "sincos": 1, "frexp": 1, "lgamma_r": 1, "remquo": 2,
}  # fmt: skip
_READING_CALLS = (
    "vload",
    "prefetch",
    "printf",
    "wait_group_events",
    "atomic_load",
    "intel_sub_group_block_read",
)
_UPDATING_CALLS = ("atomic_", "atom_")
_COPIES = ("async_work_group_copy", "async_work_group_strided_copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    """A function's access flags for each parameter, and the parameters that it may return."""

    flags: tuple[int, ...]
    returned: Roots


class AccessAnalysis:
    """Analyses the functions of one file, each once."""

    def __init__(self, source: ParsedSource) -> None:
        self._source = source
        self._done: dict[str, _Summary] = {}
        self._running: set[str] = set()

    def accesses(self, function: Function) -> tuple[Access, ...]:
        """Return the access of each parameter, in order; NONE for a non-pointer."""
        flags = self.summary(function).flags
        return tuple(
            _access(flag, parameter.type)
            for flag, parameter in zip(flags, function.parameters, strict=True)
        )

    def summary(self, function: Function) -> _Summary:
        """Return the summary of ``function``.

        A recursive call, and a function with very many parameters, get the most pessimistic
        summary.
        """
        known = self._done.get(function.key)
        if known is not None:
            return known
        if function.key in self._running or len(function.parameters) > _MAX_PARAMETERS:
            everything = range(len(function.parameters))
            return _Summary(flags=(_BOTH,) * len(everything), returned=frozenset(everything))
        self._running.add(function.key)
        summary = _FunctionAnalysis(self, self._source, function).run()
        self._running.discard(function.key)
        self._done[function.key] = summary
        return summary


def _access(flag: int, kind: TypeFacts) -> Access:
    if kind.shape is not TypeClass.POINTER:
        return Access.NONE
    return (Access.NONE, Access.READ, Access.WRITE, Access.READ_WRITE)[flag]


class _FunctionAnalysis:
    def __init__(self, owner: AccessAnalysis, source: ParsedSource, function: Function) -> None:
        self._owner = owner
        self._source = source
        self._function = function
        self._flags = [0] * len(function.parameters)
        self._returned: Roots = _NONE
        self._variables: dict[str, Roots] = {
            one.key: frozenset({position})
            for position, one in enumerate(function.parameters)
            if one.type.shape is TypeClass.POINTER
        }
        self._parameters = frozenset(self._variables)

    def run(self) -> _Summary:
        nodes = list(walk(self._function.body))
        self._follow_variables(nodes)
        self._visit(self._function.body)
        if self._function.num_errors:
            self._assume_the_worst(_mentioned(nodes, self._parameters))
        return _Summary(flags=tuple(self._flags), returned=self._returned)

    def _assume_the_worst(self, seen: frozenset[str]) -> None:
        """Mark parameters as read and written unless ``const``, because statements are missing."""
        for position, parameter in enumerate(self._function.parameters):
            if parameter.type.pointee is not None and parameter.type.pointee.is_const:
                self._flags[position] |= _READ
            elif parameter.key in seen or not self._flags[position]:
                self._flags[position] = _BOTH

    # -- where pointers come from ------------------------------------------------------------

    def _follow_variables(self, nodes: Iterable[Node]) -> None:
        assignments = [pair for node in nodes if (pair := _pointer_assignment(node)) is not None]
        for _ in range(len(assignments) + 1):
            before = dict(self._variables)
            for key, value in assignments:
                found = self._pointer_roots(value)
                self._variables[key] = self._variables.get(key, _NONE) | found
            if self._variables == before:
                return

    def _pointer_roots(self, node: Node) -> Roots:  # noqa: PLR0911  (one a kind of node)
        """Return the parameters that the pointer value of ``node`` may come from."""
        kind = node.kind
        if kind is NodeKind.REFERENCE:
            return self._variables.get(node.key, _NONE)
        if kind is NodeKind.UNARY and node.name == "&":
            return self._place_roots(node.children[0])
        if kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} or (
            kind is NodeKind.UNARY and node.name == "*"
        ):
            # An array inside the buffer decays to a pointer into it. A pointer loaded from memory
            # has no root: storing a pointer there has already marked its buffer READ_WRITE.
            is_array = node.type.shape is TypeClass.ARRAY
            return self._place_roots(node) if is_array else _NONE
        if kind is NodeKind.CALL:
            return self._returned_roots(node)
        if kind is NodeKind.ASSIGN:
            return self._pointer_roots(node.children[1])
        if kind is NodeKind.SIZEOF:
            return _NONE
        return self._union(node.children)

    def _returned_roots(self, call: Node) -> Roots:
        callee = self._source.functions.get(call.key)
        if callee is None:
            is_pointer = call.type.shape is TypeClass.POINTER
            return self._union(call.children) if is_pointer else _NONE
        returned = self._owner.summary(callee).returned
        return self._union(
            argument for position, argument in enumerate(call.children) if position in returned
        )

    def _union(self, nodes: Iterable[Node]) -> Roots:
        found = _NONE
        for node in nodes:
            found |= self._pointer_roots(node)
        return found

    def _place_roots(self, node: Node) -> Roots:
        """Return the parameters whose memory may contain the object that ``node`` names."""
        kind = node.kind
        if kind is NodeKind.REFERENCE:
            return _NONE
        if kind is NodeKind.SUBSCRIPT:
            return self._union(node.children)
        if kind is NodeKind.UNARY and node.name == "*":
            return self._pointer_roots(node.children[0])
        if kind is NodeKind.MEMBER and node.children:
            base = node.children[0]
            is_pointer = base.type.shape is TypeClass.POINTER
            return self._pointer_roots(base) if is_pointer else self._place_roots(base)
        found = _NONE
        for child in node.children:
            found |= self._place_roots(child)
        return found

    # -- accesses through pointers -----------------------------------------------------------

    def _mark(self, roots: Roots, flag: int) -> None:
        for position in roots:
            self._flags[position] |= flag

    def _visit(self, node: Node) -> None:
        """Record what evaluating ``node`` does to memory."""
        kind = node.kind
        if kind is NodeKind.SIZEOF:
            return
        if kind is NodeKind.ASSIGN:
            self._visit_assignment(node)
        elif kind is NodeKind.COMPOUND_ASSIGN or (kind is NodeKind.UNARY and node.name in _STEPS):
            self._visit_place(node.children[0], _BOTH)
            for child in node.children[1:]:
                self._visit(child)
        elif kind is NodeKind.UNARY and node.name == "&":
            self._visit_address(node.children[0])
        elif kind is NodeKind.CALL:
            self._visit_call(node)
        elif _is_place(node):
            is_array = node.type.shape is TypeClass.ARRAY
            self._visit_place(node, 0 if is_array else _READ)
        else:
            self._visit_escapes(node)
            for child in node.children:
                self._visit(child)

    def _visit_assignment(self, node: Node) -> None:
        target, value = node.children
        self._visit_place(target, _WRITE)
        self._visit(value)
        if target.type.shape is TypeClass.POINTER and target.kind is not NodeKind.REFERENCE:
            self._mark(self._pointer_roots(value), _BOTH)

    def _visit_place(self, node: Node, flag: int) -> None:
        """Record an access to the object that ``node`` names, and the reads for its address."""
        if not _is_place(node):
            if node.kind is not NodeKind.REFERENCE:
                for child in node.children:
                    self._visit_place(child, flag)
            return
        self._mark(self._place_roots(node), flag)
        base, *rest = node.children or (node,)
        if base is not node:
            is_inner_place = _is_place(base) and base.type.shape is not TypeClass.POINTER
            if is_inner_place:
                self._visit_place(base, 0)
            else:
                self._visit(base)
        for child in rest:
            self._visit(child)

    def _visit_address(self, place: Node) -> None:
        if place.kind is NodeKind.REFERENCE and place.type.shape is TypeClass.POINTER:
            # &p: other code may now change p, so p's old target may be accessed unseen.
            self._mark(self._variables.get(place.key, _NONE), _BOTH)
        self._visit_place(place, 0)

    def _visit_escapes(self, node: Node) -> None:
        if node.kind is NodeKind.RETURN:
            if node.children and node.children[0].type.shape is TypeClass.POINTER:
                self._returned |= self._union(node.children)
        elif node.kind is NodeKind.CAST and node.type.shape is not TypeClass.POINTER:
            if any(child.type.shape is TypeClass.POINTER for child in node.children):
                self._mark(self._union(node.children), _BOTH)
        elif node.kind is NodeKind.INIT_LIST:
            pointers = [one for one in node.children if one.type.shape is TypeClass.POINTER]
            self._mark(self._union(pointers), _BOTH)

    def _visit_call(self, call: Node) -> None:
        callee = self._source.functions.get(call.key)
        flags: Mapping[int, int]
        if callee is not None:
            flags = dict(enumerate(self._owner.summary(callee).flags))
        else:
            flags = _builtin_flags(call)
        for position, argument in enumerate(call.children):
            self._visit(argument)
            if argument.type.shape in {TypeClass.POINTER, TypeClass.ARRAY}:
                self._mark(self._pointer_roots(argument), flags.get(position, _BOTH))


def _is_place(node: Node) -> bool:
    return node.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} or (
        node.kind is NodeKind.UNARY and node.name == "*"
    )


def _pointer_assignment(node: Node) -> tuple[str, Node] | None:
    if node.kind is NodeKind.VARIABLE and node.children:
        if node.type.shape is TypeClass.POINTER:
            return node.key, node.children[0]
    elif node.kind is NodeKind.ASSIGN and node.children[0].kind is NodeKind.REFERENCE:
        target, value = node.children
        if target.type.shape is TypeClass.POINTER:
            return target.key, value
    return None


def _mentioned(nodes: Iterable[Node], keys: frozenset[str]) -> frozenset[str]:
    return frozenset(one.key for one in nodes if one.kind is NodeKind.REFERENCE) & keys


def _builtin_flags(call: Node) -> dict[int, int]:  # noqa: PLR0911  (one a group of names)
    """Return the access flags of a built-in (or unknown) function's pointer arguments."""
    name, last = call.name, len(call.children) - 1
    if name.startswith(_COPIES):
        return {0: _WRITE, 1: _READ}
    if name.startswith("vstore"):
        return {last: _WRITE}
    if name.startswith(_READING_CALLS):
        return dict.fromkeys(range(last + 1), _READ)
    if name.startswith(("atomic_store", "atomic_init")):
        return {0: _WRITE}
    if name in _WRITTEN_POINTERS:
        return {_WRITTEN_POINTERS[name]: _WRITE}
    if name.startswith(_UPDATING_CALLS):
        return dict.fromkeys(range(last + 1), _BOTH)
    return {
        position: _READ
        for position, argument in enumerate(call.children)
        if argument.type.pointee is not None and argument.type.pointee.is_const
    }
