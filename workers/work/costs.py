"""Count what one execution of an expression does: operations by kind, accesses by address space.

Owns the rules, which ``docs/explanation/work.md`` states. Address arithmetic of subscripts and
pointers, moves between private variables, ``&&``, ``||`` and conversions are not counted. A
vector operation counts once for each lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from clang import cindex

from workers.analysis.copy.calls import in_its_own_space
from workers.analysis.copy.cursors import (
    CALL,
    MEMBER,
    PAREN,
    REFERENCE,
    SUBSCRIPT,
    UNARY,
    UNEXPOSED,
    children_of,
    decayed_array,
    is_dereference,
    operator,
    strip,
    text_range,
)
from workers.analysis.copy.rewriter import Rewriter
from workers.source import builtin_groups as groups
from workers.source.clang.nodes import Space, TypeClass, TypeFacts

if TYPE_CHECKING:
    from workers.work.blocks import Block

_BINARY, _COMPOUND_ASSIGN, _SIZEOF, _TYPE_REF = 114, 115, 136, 43
_ASSIGN, _COMMA = 22, 33
_DIVISIONS = frozenset({4, 5, 24, 25})
_SCALINGS = frozenset({3, 4, 23, 24})
_ONE = re.compile(rb"\(*1(?:\.0*)?[fFuUlL]*\)*")
_COMPARISONS = frozenset(range(10, 17))
_LOGICAL = frozenset({20, 21})
_STEPS = frozenset({1, 2, 3, 4})
_ADDRESS_OF = 5
_OPERATIONS = frozenset({8, 9, 10})
"""libclang's numbers for unary ``-``, ``~`` and ``!``."""
_WIDEST_ACCESS, _MOST_ELEMENTS = 16, 4
"""Maximum bytes, and maximum vector elements, that one PTX instruction of a work-item accesses."""
_CAST, _LITERALS = 117, frozenset({106, 107, 108, 109, 110})
_SPACES = {Space.GLOBAL: "global", Space.LOCAL: "local", Space.CONSTANT: "constant"}
_FLOATS = {"float": "fp32_ops", "double": "fp64_ops", "half": "fp16_ops"}
_RANKS = {"half": 1, "float": 2, "double": 3}
"""Of two operands, the one of the higher rank gives the type of an operation."""
_LOAD, _STORE = "load", "store"
_LANES_OF_SUM = {"dot": (2, -1), "length": (2, -1), "fast_length": (2, -1)}


class Use(NamedTuple):
    """One kind of access.

    ``name``: ``load``, ``store``, ``load_store`` or ``atomic``. ``requests``: number of requests
    that a GPU makes for one execution by one work-item.
    """

    name: str
    requests: int


