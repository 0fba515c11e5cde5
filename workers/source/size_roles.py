"""Find the roles of a kernel's integer scalars: NDRange guard, row length, loop bound.

Owns the search. It follows ids and scalars through variables, arithmetic and helpers to the
comparisons, products and loop headers that show a scalar's role. The search ignores the order of
statements, so it may find a role that the scalar does not have. That is harmless, because a role
only decides the scalar's value in a launch, and the sizes of buffers follow from this value. Needs
no device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llmperf_common.launch import is_integer_scalar
from llmperf_common.records import SizeRole
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

_ID_CALLS = frozenset({"get_global_id", "get_local_id", "get_group_id"})
_LINEAR_ID_CALLS = frozenset({"get_global_linear_id", "get_local_linear_id"})
_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!="})
_SPLITTING = frozenset({"/", "%", "&", ">>"})
_LOGICAL = frozenset({"&&", "||"})
_CLAMPING_CALLS = frozenset({"min", "max", "clamp"})
_PRODUCT_CALLS = frozenset({"mul24", "mad24", "mad_hi", "mul_hi", "mad"})
_ADDRESSING_CALLS = ("vload", "vstore", "atomic_", "atom_", "async_work_group_", "prefetch")
_LOADING_CALLS = ("vload", "atomic_", "atom_", "read_image")
_MAX_CALL_DEPTH = 12
_GUARDS = (SizeRole.GUARD_0, SizeRole.GUARD_1, SizeRole.GUARD_2)

# The bits of a value say what it depends on: the ids of dimensions 0 to 2; variables that change
# between the iterations of a loop; local ids; other ids. Three more bits for each scalar argument
# say whether the scalar is part of a sum, part of a product of scalars, or factor of an id.
_IDS = 0b111
_TURN = 0b1000
_LOCAL_ID, _OTHER_ID = 0b1_0000, 0b10_0000
"""Bits for the kind of id, whatever its dimension."""
_FIRST_SCALAR = 6
_SUMMED, _MULTIPLIED, _SCALING = 0, 1, 2


def size_roles(source: ParsedSource, kernel: Function) -> tuple[SizeRole, ...]:
    """Return the role of each argument; NONE for arguments that are not integers passed by value.

    The role is the first that applies:

    - ``LANES``: a local id is divided by the scalar, taken modulo it or masked with it
      (``/ % & >>``).
    - ``GUARD_d``: the scalar is compared with an index of dimension d, also by ``min``, ``max`` or
      ``clamp``. If an index has several dimensions (a vector of ids), the first scalar compared
      with it guards the first dimension, the next scalar the second.
    - ``PITCH``: an index contains the scalar times an id or a loop variable.
    - ``LOOP``: the scalar bounds a loop.

    Raises:
        RecursionError: An expression is nested too deeply to be walked.
    """
    positions = [
        position
        for position, parameter in enumerate(kernel.parameters)
        if parameter.type.shape in {TypeClass.SCALAR, TypeClass.VECTOR}
        and is_integer_scalar(parameter.type.scalar)
    ]
    found = _Found(num_scalars=len(positions))
    bound = [0] * len(kernel.parameters)
    for number, position in enumerate(positions):
        bound[position] = found.bit(number, _SUMMED)
    _Flow(source, kernel, tuple(bound), found).visit()
    by_number = found.roles()
    roles = [SizeRole.NONE] * len(kernel.parameters)
    for number, position in enumerate(positions):
        roles[position] = by_number[number]
    return tuple(roles)


@dataclass(slots=True, kw_only=True)
class _Found:
    """The uses of each scalar that were found, and the (function, arguments) pairs visited."""

    num_scalars: int
    guards: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (number of a scalar, mask of the ids with which it is compared), in source order."""
    pitches: int = 0
    loops: int = 0
    lanes: int = 0
    visited: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    returned: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def bit(self, number: int, how: int) -> int:
        return 1 << (_FIRST_SCALAR + how * self.num_scalars + number)

    def scalars(self, bits: int, *ways: int) -> int:
        """Return, as a mask, the scalars that ``bits`` contains in a way such as ``_SUMMED``."""
        every = (1 << self.num_scalars) - 1
        found = 0
        for how in ways:
            found |= bits >> (_FIRST_SCALAR + how * self.num_scalars) & every
        return found

    def spread(self, scalars: int, how: int) -> int:
        """Return the bits that mark a mask of scalars as present in the way ``how``."""
        return scalars << (_FIRST_SCALAR + how * self.num_scalars)

    def compare(self, left: int, right: int) -> None:
        """Note the scalars that a comparison of two values shows to be guards or loop bounds."""
        for one, other in ((left, right), (right, left)):
            scalars = self.scalars(other, _SUMMED)
            ids = one & _IDS
            if ids and not other & _IDS:
                self.guards += [(n, ids) for n in range(self.num_scalars) if scalars >> n & 1]
            elif one & _TURN and not other & _IDS:
                self.loops |= scalars

    def roles(self) -> list[SizeRole]:
        axes = self._axes()
        roles = []
        for number in range(self.num_scalars):
            if self.lanes >> number & 1:
                roles.append(SizeRole.LANES)
            elif number in axes:
                roles.append(_GUARDS[axes[number]])
            elif self.pitches >> number & 1:
                roles.append(SizeRole.PITCH)
            else:
                roles.append(SizeRole.LOOP if self.loops >> number & 1 else SizeRole.NONE)
        return roles

    def _axes(self) -> dict[int, int]:
        axes: dict[int, int] = {}
        for number, ids in self.guards:
            if ids.bit_count() == 1:
                axis = ids.bit_length() - 1
                axes[number] = min(axis, axes.get(number, axis))
        taken: dict[int, list[int]] = {}
        for number, ids in self.guards:
            others = taken.setdefault(ids, [])
            if number not in axes and number not in others:
                others.append(number)
        for ids, numbers in taken.items():
            dimensions = [axis for axis in range(len(_GUARDS)) if ids >> axis & 1]
            beyond = dimensions[:1] * len(numbers)
            axes.update(zip(numbers, dimensions + beyond, strict=False))
        return axes


