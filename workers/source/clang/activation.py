"""Evaluate one function's expressions to abstract values, given the values of its parameters.

The evaluation is flow-insensitive: it ignores the order of statements, and a variable's value is
the join of all values assigned to it (the facts that hold for each of them). Calls of helper
functions are evaluated with their arguments. The result need not be exact, because it serves static
features and the choice of probes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from workers.source.clang.nodes import (
    Function,
    Node,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    walk,
)
from workers.source.clang.values import (
    UNIFORM,
    UNKNOWN,
    Source,
    Value,
    added,
    all_sources,
    irregular,
    join,
    join_all,
    multiplied,
    other_operator,
    scaled,
)

_ID_CALLS = frozenset({"get_global_id", "get_local_id"})
_LINEAR_ID_CALLS = frozenset(
    {"get_global_linear_id", "get_local_linear_id", "get_sub_group_local_id"}
)
_SIZE_CALLS = frozenset(
    {
        "get_group_id",
        "get_global_size",
        "get_local_size",
        "get_num_groups",
        "get_work_dim",
        "get_global_offset",
        "get_enqueued_local_size",
    }
)
_CLAMPING_CALLS = frozenset({"min", "max", "clamp", "abs", "fmin", "fmax"})
_MAX_CALL_DEPTH = 12
_STEPS = {"++": 1, "post++": 1, "--": -1, "post--": -1}


@dataclass(frozen=True, slots=True)
class Definition:
    """One assignment to a variable: ``=`` or a compound operator, and the right-hand side."""

    operator: str
    value: Node | int


class Activation:
    """One function whose parameters have values."""

    def __init__(
        self,
        source: ParsedSource,
        function: Function,
        arguments: tuple[Value, ...],
        depth: int = 0,
        returns: dict[tuple[str, tuple[Value, ...]], Value] | None = None,
    ) -> None:
        self.function = function
        self._source = source
        self._depth = depth
        self._returns = {} if returns is None else returns
        self._bound = {
            parameter.key: value
            for parameter, value in zip(function.parameters, arguments, strict=False)
        }
        self._definitions = definitions(function.body)
        self._known: dict[str, Value] = {}
        self._running: set[str] = set()

    def modifications(self, key: str) -> list[Definition]:
        """Return every assignment to the variable ``key``."""
        return self._definitions.get(key, [])

    def value(self, node: Node) -> Value:  # noqa: PLR0911  (one a kind of node)
        """Return the value of one expression."""
        kind = node.kind
        if kind is NodeKind.INT_LITERAL:
            return Value(constant=node.value)
        if kind is NodeKind.REFERENCE:
            return self._reference(node)
        if kind is NodeKind.CALL:
            return self._call(node)
        if kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER}:
            return self._loaded(node)
        if kind is NodeKind.UNARY:
            return self._unary(node)
        if kind is NodeKind.BINARY:
            return self._binary(node)
        if kind is NodeKind.CAST and node.children:
            return self.value(node.children[0])
        if kind is NodeKind.CONDITIONAL and len(node.children) == 3:
            condition, first, second = (self.value(one) for one in node.children)
            joined = join(first, second)
            return replace(joined, sources=joined.sources | condition.sources, constant=None)
        if kind is NodeKind.ASSIGN:
            return self.value(node.children[1])
        if kind is NodeKind.SIZEOF:
            return UNIFORM
        if not node.children:
            return UNIFORM
        return self._mixed(node.children)

    def address(self, place: Node) -> Value:  # noqa: PLR0911  (one a kind of node)
        """Return the address of the object that ``place`` names; its stride is in bytes."""
        if place.kind is NodeKind.SUBSCRIPT and len(place.children) == 2:
            base, index = place.children
            if base.type.shape not in {TypeClass.POINTER, TypeClass.ARRAY}:
                return self.address(base)
            step = scaled(self.value(index), place.type.size_bytes)
            return added(self._decayed(base), step)
        if place.kind is NodeKind.UNARY and place.name == "*":
            return self._decayed(place.children[0])
        if place.kind is NodeKind.MEMBER and place.children:
            base = place.children[0]
            is_pointer = base.type.shape is TypeClass.POINTER
            return self._decayed(base) if is_pointer else self.address(base)
        if place.kind is NodeKind.REFERENCE:
            return Value(space=place.type.space)
        if len(place.children) == 1:
            return self.address(place.children[0])
        return UNKNOWN

    def returned(self) -> Value:
        """Return the join of all values that the function returns."""
        results = [
            self.value(node.children[0])
            for node in walk(self.function.body)
            if node.kind is NodeKind.RETURN and node.children
        ]
        return join_all(results)

    def _decayed(self, node: Node) -> Value:
        is_array = node.type.shape is TypeClass.ARRAY
        value = self.address(node) if is_array else self.value(node)
        if value.space in {None, Space.GENERIC} and node.type.pointee is not None:
            value = replace(value, space=node.type.pointee.space)
        return value

    def _reference(self, node: Node) -> Value:
        if node.value is not None:
            return Value(constant=node.value)
        key = node.key
        if key in self._known:
            return self._known[key]
        if key in self._running:
            return UNIFORM
        self._running.add(key)
        value = self._variable(key, node)
        self._running.discard(key)
        self._known[key] = value
        return value

    def _variable(self, key: str, node: Node) -> Value:
        found = self._definitions.get(key, [])
        start: list[Value] = [self._bound[key]] if key in self._bound else []
        if not start and not found:
            outside = self._source.globals.get(key)
            if outside is not None and outside.children and outside.type.is_const:
                return self.value(outside.children[0])
            is_array = node.type.shape is TypeClass.ARRAY
            return Value(space=node.type.space if is_array else None)
        steps: list[Value] = []
        for one in found:
            value = Value(constant=one.value) if isinstance(one.value, int) else None
            if value is None:
                assert isinstance(one.value, Node)
                value = self.value(one.value)
            if one.operator == "=":
                start.append(value)
            elif one.operator in {"+", "-"} and value.is_uniform:
                steps.append(value)
            else:
                steps.append(value if value.is_uniform else replace(UNKNOWN, sources=value.sources))
        value = join_all(start)
        for step in steps:
            kept = value if step.is_uniform else UNKNOWN
            value = replace(kept, sources=value.sources | step.sources, constant=None)
        return value

    def _call(self, node: Node) -> Value:  # noqa: PLR0911  (one a kind of node)
        name, arguments = node.name, node.children
        if name in _ID_CALLS:
            dimension = self.value(arguments[0]).constant if arguments else 0
            return Value(stride=1 if dimension == 0 else 0, sources=Source.NDRANGE)
        if name in _LINEAR_ID_CALLS:
            return Value(stride=1, sources=Source.NDRANGE)
        if name in _SIZE_CALLS:
            return Value(sources=Source.NDRANGE)
        values = [self.value(one) for one in arguments]
        callee = self._source.functions.get(node.key)
        if callee is not None:
            return self._returned_by(callee, tuple(values))
        if name.startswith("convert_") and values:
            return values[0]
        if name in {"mul24", "mul_hi"} and len(values) == 2:
            return multiplied(*values)
        if name in {"mad24", "mad", "fma"} and len(values) == 3:
            return added(multiplied(values[0], values[1]), values[2])
        if name in _CLAMPING_CALLS:
            moving = [one for one in values if not one.is_uniform]
            joined = join_all(moving) if moving else UNIFORM
            return replace(joined, sources=all_sources(values), constant=None)
        mixed = self._mixed(arguments)
        is_load = name.startswith(("vload", "atomic_", "atom_", "read_image"))
        return replace(mixed, sources=mixed.sources | Source.DATA) if is_load else mixed

    def _returned_by(self, callee: Function, values: tuple[Value, ...]) -> Value:
        known = self._returns.get((callee.key, values))
        if known is not None:
            return known
        if self._depth >= _MAX_CALL_DEPTH:
            return replace(UNKNOWN, sources=all_sources(values))
        # A recursive call finds this value, so that the recursion ends.
        self._returns[callee.key, values] = replace(UNKNOWN, sources=all_sources(values))
        inner = Activation(self._source, callee, values, self._depth + 1, self._returns)
        value = inner.returned()
        self._returns[callee.key, values] = value
        return value

    def _loaded(self, place: Node) -> Value:
        if place.type.shape is TypeClass.ARRAY:
            return self.address(place)
        address = self.address(place)
        sources = address.sources
        if address.space in {Space.GLOBAL, Space.CONSTANT, Space.LOCAL}:
            sources |= Source.DATA
        stride = 0 if address.is_uniform else None
        return Value(stride=stride, is_linear=stride == 0, sources=sources)

    def _unary(self, node: Node) -> Value:
        child = node.children[0]
        if node.name == "&":
            return self.address(child)
        if node.name == "*":
            return self._loaded(node)
        value = self.value(child)
        if node.name == "-":
            return scaled(value, -1)
        if node.name in {"+", *_STEPS}:
            return value
        return replace(value, constant=None) if value.is_uniform else irregular(value)

    def _binary(self, node: Node) -> Value:
        left, right = node.children
        first, second = self.value(left), self.value(right)
        if node.name in {"+", "-"}:
            if left.type.shape in {TypeClass.POINTER, TypeClass.ARRAY}:
                first, second = self._decayed(left), scaled(second, _pointee_bytes(left))
            elif right.type.shape in {TypeClass.POINTER, TypeClass.ARRAY}:
                # The operator is +. The pointer comes first, so that its address space is kept.
                first, second = self._decayed(right), scaled(first, _pointee_bytes(right))
            return added(first, second if node.name == "+" else scaled(second, -1))
        if node.name == "*":
            return multiplied(first, second)
        if node.name == "<<" and second.constant is not None and 0 <= second.constant < 63:
            return scaled(first, 1 << second.constant)
        if node.name == ",":
            return second
        return other_operator(node.name, first, second)

    def _mixed(self, nodes: tuple[Node, ...]) -> Value:
        values = [self.value(one) for one in nodes]
        sources = all_sources(values)
        uniform = all(one.is_uniform for one in values)
        return Value(sources=sources) if uniform else replace(UNKNOWN, sources=sources)


def definitions(body: Node) -> dict[str, list[Definition]]:
    """Return every assignment to every variable of a function, by the variable's key."""
    found: dict[str, list[Definition]] = {}
    for node in walk(body):
        one = definition_of(node)
        if one is not None:
            found.setdefault(one[0], []).append(one[1])
    return found