class Costs:
    """Adds what expressions do to the tallies of blocks.

    Args:
        rewriter: the rewriter of the file.
        descend: walks an operand that runs as often as its block; calls ``add`` for most operands.
    """

    def __init__(self, rewriter: Rewriter, descend: Callable[[Any, Block], None]) -> None:
        self._type = rewriter.type
        self._raw = rewriter.edits.raw
        self._descend = descend
        self.uses: dict[tuple[int, int], Use] = {}
        """The use of each access, by the access's range in the text."""

    @staticmethod
    def operator(cursor: Any) -> int:
        """Return libclang's number for a binary operator."""
        return int(cindex.conf.lib.clang_getCursorBinaryOperatorKind(cursor))

    def add(self, cursor: Any, block: Block) -> None:
        """Add to a block's tally what an expression does, assuming that its value is used."""
        kind, children = cursor._kind_id, children_of(cursor)
        if kind == CALL:
            self._call(cursor, block)
        elif kind == _COMPOUND_ASSIGN:
            if not self._is_nothing(self.operator(cursor), children[1]):
                self._operation(self.operator(cursor), self._computed(children), block)
            self._place(children[0], block, f"{_LOAD}_{_STORE}")
            self._descend(children[1], block)
        elif kind == _BINARY:
            self._binary(cursor, children, block)
        elif kind in {SUBSCRIPT, MEMBER} or is_dereference(cursor):
            self._place(cursor, block, _LOAD)
        elif kind == REFERENCE:
            self._named(cursor, block, _LOAD)
        elif kind == UNARY:
            self._unary(cursor, children[0], block)
        elif self._is_lane_behind(cursor, children):
            self._behind(children[0], block, _LOAD)
        else:
            for child in children:
                self._descend(child, block)

    def _binary(self, cursor: Any, children: list[Any], block: Block) -> None:
        which = self.operator(cursor)
        if which == _ASSIGN:
            self._place(children[0], block, _STORE)
            self._descend(children[1], block)
            return
        if all(_is_literal(one) for one in children):
            return  # the compiler computes the result
        if which in _COMPARISONS:
            block.tally["int_ops"] += _lanes(self._type(children[0]))
        elif which not in _LOGICAL and which != _COMMA and not self._is_nothing(which, children[1]):
            self._operation(which, self._type(cursor), block)
        for child in children:
            self._descend(child, block)

    def _is_nothing(self, which: int, right: Any) -> bool:
        """Whether an operator only divides or multiplies by a literal 1, which compilers remove."""
        if which not in _SCALINGS or not _is_literal(right):
            return False
        start, end = text_range(right)
        return _ONE.fullmatch(self._raw[start:end].strip()) is not None

    def _unary(self, cursor: Any, child: Any, block: Block) -> None:
        which = operator(cursor)
        if which in _STEPS:
            self._operation(0, self._type(child), block)
            self._place(child, block, f"{_LOAD}_{_STORE}")
        elif which == _ADDRESS_OF:
            self._place(child, block, "")
        else:
            kind = self._type(cursor)
            if which in _OPERATIONS and not kind.is_float:
                block.tally["int_ops"] += _lanes(kind)
            self._descend(child, block)

    def _computed(self, operands: list[Any]) -> TypeFacts:
        """Return the type in which a compound assignment computes: for ``int += float``, float."""
        left, right = map(self._type, operands)
        if left.shape is not TypeClass.SCALAR:
            return left
        return max(left, right, key=lambda one: _RANKS.get(one.scalar, 0))

    def _operation(self, which: int, kind: TypeFacts, block: Block) -> None:
        if kind.shape not in {TypeClass.SCALAR, TypeClass.VECTOR}:
            return  # pointer arithmetic
        block.tally[_FLOATS.get(kind.scalar, "int_ops")] += _lanes(kind)
        if which in _DIVISIONS and kind.is_float:
            block.tally["special_ops"] += _lanes(kind)

    # -- memory ----------------------------------------------------------------------------------

    def _place(self, cursor: Any, block: Block, use: str) -> None:
        """Add an access to an object (none if ``use`` is empty), and what computes its address."""
        while cursor._kind_id in {UNEXPOSED, PAREN} and len(children := children_of(cursor)) == 1:
            if self._is_lane_behind(cursor, children):
                self._behind(children[0], block, use)
                return
            cursor = children[0]  # lanes of a vector: an access to the vector
        if cursor._kind_id == REFERENCE:
            self._named(cursor, block, use)
            return
        if not (cursor._kind_id in {SUBSCRIPT, MEMBER} or is_dereference(cursor)):
            self._descend(cursor, block)
            return
        kind = self._type(cursor)
        if use and kind.shape is not TypeClass.ARRAY:
            self._access(cursor, kind, block, use)
        children = children_of(cursor)
        base = _base_of(self._type, children)
        for child in children:
            if child is base and not is_dereference(cursor) and self._is_part(child):
                self._place(child, block, "")
            else:
                self._descend(child, block)

    def _named(self, cursor: Any, block: Block, use: str) -> None:
        """Add an access to a variable in local memory by its name."""
        kind = self._type(cursor)
        if use and kind.space is Space.LOCAL and kind.shape is not TypeClass.ARRAY:
            self.memory(kind.space, _parts(kind), kind.size_bytes, block, use)

    def _is_lane_behind(self, cursor: Any, children: list[Any]) -> bool:
        """Whether this is ``p->x`` with a pointer to vectors; libclang gives it no kind."""
        if cursor._kind_id != UNEXPOSED or len(children) != 1:
            return False
        if self._type(children[0]).shape is not TypeClass.POINTER:
            return False
        start, end = text_range(children[0])[1], text_range(cursor)[1]
        return self._raw[start:end].lstrip().startswith(b"->")

    def _behind(self, pointer: Any, block: Block, use: str) -> None:
        pointee = self._type(pointer).pointee
        if use and pointee is not None:
            self._access(pointer, pointee, block, use)
        self._descend(pointer, block)

    def _is_part(self, base: Any) -> bool:
        """Whether a base is an object of which a part is accessed, not a pointer that is loaded."""
        return self._type(base).shape is not TypeClass.POINTER or decayed_array(base) is not None

    def _access(self, cursor: Any, kind: TypeFacts, block: Block, use: str) -> None:
        number = _parts(kind)
        requests = max(number, -(-_lanes(kind) // _MOST_ELEMENTS))
        self.uses[text_range(cursor)] = Use(use, requests)
        self.memory(kind.space, number, kind.size_bytes, block, use)

    @staticmethod
    def memory(space: Space, number: int, num_bytes: int, block: Block, use: str) -> None:
        """Add accesses to an address space to a block's tally."""
        name = _SPACES.get(space)
        if name is None:
            return
        for one in use.split("_"):
            block.tally[f"{name}_{one}s"] += number
            block.tally[f"{name}_{one}_bytes"] += num_bytes

    # -- calls -----------------------------------------------------------------------------------

    def _call(self, cursor: Any, block: Block) -> None:
        arguments = list(cursor.get_arguments())
        name = cursor.spelling
        callee = cursor.referenced
        if callee is None or callee.get_definition() is None:
            self._builtin(cursor, name, arguments, block)
        for argument in arguments:
            self._descend(argument, block)

    def _builtin(self, cursor: Any, name: str, arguments: list[Any], block: Block) -> None:
        tally, kind = block.tally, self._type(cursor)
        lanes = _lanes(kind)
        if name in groups.RESULT_CALLS:
            self._result(arguments[-1], block)
        if name in groups.FREE_CALLS or name.startswith(("convert_", "as_")):
            return
        if name in groups.BARRIER_CALLS:
            tally["barriers"] += 1
        elif name.startswith(groups.ATOMIC_PREFIXES):
            self._atomic(arguments, block)
        elif name.startswith(groups.VECTOR_MEMORY_PREFIXES):
            self._vector_access(cursor, name, arguments, block)
        elif name.startswith(groups.COPY_PREFIX):
            return  # the function that replaces the call counts the elements
        elif name in groups.FUSED_CALLS:
            tally[_FLOATS.get(kind.scalar, "int_ops")] += 2 * lanes
        elif name.startswith(groups.CHEAP_MATH_PREFIXES) or name in groups.GROUP_OF_CALL:
            wide = max([lanes, *(_lanes(self._type(one)) for one in arguments)])
            tally["special_ops"] += 1 if name in _LANES_OF_SUM else lanes
            if name in _LANES_OF_SUM:
                tally[_FLOATS.get(kind.scalar, "fp32_ops")] += 2 * wide - 1
        elif name in groups.CHEAP_CALLS:
            tally[_FLOATS.get(kind.scalar, "int_ops")] += self._cheap(name, arguments, lanes)
        elif kind.is_float:
            tally["special_ops"] += lanes
        elif kind.shape is not TypeClass.VOID:
            tally["int_ops"] += lanes

    def _result(self, argument: Any, block: Block) -> None:
        """Add the store of a result through a pointer."""
        pointee = self._type(argument).pointee
        if pointee is not None:
            pointer, pointee = in_its_own_space(self._type, argument, pointee)
            self._access(pointer, pointee, block, _STORE)

    def _cheap(self, name: str, arguments: list[Any], lanes: int) -> int:
        if name == "dot":
            return 2 * _lanes(self._type(arguments[0])) - 1
        if name in {"any", "all"}:
            return _lanes(self._type(arguments[0]))
        return {"cross": 9, "mix": 3 * lanes}.get(name, lanes)

    def _atomic(self, arguments: list[Any], block: Block) -> None:
        pointee = self._type(arguments[0]).pointee if arguments else None
        if pointee is None:
            return
        block.tally["local_atomics" if pointee.space is Space.LOCAL else "global_atomics"] += 1
        self.uses[text_range(arguments[0])] = Use("atomic", 1)

    def _vector_access(self, cursor: Any, name: str, arguments: list[Any], block: Block) -> None:
        is_store = name.startswith("vstore")
        vector = self._type(arguments[0]) if is_store else self._type(cursor)
        pointee = self._type(arguments[-1]).pointee
        if len(arguments) != 2 + is_store or pointee is None:
            return
        use = _STORE if is_store else _LOAD
        lanes = _lanes(vector)
        size = (pointee.size_bytes or 2) * lanes
        number = max(1, -(-size // _WIDEST_ACCESS))
        # The address need not be aligned, so a GPU accesses each element alone. The address of a
        # ``vloada`` (half precision) is aligned.
        is_aligned = name.startswith(groups.ALIGNED_VECTOR_MEMORY_PREFIXES)
        requests = max(number, -(-lanes // _MOST_ELEMENTS)) if is_aligned else lanes
        self.uses[text_range(cursor)] = Use(use, requests)
        self.memory(pointee.space, number, size, block, use)


def _base_of(type_of: Callable[[Any], TypeFacts], children: list[Any]) -> Any:
    """Return the operand that is indexed or has the member; in ``1[a]``, the second operand."""
    if len(children) < 2:
        return children[0] if children else None
    first = strip(children[0])
    is_base = type_of(children[0]).shape in {TypeClass.POINTER, TypeClass.ARRAY, TypeClass.VECTOR}
    return children[0] if is_base or decayed_array(first) is not None else children[1]


def _is_literal(cursor: Any) -> bool:
    """Whether an expression consists of literals only."""
    if cursor._kind_id in _LITERALS:
        return True
    below = children_of(cursor)
    is_made = cursor._kind_id in {UNEXPOSED, PAREN, UNARY, _BINARY, _CAST} and bool(below)
    return is_made and all(_is_literal(one) for one in below)


def _parts(kind: TypeFacts) -> int:
    """Return the number of accesses that an access to an object counts as."""
    if kind.shape is TypeClass.RECORD:
        return max(1, sum(leaf.count for leaf in kind.leaves) or kind.num_scalars)
    return max(1, -(-kind.size_bytes // _WIDEST_ACCESS))


def _lanes(kind: TypeFacts) -> int:
    return kind.num_scalars if kind.shape is TypeClass.VECTOR else 1
