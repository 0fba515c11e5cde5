"""Count the operations and accesses of a kernel and its helpers, multiplied by loop trips.

Owns the walk and its three tallies: of each statement once, of statements weighted by constant trip
counts, and of statements in open loops (loops with unknown trip counts). ``static_features.py``
owns the feature list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from workers.source import builtin_groups as groups
from workers.source.clang.activation import Activation
from workers.source.clang.nodes import (
    LOOP_KINDS,
    Function,
    Node,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    TypeFacts,
)  # fmt: skip
from workers.source.clang.values import Source, Value, added, scaled
from workers.source.loop_trips import loop_trips

_STEPS = frozenset({"++", "--", "post++", "post--"})
_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!="})
_DIVISIONS = frozenset({"/", "%"})
_UNCOUNTED_UNARY = frozenset({"&", "*", "+", "__real", "__imag"})
_MAX_CALL_DEPTH = 16
_MAX_BODIES = 1000
"""Maximum function bodies walked for one kernel. A call tree in which each call has other arguments
can reach this number; then a further call counts only as a call."""
_LOAD, _STORE = "loads", "stores"


@dataclass(slots=True, kw_only=True)
class Counts:
    """What one call of a function does; ``depth`` and ``trips`` are maxima over its statements."""

    plain: Counter[str] = field(default_factory=Counter)
    weighted: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    depth: int = 0
    trips: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The loops around a statement: product of their trip counts, whether any is unknown, depth."""

    weight: int = 1
    is_open: bool = False
    depth: int = 0


class OperationCounter:
    """Counts the functions of one file, once for each set of argument values."""

    def __init__(self, source: ParsedSource) -> None:
        self.source = source
        self._known: dict[tuple[str, tuple[Value, ...]], Counts] = {}
        self._running: list[str] = []

    def count(self, function: Function, arguments: tuple[Value, ...]) -> Counts:
        """Count one call of ``function``; a recursive or too deeply nested call counts nothing."""
        key = (function.key, arguments)
        known = self._known.get(key)
        if known is not None:
            return known
        too_much = len(self._running) >= _MAX_CALL_DEPTH or len(self._known) >= _MAX_BODIES
        if too_much or function.key in self._running:
            return Counts()
        self._running.append(function.key)
        walker = _BodyWalker(self, Activation(self.source, function, arguments))
        walker.visit(function.body, _Place())
        self._running.pop()
        self._known[key] = walker.counts
        return walker.counts


