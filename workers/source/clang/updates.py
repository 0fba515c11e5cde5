"""Find atomic operations by which a work-item decides more than its own update.

A branch may depend on an update if it only repeats or skips the update itself, as in a loop that
adds floats by compare-and-exchange. It may not lead to other work, as in a queue from which
work-items take tasks. Owns which operations are updates, and what code may depend on them;
``flow.py`` follows their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from workers.source.builtin_groups import ATOMIC_PREFIXES, BARRIER_CALLS, COPY_PREFIX
from workers.source.clang.nodes import (
    LOOP_KINDS,
    Function,
    Node,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    reachable,
    walk,
)

FENCES = frozenset({"barrier", "work_group_barrier", "mem_fence", "atomic_work_item_fence"})
GROUP_PREFIXES = ("work_group_", "sub_group_")
STEPS = frozenset({"++", "--", "post++", "post--"})
ASSIGNMENTS = frozenset({NodeKind.ASSIGN, NodeKind.COMPOUND_ASSIGN})
_SWAPS = frozenset({"atomic_xchg", "atom_xchg"})
_EXCHANGES = frozenset({"atomic_cmpxchg", "atom_cmpxchg"})
_READS = frozenset(f"{prefix}{name}" for prefix in ATOMIC_PREFIXES for name in ("or", "add", "sub"))
_BOUNDS = frozenset(f"{prefix}{name}" for prefix in ATOMIC_PREFIXES for name in ("min", "max"))
_OUTER = frozenset({Space.GLOBAL, Space.LOCAL, Space.CONSTANT})
_OPAQUE = frozenset({TypeClass.IMAGE, TypeClass.PIPE})
_MOST_NODES, _MOST_VISITS, _MOST_ROUNDS = 2**19, 2**20, 8
"""Limits of the analysis: nodes that it follows and visits, for all updates together (about a
second each), and rounds for one update. Beyond them, an update is taken to decide other work."""


@dataclass(slots=True, kw_only=True)
class Dependent:
    """What is known to depend on an update without an assignment of its value.

    ``expected``: keys of the variables that hold the expected value of a compare-and-exchange.
    ``places``: variables and other places that are written in code that the update decides.
    ``results``: keys of the functions that return in such code.
    """

    expected: frozenset[str] = frozenset()
    places: dict[int, Node] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Number of places and functions."""
        return len(self.places) + len(self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """Where the value of one update goes.

    ``conditions``: the statements and operators whose condition depends on it, each with its
    function. ``is_address``: an address outside private memory depends on it. ``is_target``:
    whether a place may belong to the object that is updated. ``is_complete``: all assignments
    were followed.
    """

    conditions: Sequence[tuple[Function, Node]]
    is_address: bool
    is_target: Callable[[Node], bool]
    is_complete: bool


def is_update(node: Node, kernel: Function) -> bool:
    """Whether an atomic operation has a form that serves a work-item's own update, or a read."""
    name, operand = node.name, node.children[1:2]
    if not operand:
        return False
    if name in _EXCHANGES:
        own = {one.key for one in kernel.parameters}
        named = {one.key for one in walk(operand[0]) if one.kind is NodeKind.REFERENCE}
        return bool(named - own)
    if name in _SWAPS:
        return any(one.kind is NodeKind.CALL and one.name in _SWAPS for one in walk(operand[0]))
    return name in _BOUNDS or _is_read(node)


def is_exchange(node: Node) -> bool:
    """Whether a call is a compare-and-exchange."""
    return node.name in _EXCHANGES


def is_dereference(node: Node) -> bool:
    """Whether an expression is ``*pointer``."""
    return node.kind is NodeKind.UNARY and node.name == "*"


def space_of(pointer: Node) -> Space:
    """Return the address space of what a pointer or an array refers to."""
    pointee = pointer.type.pointee
    return pointee.space if pointee is not None else pointer.type.space


def decides_work(
    source: ParsedSource,
    kernel: Function,
    follow: Callable[[Node, Dependent], Followed],
) -> bool:
    """Whether a work-item may decide more than its own update by one of its updates."""
    functions = reachable(source, kernel)
    updates = [
        one
        for function in functions
        for statement in walk(function.body)
        for one in statement.children
        if one.kind is NodeKind.CALL
        and is_update(one, kernel)
        and not _is_read(one)
        and space_of(one.children[0]) is not Space.LOCAL
        and (statement.kind is not NodeKind.BLOCK or is_exchange(one))
    ]
    if not updates:
        return False
    code = _Code(source, kernel, functions)
    try:
        return len(updates) * code.size > _MOST_NODES or any(
            _decides(code, one, follow) for one in updates
        )
    except _TooManyVisitsError:
        return True


def _decides(code: _Code, update: Node, follow: Callable[[Node, Dependent], Followed]) -> bool:
    known = Dependent(expected=code.expected(update))
    for _ in range(_MOST_ROUNDS):
        before = known.size
        followed = follow(update, known)
        if not followed.is_complete or followed.is_address:
            return True
        decided = {
            id(piece): (function, piece)
            for function, condition in followed.conditions
            for piece in code.decided(function, condition)
        }.values()
        check = _Check(code, update, followed, [piece for _, piece in decided])
        if not all(check.is_harmless(piece) for _, piece in decided):
            return True
        for function, piece in decided:
            code.note_writes(piece, function, known)
        if known.size == before:
            return False
    return True


class _TooManyVisitsError(Exception):
    """The analysis has visited more nodes than it may."""


class _Code:
    """The functions of a kernel, with the parent of each node; counts the visits of nodes."""

    def __init__(
        self, source: ParsedSource, kernel: Function, functions: Sequence[Function]
    ) -> None:
        self._source, self._functions = source, functions
        self._scalars = {one.key for one in kernel.parameters if one.type.pointee is None}
        self._parents = {
            id(child): node
            for one in functions
            for node in walk(one.body)
            for child in node.children
        }
        self._num_visits = 0

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self._parents)

    def decided(self, function: Function, condition: Node) -> list[Node]:
        """Return the code that runs, is skipped or is repeated because of a condition."""
        if condition.kind in LOOP_KINDS or condition.kind is NodeKind.CALL:
            decided = [condition]
        else:
            decided = list(condition.children[1:])
        pieces: dict[int, Node] = {}
        while decided:
            piece = decided.pop()
            self._count_visit()
            if id(piece) in pieces:
                continue
            pieces[id(piece)] = piece
            for jump in self._visited(piece):
                if jump.kind is NodeKind.RETURN:
                    decided += self._after(jump)
                elif jump.kind is NodeKind.JUMP and jump.children:
                    decided.append(function.body)  # a goto
                elif jump.kind is NodeKind.JUMP:
                    decided += self._left(jump, condition)
        return list(pieces.values())

    def _visited(self, start: Node) -> Iterator[Node]:
        for node in walk(start):
            self._count_visit()
            yield node

    def _count_visit(self) -> None:
        self._num_visits += 1
        if self._num_visits > _MOST_VISITS:
            raise _TooManyVisitsError

    def _above(self, node: Node) -> Iterator[tuple[Node, Node]]:
        while (parent := self._parents.get(id(node))) is not None:
            yield node, parent
            node = parent

    def _after(self, jump: Node) -> Iterator[Node]:
        """Yield what a return skips: loops around it, and the statements after it."""
        for node, parent in self._above(jump):
            if parent.kind in LOOP_KINDS:
                yield parent
            elif parent.kind is not NodeKind.IF:
                at = next(n for n, one in enumerate(parent.children) if one is node)
                yield from parent.children[at + 1 :]

    def _left(self, jump: Node, condition: Node) -> Iterator[Node]:
        """Yield the loop that a break or a continue concerns, if the condition is in the loop."""
        for _, parent in self._above(jump):
            if parent.kind in LOOP_KINDS:
                if parent is condition or any(one is parent for _, one in self._above(condition)):
                    yield parent
                return

    def reached(self, start: Node) -> Iterator[Node]:
        """Yield all nodes of some code and of the functions that it calls."""
        queue, seen = [start], set[str]()
        while queue:
            for node in self._visited(queue.pop()):
                yield node
                callee = self.callee(node)
                if callee is not None and callee.key not in seen:
                    seen.add(callee.key)
                    queue.append(callee.body)

    def callee(self, node: Node) -> Function | None:
        """Return the function with a body that a node calls."""
        return self._source.functions.get(node.key) if node.kind is NodeKind.CALL else None

    def expected(self, update: Node) -> frozenset[str]:
        """Return the keys of the variables in the expected value, without ids and scalars."""
        if not is_exchange(update):
            return frozenset()
        keys = set[str]()
        queue = [update.children[1]]
        while queue:
            node = queue.pop()
            keys |= {node.key} if node.kind is NodeKind.REFERENCE else set()
            queue += node.children[:1] if node.kind is NodeKind.SUBSCRIPT else node.children
        return frozenset(one for one in keys - self._scalars if not self._is_id(one))

    def _is_id(self, variable: str) -> bool:
        """Whether a variable follows only from ids, sizes and the kernel's scalar arguments."""
        values = [
            list(node.children[-1:])
            for function in self._functions
            for node in walk(function.body)
            if (place := _written(node)) is not None and place.key == variable
        ]
        return bool(values) and not any(
            _is_access(one)
            or (one.kind is NodeKind.REFERENCE and one.key not in self._scalars)
            or (one.kind is NodeKind.CALL and not one.name.startswith("get_"))
            for value in values
            for child in value
            for one in walk(child)
        )

    def note_writes(self, piece: Node, function: Function, known: Dependent) -> None:
        """Note what some code writes, and whether the function may return in it."""
        if any(one.kind is NodeKind.RETURN for one in self._visited(piece)):
            known.results.add(function.key)
        for one in self.reached(piece):
            place = _written(one)
            if place is not None:
                known.places[id(place)] = place