class _Flow:
    """The flow through one function, given the bits of its arguments."""

    def __init__(
        self,
        source: ParsedSource,
        function: Function,
        arguments: tuple[int, ...],
        found: _Found,
        depth: int = 0,
    ) -> None:
        self._source = source
        self._function = function
        self._found = found
        self._depth = depth
        self._bound = {
            parameter.key: bits
            for parameter, bits in zip(function.parameters, arguments, strict=False)
        }
        self._definitions = definitions(function.body)
        self._known: dict[str, int] = {}
        self._running: set[str] = set()

    def visit(self) -> None:
        """Note every comparison, index and loop of the function and of the functions it calls."""
        for node in walk(self._function.body):
            if node.kind is NodeKind.BINARY and node.name in _COMPARISONS:
                self._note_comparison(*node.children)
            elif node.kind in LOOP_KINDS:
                self._note_loop(node)
            elif node.kind is NodeKind.SUBSCRIPT or (
                node.kind is NodeKind.UNARY and node.name == "*"
            ):
                self._note_index(node.children)
            elif node.kind is NodeKind.CALL:
                self._note_call(node)

    def returned(self) -> int:
        """Return the union of the bits of all returned values."""
        bits = 0
        for node in walk(self._function.body):
            if node.kind is NodeKind.RETURN and node.children:
                bits |= self._value(node.children[0])
        return bits

    def _note_comparison(self, left: Node, right: Node) -> None:
        first, second = self._value(left), self._value(right)
        self._found.compare(first, second)
        # n - i > 0 means i < n.
        for bits, other in ((first, right), (second, left)):
            if other.kind is NodeKind.INT_LITERAL and other.value == 0:
                self._found.compare(bits & _IDS, bits & ~_IDS)

    def _note_loop(self, loop: Node) -> None:
        condition = loop.children[1] if loop.kind is NodeKind.FOR else loop.children[0]
        if loop.kind is NodeKind.DO:
            condition = loop.children[-1]
        for node in walk(condition):
            if node.kind is NodeKind.REFERENCE:
                bits = self._value(node)
                self._found.loops |= self._found.scalars(bits, _SUMMED, _MULTIPLIED)

    def _note_index(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            self._found.pitches |= self._found.scalars(self._value(node), _SCALING)

    def _note_call(self, node: Node) -> None:
        callee = self._source.functions.get(node.key)
        if callee is not None:
            bits = tuple(self._value(one) for one in node.children)
            if self._depth < _MAX_CALL_DEPTH and (callee.key, bits) not in self._found.visited:
                self._found.visited.add((callee.key, bits))
                _Flow(self._source, callee, bits, self._found, self._depth + 1).visit()
        elif node.name in _CLAMPING_CALLS:
            first, *rest = (self._value(one) for one in node.children)
            for other in rest:
                self._found.compare(first, other)
        elif node.name.startswith(_ADDRESSING_CALLS):
            self._note_index(node.children)

    def _value(self, node: Node) -> int:  # noqa: PLR0911  (one a kind of node)
        kind = node.kind
        if kind is NodeKind.REFERENCE:
            return self._variable(node.key)
        if kind is NodeKind.CALL:
            return self._call(node)
        if kind is NodeKind.SIZEOF:
            return 0
        if kind is NodeKind.BINARY:
            return self._binary(node)
        if kind is NodeKind.ASSIGN:
            return self._value(node.children[1])
        if kind is NodeKind.CONDITIONAL:
            return self._all(node.children[1:])
        if kind is NodeKind.UNARY and node.name == "!":
            return 0
        if _is_load(node):
            return 0
        return self._all(node.children)

    def _all(self, nodes: tuple[Node, ...]) -> int:
        bits = 0
        for node in nodes:
            bits |= self._value(node)
        return bits

    def _variable(self, key: str) -> int:
        if key in self._known:
            return self._known[key]
        if key in self._running:
            return 0
        self._running.add(key)
        bits = self._bound.get(key, 0)
        for one in self._definitions.get(key, ()):
            bits |= self._assigned(one)
        self._running.discard(key)
        self._known[key] = bits
        return bits

    def _assigned(self, definition: Definition) -> int:
        value = definition.value
        bits = self._value(value) if isinstance(value, Node) else 0
        return bits if definition.operator == "=" else bits | _TURN

    def _binary(self, node: Node) -> int:
        if node.name in _COMPARISONS or node.name in _LOGICAL:
            return 0
        left, right = (self._value(one) for one in node.children)
        if node.name == ",":
            return right
        if node.name == "*" and not node.type.is_float:
            return self._product(left, right)
        if node.name in _SPLITTING and left & _LOCAL_ID and not left & _OTHER_ID:
            self._found.lanes |= self._found.scalars(right, _SUMMED, _MULTIPLIED)
            return left
        return left | right

    def _product(self, left: int, right: int) -> int:
        found = self._found
        bits = left | right
        for one, other in ((left, right), (right, left)):
            scalars = found.scalars(other, _SUMMED, _MULTIPLIED)
            if one & (_IDS | _TURN):
                bits |= found.spread(scalars, _SCALING)
                bits &= ~found.spread(scalars, _SUMMED)
            if found.scalars(one, _SUMMED, _MULTIPLIED):
                bits |= found.spread(scalars, _MULTIPLIED)
                bits &= ~found.spread(scalars, _SUMMED)
        return bits

    def _call(self, node: Node) -> int:
        name, arguments = node.name, node.children
        if name in _ID_CALLS:
            dimension = arguments[0].value if arguments else 0
            known = dimension is not None and 0 <= dimension < len(_GUARDS)
            which = _LOCAL_ID if name == "get_local_id" else _OTHER_ID
            return which | (1 << (dimension or 0) if known else _IDS)
        if name in _LINEAR_ID_CALLS:
            return 1 | (_LOCAL_ID if name == "get_local_linear_id" else _OTHER_ID)
        callee = self._source.functions.get(node.key)
        if callee is not None:
            return self._returned_by(callee, tuple(self._value(one) for one in arguments))
        if name.startswith(_LOADING_CALLS):
            return 0
        if name in _PRODUCT_CALLS and len(arguments) >= 2 and not node.type.is_float:
            product = self._product(self._value(arguments[0]), self._value(arguments[1]))
            return product | self._all(arguments[2:])
        return self._all(arguments)

    def _returned_by(self, callee: Function, arguments: tuple[int, ...]) -> int:
        key = (callee.key, arguments)
        known = self._found.returned.get(key)
        if known is not None or self._depth >= _MAX_CALL_DEPTH:
            return known or 0
        self._found.returned[key] = 0  # a recursive call finds this and ends
        bits = _Flow(self._source, callee, arguments, self._found, self._depth + 1).returned()
        self._found.returned[key] = bits
        return bits


def _is_load(node: Node) -> bool:
    """Whether a node loads from a buffer. The index then says nothing about the value."""
    is_place = node.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} or (
        node.kind is NodeKind.UNARY and node.name == "*"
    )
    if not is_place or node.type.shape is TypeClass.ARRAY or not node.children:
        return False
    base = node.children[0]
    if base.kind is NodeKind.MEMBER or base.kind is NodeKind.SUBSCRIPT:
        return _is_load(base) or base.type.shape is TypeClass.POINTER
    pointee = base.type.pointee
    if node.kind is NodeKind.MEMBER and base.type.shape is not TypeClass.POINTER:
        return False
    return pointee is not None and pointee.space is not Space.PRIVATE