def definition_of(node: Node) -> tuple[str, Definition] | None:  # noqa: PLR0911  (one a kind of node)
    """Return (key of the variable, definition) if ``node`` assigns to a variable, else None."""
    if node.kind is NodeKind.VARIABLE:
        is_value = node.children and node.type.shape is not TypeClass.ARRAY
        return (node.key, Definition("=", node.children[0])) if is_value else None
    if not node.children or node.children[0].kind is not NodeKind.REFERENCE:
        return None
    key = node.children[0].key
    if node.kind is NodeKind.UNARY and node.name in _STEPS:
        return key, Definition("+", _STEPS[node.name])
    if node.kind is NodeKind.COMPOUND_ASSIGN:
        return key, Definition(node.name, node.children[1])
    if node.kind is NodeKind.ASSIGN:
        value = node.children[1]
        if value.kind is NodeKind.BINARY and value.name in {"+", "-", "*", "/", "<<", ">>"}:
            left, right = value.children
            if left.kind is NodeKind.REFERENCE and left.key == key:
                return key, Definition(value.name, right)
            if right.kind is NodeKind.REFERENCE and right.key == key and value.name in "+*":
                return key, Definition(value.name, left)
        return key, Definition("=", value)
    return None


def _pointee_bytes(node: Node) -> int:
    return node.type.pointee.size_bytes if node.type.pointee is not None else 1