class _Check:
    """Whether code that an update decides does nothing but arithmetic and the update itself.

    Code that repeats the update may load from its target and have other updates of it; if
    it is a compare-and-exchange, on which no address depends, also from other memory.
    """

    def __init__(
        self, code: _Code, update: Node, followed: Followed, decided: Sequence[Node]
    ) -> None:
        self._code, self._followed, self._update = code, followed, update
        self._own = {id(one) for one in walk(update)}
        self._repeated = {
            id(one)
            for nodes in (list(code.reached(piece)) for piece in decided)
            if self._has_update(nodes)
            for one in nodes
        }

    def is_harmless(self, piece: Node) -> bool:
        """Whether some code repeats or skips only the update; arithmetic may belong to it."""
        nodes = list(self._code.reached(piece))
        can_load = is_exchange(self._update) and self._has_update(nodes)
        return not any(self._is_work(one, can_load=can_load) for one in nodes)

    def _has_update(self, nodes: Iterable[Node]) -> bool:
        return any(one is self._update for one in nodes)

    def _is_work(self, node: Node, *, can_load: bool) -> bool:
        """Whether a node does work that does not belong to the update."""
        is_repeated = id(node) in self._repeated
        if node.kind is NodeKind.CALL:
            return self._is_call_work(node, is_repeated)
        if node.kind in LOOP_KINDS:
            return not is_repeated or not any(
                one is self._update or (_is_access(one) and self._followed.is_target(one))
                for one in self._code.reached(node)
            )
        written = _written(node)
        if written is not None and _is_access(written):
            return True
        if not _is_access(node) or id(node) in self._own or can_load:
            return False
        return not (is_repeated and self._followed.is_target(node))

    def _is_call_work(self, node: Node, is_repeated: bool) -> bool:
        if id(node) in self._own or self._code.callee(node) is not None:
            return False
        name = node.name
        if name.startswith(ATOMIC_PREFIXES) and name not in FENCES:
            is_same = name in _EXCHANGES | _BOUNDS or _is_read(node)
            return not (is_repeated and is_same and self._followed.is_target(node.children[0]))
        if name in BARRIER_CALLS or name == "printf":
            return True
        if name.startswith((*GROUP_PREFIXES, COPY_PREFIX)):
            return True
        return any(
            one.type.shape in _OPAQUE
            or (one.type.pointee is not None and one.type.pointee.space is not Space.PRIVATE)
            for one in node.children
        )


