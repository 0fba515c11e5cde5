"""Find the buffers that a kernel surely accesses densely: one element for each work-item.

Owns the proof that an access happens. ``llmperf_common/features/least_time.py`` derives a lower
bound on time from it, which must never be wrong. So only unconditional accesses count: stores, and
the reads whose values the stores need (``live_reads.py``). The only allowed conditions are guards
of the NDRange (``if (i < n)``, ``if (i >= n) return;``). Loops, helpers, both branches of ``?:``,
and all code after a possible ``return`` are left out. Needs no device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from llmperf_common.features.least_time import DenseAccess
from llmperf_common.launch import is_integer_scalar
from workers.source.clang.activation import Definition, definitions
from workers.source.clang.nodes import (
    LOOP_KINDS,
    Function,
    Node,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    walk,
)
from workers.source.live_reads import LiveReads, is_store

_AXES = 3
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
_SIZE = "global_size_0"

Guards = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
_NO_GUARDS: Guards = ((), (), ())


def dense_accesses(source: ParsedSource, kernel: Function) -> tuple[DenseAccess, ...]:
    """Return the accesses that every work-item which passes the guards surely makes.

    Raises:
        RecursionError: An expression is nested too deeply to be walked.

    >>> from workers.source.clang.parse import parse
    >>> text = "int i = get_global_id(0); if (i < n) a[i] = 1;"
    >>> parsed = parse(f"kernel void f(global int *a, int n) {{ {text} }}")
    >>> [(one.position, one.guards[0]) for one in dense_accesses(parsed, parsed.kernels[0])]
    [(0, ('n',))]
    """
    walker = _Walker(kernel, frozenset(source.functions))
    walker.statements(kernel.body, _NO_GUARDS)
    return tuple(dict.fromkeys(walker.found))


@dataclass(slots=True)
class _Walker:
    kernel: Function
    helpers: frozenset[str]
    found: list[DenseAccess] = field(default_factory=list)
    _definitions: dict[str, list[Definition]] = field(default_factory=dict)
    _positions: dict[str, int] = field(default_factory=dict)
    _live: LiveReads = field(init=False)

    def __post_init__(self) -> None:
        body = self.kernel.body
        self._definitions = definitions(body)
        self._positions = {one.key: at for at, one in enumerate(self.kernel.parameters)}
        for node in walk(body):
            is_partial = is_store(node) and node.children[0].kind is NodeKind.SUBSCRIPT
            if is_partial and node.children[0].children[0].type.shape is TypeClass.VECTOR:
                changed = node.children[0].children[0].key  # one of the vector's lanes
                self._definitions.setdefault(changed, []).extend(_UNKNOWN_TWICE)
            elif node.kind is NodeKind.UNARY and node.name == "&":
                # A write through a pointer gives the variable an unknown value.
                for inner in walk(node):
                    if inner.kind is NodeKind.REFERENCE:
                        self._definitions.setdefault(inner.key, []).extend(_UNKNOWN_TWICE)
        self._live = LiveReads(self.kernel, self._definitions, self.helpers)

    # -- statements ---------------------------------------------------------------------------

    def statements(self, node: Node, guards: Guards) -> Guards | None:
        """Note the accesses that ``node`` surely makes.

        Return the guards of the statements after ``node``; None if ``node`` may end the work-item
        in another way.
        """
        if node.kind is NodeKind.BLOCK:
            current: Guards | None = guards
            for child in node.children:
                if current is None:
                    return None
                current = self.statements(child, current)
            return current
        if node.kind is NodeKind.IF:
            return self._branch(node, guards)
        if node.kind in {NodeKind.RETURN, NodeKind.JUMP}:
            return None
        if node.kind in LOOP_KINDS or node.kind in {NodeKind.SWITCH, NodeKind.CASE, NodeKind.OTHER}:
            return None if _may_leave(node) else guards
        self._expression(node, guards)
        return guards

    def _branch(self, node: Node, guards: Guards) -> Guards | None:
        condition, then, *other = node.children
        inside = self._conjunction(condition, guards, is_negated=False)
        if inside is not None:
            self.statements(then, inside)
        if not _may_leave(node):
            return guards
        outside = self._conjunction(condition, guards, is_negated=True)
        is_guard = not other and _is_return(then)
        return outside if is_guard else None

    def _conjunction(self, node: Node, guards: Guards, *, is_negated: bool) -> Guards | None:
        """Add the guards of a condition that is true (negated: false); None if they are unknown."""
        joint = "||" if is_negated else "&&"
        if node.kind is NodeKind.BINARY and node.name == joint:
            first = self._conjunction(node.children[0], guards, is_negated=is_negated)
            if first is None:
                return None
            return self._conjunction(node.children[1], first, is_negated=is_negated)
        if node.kind is not NodeKind.BINARY or node.name not in _FLIPPED:
            return None
        left, right = node.children
        name = node.name
        if self._axis(right) is not None:
            left, right, name = right, left, _FLIPPED[name]
        axis, scalar = self._axis(left), self._scalar(right)
        # Only the exact forms are guards: id < n, or not (id >= n).
        if axis is None or scalar is None or name != (">=" if is_negated else "<"):
            return None
        with_it = list(guards)
        with_it[axis] = (*guards[axis], scalar)
        return with_it[0], with_it[1], with_it[2]

    # -- expressions --------------------------------------------------------------------------

    def _expression(self, node: Node, guards: Guards) -> None:
        for one in self._surely_evaluated(node):
            if is_store(one) and self._live.changes_nothing(one):
                continue
            # The compiler may move a read to the store that needs it, behind the same guards.
            for read in self._live.needed_by(one):
                self._subscript(read, guards, is_whole=False)
            if is_store(one):
                self._store(one, guards)

    def _store(self, node: Node, guards: Guards) -> None:
        target = node.children[0]
        for place in self._surely_evaluated(target):
            if place.kind is NodeKind.SUBSCRIPT and len(place.children) == 2:
                # The tree leaves out swizzles; only the assignment's type shows them.
                is_vector = place.type.shape in {TypeClass.SCALAR, TypeClass.VECTOR}
                is_same = place is target and place.type.size_bytes == node.type.size_bytes
                self._subscript(place, guards, is_whole=is_vector and is_same)
                return
            if place.kind is not NodeKind.MEMBER:
                return

    def _surely_evaluated(self, node: Node) -> Iterator[Node]:
        """Yield ``node`` and the nodes always evaluated with it, except arguments of helpers."""
        yield node
        if node.kind is NodeKind.SIZEOF or (
            node.kind is NodeKind.CALL and node.key in self.helpers
        ):
            return
        children = node.children
        if node.kind is NodeKind.CONDITIONAL or (
            node.kind is NodeKind.BINARY and node.name in {"&&", "||"}
        ):
            children = children[:1]
        elif node.kind is NodeKind.UNARY and node.name == "&":
            return  # takes an address, accesses nothing
        for child in children:
            yield from self._surely_evaluated(child)

    def _subscript(self, place: Node, guards: Guards, *, is_whole: bool) -> None:
        base, index = place.children
        position = self._positions.get(base.key) if base.kind is NodeKind.REFERENCE else None
        if position is None or self._definitions.get(base.key):
            return
        pointee = self.kernel.parameters[position].type.pointee
        if pointee is None or pointee.space not in {Space.GLOBAL, Space.CONSTANT}:
            return
        pitch = self._pitch_of(index)
        if pitch is not None:
            self.found.append(
                DenseAccess(position=position, guards=guards, pitch=pitch, is_whole=is_whole)
            )

    def _pitch_of(self, index: Node) -> str | None:
        """Return the row length of an index ``id 0 + row offset`` ("" if unknown), else None."""
        index = self._resolved(index)
        if self._axis(index) == 0:
            return ""
        if index.kind is not NodeKind.BINARY or index.name not in {"+", "-"}:
            return None
        left, right = index.children
        if self._is_constant(right, first_axis=1):
            inner = self._pitch_of(left)
            rest = right
        elif index.name == "+" and self._is_constant(left, first_axis=1):
            inner = self._pitch_of(right)
            rest = left
        else:
            return None
        if inner is None:
            return None
        # The product id 1 x pitch gives the pitch. Any other term that differs between rows makes
        # the pitch unknown.
        pitch = self._row_pitch(rest) if index.name == "+" and not inner else None
        if pitch is not None:
            return pitch
        return inner if self._is_constant(rest, first_axis=2) else ""

    def _row_pitch(self, node: Node) -> str | None:
        node = self._resolved(node)
        if node.kind is not NodeKind.BINARY or node.name != "*":
            return None
        for one, other in (node.children, node.children[::-1]):
            if self._axis(one) == 1:
                scalar = self._scalar(other)
                return scalar if scalar is not None else (_SIZE if self._is_width(other) else None)
        return None

    def _is_width(self, node: Node) -> bool:
        node = self._resolved(node)
        return (
            node.kind is NodeKind.CALL and node.name == "get_global_size" and _constant(node) == 0
        )

    def _is_constant(self, node: Node, *, first_axis: int) -> bool:
        """Whether a value follows from scalars, sizes and ids of dimensions >= ``first_axis``."""
        node = self._resolved(node)
        if node.kind is NodeKind.INT_LITERAL:
            return True
        if node.kind is NodeKind.REFERENCE:
            return node.value is not None or self._scalar(node) is not None
        axis = self._axis(node)
        if axis is not None:
            return axis >= first_axis
        if node.kind is NodeKind.CALL:
            return node.name == "get_global_size" and _constant(node) is not None
        if node.kind is NodeKind.BINARY and node.name in {"+", "-", "*"}:
            return all(self._is_constant(one, first_axis=first_axis) for one in node.children)
        return False

    def _resolved(self, node: Node) -> Node:
        """Return ``node`` without integer casts, through variables that are set only once."""
        for _ in range(16):
            if node.kind is NodeKind.CAST and len(node.children) == 1 and _is_wide(node):
                node = node.children[0]
                continue
            found = self._definitions.get(node.key, []) if node.kind is NodeKind.REFERENCE else []
            if len(found) != 1 or node.key in self._positions:
                return node
            value = found[0].value
            if found[0].operator != "=" or not isinstance(value, Node) or not _is_wide(node):
                return node
            node = value
        return node

    def _axis(self, node: Node) -> int | None:
        """Return the dimension whose global id ``node`` is, or None."""
        node = self._resolved(node)
        if node.kind is not NodeKind.CALL or node.name != "get_global_id":
            return None
        axis = _constant(node)
        return axis if axis is not None and 0 <= axis < _AXES else None

    def _scalar(self, node: Node) -> str | None:
        """Return the name of the integer argument that ``node`` is; None if code changes it."""
        node = self._resolved(node)
        position = self._positions.get(node.key) if node.kind is NodeKind.REFERENCE else None
        if position is None or self._definitions.get(node.key):
            return None
        parameter = self.kernel.parameters[position]
        is_integer = parameter.type.shape is TypeClass.SCALAR and is_integer_scalar(
            parameter.type.scalar
        )
        return parameter.name if is_integer else None


_UNKNOWN_TWICE = (Definition("?", 0), Definition("?", 0))


def _constant(call: Node) -> int | None:
    return call.children[0].value if call.children else None


def _is_wide(node: Node) -> bool:
    """Whether a variable or cast keeps the full value of an id: an integer of at least 32 bits."""
    return is_integer_scalar(node.type.scalar) and node.type.size_bytes >= 4


def _is_return(node: Node) -> bool:
    if node.kind is NodeKind.BLOCK and len(node.children) == 1:
        return _is_return(node.children[0])
    return node.kind is NodeKind.RETURN


def _may_leave(node: Node) -> bool:
    # A jump may be a goto. A loop with a break or continue counts as leaving, too.
    return any(one.kind in {NodeKind.RETURN, NodeKind.JUMP} for one in walk(node))
