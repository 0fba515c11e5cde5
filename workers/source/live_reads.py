"""Find the reads of buffers that a compiler cannot drop, because a store needs their values.

Owns the proof, for ``dense_accesses.py``, that a store certainly needs the value of a read. The
search follows arithmetic, casts, some mathematical functions, and variables that only their
initialiser sets. It leaves out values that may cancel (``x - x``) or be multiplied by zero. Needs
no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workers.source.clang.activation import Definition
from workers.source.clang.nodes import Function, Node, NodeKind, Space, TypeClass, walk

STEPS = frozenset({"++", "--", "post++", "post--"})
_VALUES = frozenset({TypeClass.SCALAR, TypeClass.VECTOR})
_MOST_LEVELS = 64
"""Maximum levels of assignments and operators that are followed from a store to a value. Deeper
values do not count."""
_ID = "get_global_id"
_FUNCTIONS = frozenset(
    prefix + name
    for name in (
        "sqrt", "rsqrt", "exp", "exp2", "exp10", "log", "log2", "log10", "sin", "cos", "tan",
    )
    for prefix in ("", "native_", "half_")
) | {"tanh", "fabs", "erf"}  # fmt: skip

Leaves = dict[int, Node]
"""A mapping from the ``id()`` of a node to the node: a read, an argument or a work-item id."""


class LiveReads:
    """The reads of one kernel whose values its stores surely need.

    Args:
        kernel: the kernel's function.
        definitions: every assignment to every variable; operator ``?`` if the value is unknown.
        helpers: keys of the functions that have a body.
    """

    def __init__(
        self, kernel: Function, definitions: Mapping[str, list[Definition]], helpers: frozenset[str]
    ) -> None:
        self._definitions = definitions
        self._parameters = {one.key: one.type for one in kernel.parameters}
        self._buffers = frozenset(
            one.key for one in kernel.parameters if one.type.shape is TypeClass.POINTER
        )
        self._initialisers = {
            node.key: node
            for node in walk(kernel.body)
            if node.kind is NodeKind.VARIABLE
            and node.children
            and node.type.shape in _VALUES
            and len(definitions.get(node.key, [])) == 1
        }
        self._order = {id(node): at for at, node in enumerate(walk(kernel.body))}
        self._writes: list[tuple[int, frozenset[str]]] = []
        for node in walk(kernel.body):
            if is_store(node):
                target = node.children[0]
                changed = self._mentioned([target]) if self._is_outside(target) else frozenset()
            elif node.kind is NodeKind.CALL:
                pointers = [one for one in node.children if _may_be_buffer(one)]
                changed = self._mentioned(pointers)
            else:
                continue
            self._writes.append((self._order[id(node)], changed & self._buffers))
        self._helpers = helpers
        self._written: frozenset[str] = frozenset()
        self._known: dict[str, Leaves] = {}
        self._cached: dict[int, tuple[Node, frozenset[str]]] = {}

    def needed_by(self, node: Node) -> tuple[Node, ...]:
        """Return the reads of buffers whose values ``node`` surely needs.

        Args:
            node: a store or an atomic call that is surely evaluated; for any other node the result
                is empty.
        """
        if node.kind is not NodeKind.CALL and not is_store(node):
            return ()
        at = self._order[id(node)]
        self._written = frozenset().union(*(keys for when, keys in self._writes if when < at))
        self._known = {}
        is_call = node.kind is NodeKind.CALL
        needed = self._needed_by_call(node) if is_call else self._needed_by_store(node, at)
        return tuple(one for one in needed.values() if one.kind is NodeKind.SUBSCRIPT)

    def _needed_by_call(self, node: Node) -> Leaves:
        arguments = node.children
        is_atomic = node.name.startswith(("atomic_", "atom_")) and node.name != "atomic_init"
        if not is_atomic or node.key in self._helpers or len(arguments) < 2:
            return {}
        pointee = arguments[0].type.pointee
        if pointee is None or pointee.space is not Space.GLOBAL:
            return {}
        return {at: leaf for one in arguments[1:] for at, leaf in self._value(one, 0).items()}

    def _needed_by_store(self, node: Node, at: int) -> Leaves:
        place = self._place(node.children[0])
        if place is None:
            return {}
        base, index = place.children
        pointee = base.type.pointee
        # A later write to the buffer may overwrite this value.
        is_dead = any(base.key in keys for when, keys in self._writes if when > at)
        if is_dead or pointee is None or pointee.space is not Space.GLOBAL:
            return {}
        if node.kind is NodeKind.COMPOUND_ASSIGN:
            return self._value(index, 0) | self._operation(node, 0)
        return self._value(index, 0) | self._value(node.children[-1], 0)

    # -- values -------------------------------------------------------------------------------

    def _value(self, node: Node, level: int) -> Leaves:  # noqa: PLR0911  (one a kind of node)
        """Return the reads, arguments and ids that the value of ``node`` surely depends on."""
        level += 1
        if level > _MOST_LEVELS:
            return {}
        kind, children = node.kind, node.children
        if kind is NodeKind.REFERENCE:
            return self._variable(node, level)
        if kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER}:
            return self._loaded(node, level)
        if kind is NodeKind.ASSIGN:
            return self._value(children[1], level)
        if node.type.shape not in _VALUES:
            return {}
        if kind is NodeKind.BINARY:
            return self._operation(node, level)
        if kind is NodeKind.CALL and node.key not in self._helpers:
            if node.name == _ID:
                return {id(node): node}
            if node.name in {"fma", "mad"} and len(children) == 3:
                product = Node(NodeKind.BINARY, node.type, children[:2], "*")
                total = Node(NodeKind.BINARY, node.type, (product, children[2]), "+")
                return self._operation(total, level)
            # A saturating conversion may give a constant.
            is_cast = node.name.startswith("convert_") and "_sat" not in node.name
            if is_cast or node.name in _FUNCTIONS:
                return self._value(children[0], level) if len(children) == 1 else {}
        is_kept = kind is NodeKind.CAST or (kind is NodeKind.UNARY and node.name in {"+", "-", "~"})
        return self._value(children[0], level) if is_kept and len(children) == 1 else {}

    def _variable(self, node: Node, level: int) -> Leaves:
        if node.key in self._parameters:
            is_free = node.type.shape in _VALUES and not self._definitions.get(node.key)
            return {id(node): node} if is_free else {}
        if node.key not in self._initialisers:
            return {}
        if node.key not in self._known:
            self._known[node.key] = {}
            initialiser = self._initialisers[node.key].children[0]
            self._known[node.key] = self._value(initialiser, level)
        return self._known[node.key]

    def _loaded(self, node: Node, level: int) -> Leaves:
        place = self._place(node)
        # A value that the kernel stored before may be known to the compiler.
        if place is None or place.children[0].key in self._written:
            return {}
        return {id(place): place} | self._value(place.children[1], level)

    def _operation(self, node: Node, level: int) -> Leaves:
        left, right = node.children
        first, second = self._value(left, level), self._value(right, level)
        is_float = node.type.is_float
        if node.name == "*" or (node.name == "/" and is_float):
            is_kept = second or self._keeps(right, is_float=is_float)
            is_other_kept = first or self._keeps(left, is_float=is_float)
            return (first if is_kept else {}) | (second if is_other_kept else {})
        if node.name not in {"+", "-", "^"}:
            return {}
        if not first and not second:
            return {}
        # Values that occur on both sides may cancel.
        both = self._mentioned_by(left) & self._mentioned_by(right)
        return {at: one for at, one in (first | second).items() if _key(one) not in both}

    def _keeps(self, node: Node, *, is_float: bool) -> bool:
        """Whether a product with ``node`` depends on its other factor.

        True for a literal other than 0. In an integer product the literal must be odd, because an
        even factor shifts bits out.
        """
        for _ in range(_MOST_LEVELS):
            is_cast = node.kind is NodeKind.CAST and len(node.children) == 1 and _is_real(node)
            if is_cast or (node.kind is NodeKind.UNARY and node.name == "-"):
                node = node.children[0]
            elif node.kind is NodeKind.REFERENCE and node.key in self._initialisers:
                value = self._initialisers[node.key].children[0]
                is_wide = value.kind is NodeKind.INT_LITERAL and node.type.size_bytes >= 4
                if not _is_real(node) and not is_wide:
                    return False
                node = value
            else:
                break
        if node.kind is NodeKind.INT_LITERAL and node.value is not None:
            return 0 < node.value < 2**31 and (is_float or node.value % 2 == 1)
        return is_float and node.kind is NodeKind.FLOAT_LITERAL and node.name != "0"

    def changes_nothing(self, node: Node) -> bool:
        """Whether a store may write back the value it read: ``x[i] = x[i]``, ``x[i] += 0``."""
        if node.kind is NodeKind.COMPOUND_ASSIGN:
            return _is_neutral(node)
        if node.kind is not NodeKind.ASSIGN:
            return False
        value = node.children[1]
        for _ in range(_MOST_LEVELS):
            if value.kind is NodeKind.REFERENCE and value.key in self._initialisers:
                value = self._initialisers[value.key].children[0]
            elif value.kind is NodeKind.BINARY and _is_neutral(value):
                value = value.children[0]
            else:
                break
        read, written = self._place(value), self._place(node.children[0])
        return bool(read and written and _key(read) == _key(written))

    # -- places -------------------------------------------------------------------------------

    def _place(self, node: Node) -> Node | None:
        """Return the buffer element (a SUBSCRIPT) that ``node`` is or belongs to, or None."""
        while node.children:
            base = node.children[0]
            if node.kind is NodeKind.SUBSCRIPT and len(node.children) == 2:
                if base.kind is NodeKind.REFERENCE:
                    is_fixed = base.key in self._buffers and not self._definitions.get(base.key)
                    return node if is_fixed else None
            elif node.kind is not NodeKind.MEMBER:
                return None
            if _is_pointer(base):
                return None
            node = base
        return None

    def _is_outside(self, target: Node) -> bool:
        """Whether a store to ``target`` may change what a pointer points to."""
        while target.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} and target.children:
            if _is_pointer(target.children[0]):
                return True
            target = target.children[0]
        return target.kind is not NodeKind.REFERENCE

    def _mentioned_by(self, node: Node) -> frozenset[str]:
        if id(node) not in self._cached:  # keeping the node keeps its id() unique
            self._cached[id(node)] = node, self._mentioned([node])
        return self._cached[id(node)][1]

    def _mentioned(self, nodes: Iterable[Node]) -> frozenset[str]:
        """Return the arguments and ids that values may come from; all parameters if unknown."""
        found: set[str] = set()
        seen: set[str] = set()
        stack = list(nodes)
        while stack:
            for node in walk(stack.pop()):
                if node.kind is NodeKind.CALL and node.name == _ID:
                    found.add(_ID)
                if node.kind is not NodeKind.REFERENCE or node.key in seen:
                    continue
                seen.add(node.key)
                if node.key in self._parameters:
                    found.add(node.key)
                elif node.type.shape not in _VALUES | {TypeClass.POINTER}:
                    found |= self._parameters.keys()
                for one in self._definitions.get(node.key, []):
                    if one.operator == "?":
                        found |= self._parameters.keys()
                    elif isinstance(one.value, Node):
                        stack.append(one.value)
        return frozenset(found)


def is_store(node: Node) -> bool:
    """Whether ``node`` assigns to its first child."""
    return node.kind in {NodeKind.ASSIGN, NodeKind.COMPOUND_ASSIGN} or (
        node.kind is NodeKind.UNARY and node.name in STEPS
    )


def _key(leaf: Node) -> str:
    if leaf.kind is NodeKind.SUBSCRIPT:
        return leaf.children[0].key
    return leaf.key if leaf.kind is NodeKind.REFERENCE else _ID


def _is_pointer(node: Node) -> bool:
    return node.type.shape is TypeClass.POINTER


def _is_real(node: Node) -> bool:
    return node.type.scalar in {"float", "double"}


def _is_neutral(node: Node) -> bool:
    literal = node.children[1]
    found = literal.name if literal.kind is NodeKind.FLOAT_LITERAL else str(literal.value)
    return found == ("1" if node.name in {"*", "/"} else "0")


def _may_be_buffer(node: Node) -> bool:
    pointee = node.type.pointee
    return _is_pointer(node) and not (
        pointee is not None
        and pointee.shape in _VALUES
        and pointee.space in {Space.PRIVATE, Space.LOCAL}
    )