def _is_read(node: Node) -> bool:
    """Whether an atomic operation adds 0 or sets no bits."""
    return node.name in _READS and len(node.children) > 1 and node.children[1].value == 0


def _written(node: Node) -> Node | None:
    """Return the place that a node writes, if any."""
    if node.kind is NodeKind.VARIABLE:
        return node
    is_step = node.kind is NodeKind.UNARY and node.name in STEPS
    return node.children[0] if node.children and (node.kind in ASSIGNMENTS or is_step) else None


def _is_access(place: Node) -> bool:
    """Whether an expression is an element or a variable outside private memory."""
    if place.type.shape is TypeClass.ARRAY or place.kind is NodeKind.VARIABLE:
        return False
    if place.kind is NodeKind.REFERENCE:
        return place.type.space is Space.LOCAL
    if place.kind not in {NodeKind.SUBSCRIPT, NodeKind.MEMBER} and not is_dereference(place):
        return False
    if place.type.space in _OUTER:
        return True
    return place.type.space is Space.GENERIC and not _is_of_variable(place)


def _is_of_variable(place: Node) -> bool:
    """Whether a place is a part of a variable in private memory, or its reinterpreted bytes."""
    while place.kind in {NodeKind.SUBSCRIPT, NodeKind.MEMBER, NodeKind.CAST, NodeKind.UNARY}:
        place = place.children[0]
    return (
        place.kind is NodeKind.REFERENCE
        and place.type.shape is not TypeClass.POINTER
        and place.type.space is Space.PRIVATE
    )