class _BodyWalker:
    def __init__(self, owner: OperationCounter, activation: Activation) -> None:
        self._owner = owner
        self._activation = activation
        self.counts = Counts()

    def _add(self, name: str, place: _Place, amount: int = 1) -> None:
        self.counts.plain[name] += amount
        self.counts.weighted[name] += amount * place.weight
        if place.is_open:
            self.counts.open[name] += amount * place.weight

    def visit(self, node: Node, place: _Place) -> None:
        """Count ``node`` and everything below it."""
        kind = node.kind
        if kind is NodeKind.SIZEOF:
            return
        if kind in LOOP_KINDS:
            self._loop(node, place)
        elif kind is NodeKind.CALL:
            self._call(node, place)
        elif kind is NodeKind.ASSIGN:
            self._target(node.children[0], place, (_STORE,))
            self.visit(node.children[1], place)
        elif kind is NodeKind.COMPOUND_ASSIGN:
            self._operation(node.name, node.children[0].type, place)
            self._target(node.children[0], place, (_LOAD, _STORE))
            self.visit(node.children[1], place)
        elif kind is NodeKind.UNARY:
            self._unary(node, place)
        elif kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER}:
            self._target(node, place, (_LOAD,))
        else:
            self._other(node, place)
            for child in node.children:
                self.visit(child, place)

    def _other(self, node: Node, place: _Place) -> None:
        kind = node.kind
        if kind is NodeKind.BINARY:
            if node.name in {"&&", "||"}:
                self._add("selects", place)
            elif node.name in _COMPARISONS:
                self._add("comparisons", place, _lanes(node.children[0].type))
            elif node.name != ",":
                self._operation(node.name, node.type, place)
        elif kind in {NodeKind.IF, NodeKind.CASE}:
            self._add("branches", place)
        elif kind is NodeKind.CONDITIONAL:
            self._add("selects", place)
        elif kind is NodeKind.CAST and node.children:
            before, after = node.children[0].type, node.type
            is_number = before.scalar and after.scalar and before.shape is not TypeClass.POINTER
            if is_number and before.scalar != after.scalar and (before.is_float or after.is_float):
                self._add("conversions", place, _lanes(after))

    def _unary(self, node: Node, place: _Place) -> None:
        child = node.children[0]
        if node.name == "*":
            self._target(node, place, (_LOAD,))
        elif node.name == "&":
            self._target(child, place, ())
        elif node.name in _STEPS:
            self._operation("+", child.type, place)
            self._target(child, place, (_LOAD, _STORE))
        else:
            if node.name not in _UNCOUNTED_UNARY:
                self._operation(node.name, node.type, place)
            self.visit(child, place)

    def _operation(self, name: str, kind: TypeFacts, place: _Place) -> None:
        family = kind.scalar if kind.is_float else "int"
        lanes = _lanes(kind)
        self._add(f"{family}_ops", place, lanes)
        if name in _DIVISIONS:
            self._add("float_divisions" if kind.is_float else "int_divisions", place, lanes)

    # -- memory -------------------------------------------------------------------------------

    def _target(self, node: Node, place: _Place, uses: tuple[str, ...]) -> None:
        """Count an access to the object that ``node`` names, and the computation of its address."""
        is_memory = node.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} or (
            node.kind is NodeKind.UNARY and node.name == "*"
        )
        if not is_memory:
            if node.kind is not NodeKind.REFERENCE:
                self.visit(node, place)
            return
        if uses and node.type.shape is not TypeClass.ARRAY:
            address = self._activation.address(node)
            space = node.type.space
            if space in {Space.GENERIC, Space.PRIVATE} and address.space is not None:
                space = address.space
            self._access(space, address, node.type.size_bytes, place, uses)
        base, *rest = node.children or (node,)
        if base is not node:
            inner = node.kind is not NodeKind.UNARY and base.type.shape is not TypeClass.POINTER
            if inner:
                self._target(base, place, ())
            else:
                self.visit(base, place)
        for child in rest:
            self.visit(child, place)

    def _access(
        self, space: Space, address: Value, num_bytes: int, place: _Place, uses: tuple[str, ...]
    ) -> None:
        for use in uses:
            if space is Space.GLOBAL:
                self._add(f"global_{use}", place)
                self._add(f"global_{use[:-1]}_bytes", place, num_bytes)
            elif space is Space.CONSTANT:
                self._add("constant_loads", place)
            elif space is Space.LOCAL:
                self._add(f"local_{use}", place)
            else:
                self._add("private_array_accesses", place)
        if space in {Space.GLOBAL, Space.CONSTANT}:
            self._add(_pattern(address, num_bytes), place)

    # -- calls and loops -----------------------------------------------------------------------

    def _call(self, node: Node, place: _Place) -> None:
        callee = self._owner.source.functions.get(node.key)
        for argument in node.children:
            is_array = argument.type.shape is TypeClass.ARRAY
            self._target(argument, place, ()) if is_array else self.visit(argument, place)
        if callee is None:
            self._builtin(node, place)
            return
        self._add("helper_calls", place)
        values = tuple(self._argument(argument) for argument in node.children)
        inner = self._owner.count(callee, values)
        counts = self.counts
        for name, amount in inner.plain.items():
            counts.plain[name] += amount
        for name, amount in inner.weighted.items():
            counts.weighted[name] += amount * place.weight
            if place.is_open:
                counts.open[name] += amount * place.weight
        if not place.is_open:
            for name, amount in inner.open.items():
                counts.open[name] += amount * place.weight
        counts.depth = max(counts.depth, place.depth + inner.depth)
        counts.trips = max(counts.trips, place.weight * inner.trips)

    def _argument(self, node: Node) -> Value:
        is_array = node.type.shape is TypeClass.ARRAY
        value = self._activation.address(node) if is_array else self._activation.value(node)
        if value.space is None and node.type.pointee is not None:
            value = replace(value, space=node.type.pointee.space)
        return value

    def _builtin(self, node: Node, place: _Place) -> None:
        name, lanes = node.name, _lanes(node.type)
        family = f"{node.type.scalar}_ops" if node.type.is_float else "int_ops"
        if name in groups.FREE_CALLS:
            return
        if name in groups.BARRIER_CALLS:
            self._add("barriers", place)
        elif name.startswith(groups.COPY_PREFIX):
            self._add("async_copies", place)
        elif name.startswith(groups.ATOMIC_PREFIXES):
            self._atomic(node, place)
        elif name.startswith(groups.VECTOR_MEMORY_PREFIXES):
            self._vector_access(node, place)
        elif name.startswith("convert_"):
            self._add("conversions", place, lanes)
        elif name in groups.FUSED_CALLS:
            self._add("fma_calls", place, lanes)
            self._add(family, place, 2 * lanes)
        elif name in groups.CHEAP_CALLS:
            reduced = node.children and name in {"dot", "any", "all"}
            self._add(family, place, _lanes(node.children[0].type) if reduced else lanes)
        elif name.startswith(groups.CHEAP_MATH_PREFIXES):
            self._add("native_calls", place, lanes)
        elif name in groups.GROUP_OF_CALL:
            self._add(groups.GROUP_OF_CALL[name], place, lanes)
        elif node.type.is_float:
            self._add("other_math_calls", place, lanes)
        elif node.type.shape is not TypeClass.VOID:
            self._add("int_ops", place, lanes)

    def _atomic(self, node: Node, place: _Place) -> None:
        if not node.children:
            return
        address = self._argument(node.children[0])
        if address.space is Space.LOCAL:
            self._add("local_atomics", place)
            return
        self._add("global_atomics", place)
        pointee = node.children[0].type.pointee
        self._add(_pattern(address, pointee.size_bytes if pointee is not None else 4), place)

    def _vector_access(self, node: Node, place: _Place) -> None:
        is_store = node.name.startswith("vstore")
        arguments = node.children[1:] if is_store else node.children
        if len(arguments) != 2:
            return
        vector = node.children[0].type if is_store else node.type
        pointer = self._argument(arguments[1])
        element = arguments[1].type.pointee
        num_bytes = vector.size_bytes
        if element is not None and element.size_bytes:
            num_bytes = element.size_bytes * _lanes(vector)
        offset = scaled(self._activation.value(arguments[0]), num_bytes)
        address = replace(added(pointer, offset), space=pointer.space)
        space = pointer.space or Space.PRIVATE
        self._access(space, address, num_bytes, place, (_STORE if is_store else _LOAD,))

    def _loop(self, node: Node, place: _Place) -> None:
        trips = loop_trips(node, self._activation)
        self._add("loops", place)
        self._add(trips.feature, place)
        inside = replace(
            place,
            weight=place.weight * (trips.constant if trips.constant is not None else 1),
            is_open=place.is_open or trips.constant is None,
            depth=place.depth + 1,
        )
        self.counts.depth = max(self.counts.depth, inside.depth)
        self.counts.trips = max(self.counts.trips, float(inside.weight))
        outside = node.children[0] if node.kind is NodeKind.FOR else None
        for child in node.children:
            self.visit(child, place if child is outside else inside)


def _lanes(kind: TypeFacts) -> int:
    return kind.num_scalars if kind.shape is TypeClass.VECTOR else 1


def _pattern(address: Value, num_bytes: int) -> str:
    if address.stride == 0:
        return "broadcast_accesses"
    if address.stride is not None and abs(address.stride) == num_bytes:
        return "unit_stride_accesses"
    if address.is_linear:
        return "strided_accesses"
    return "indirect_accesses" if address.sources & Source.DATA else "irregular_accesses"
