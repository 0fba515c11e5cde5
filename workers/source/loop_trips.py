"""Find how often a loop runs: a constant, or what its bound depends on.

Owns the reading of loop headers. A loop that may break early counts with its full trip count.
"""

from __future__ import annotations

from dataclasses import dataclass

from workers.source.clang.activation import Activation, Definition, definition_of, definitions
from workers.source.clang.nodes import Node, NodeKind, walk
from workers.source.clang.values import Source, Value

MAX_TRIPS = 1 << 40
"""Largest accepted trip count. Headers like ``while (i != -1)`` give more; such loops count as
loops whose trip count is unknown."""
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """Number of trips, None if not constant; ``feature``: the static feature of such loops."""

    constant: int | None
    feature: str


def loop_trips(loop: Node, activation: Activation) -> Trips:
    """Return the trips of one FOR, WHILE or DO node."""
    condition, step, body = _parts(loop)
    found = _bound(condition)
    if found is None:
        return _open(_sources(condition, activation))
    variable, operator, bound_node = found
    bound = activation.value(bound_node)
    header_steps = _assignments(step, variable)
    body_steps = _assignments(body, variable)
    sources = bound.sources
    for one in (*header_steps, *body_steps):
        if isinstance(one.value, Node):
            sources |= activation.value(one.value).sources
    start = _start(loop, variable, activation)
    sources |= start.sources
    steps = [*header_steps, *body_steps]
    if len(steps) == 1 and start.constant is not None and bound.constant is not None:
        only = steps[0]
        amount = Value(constant=only.value) if isinstance(only.value, int) else None
        if amount is None:
            assert isinstance(only.value, Node)
            amount = activation.value(only.value)
        if amount.constant is not None:
            trips = count_trips(
                start.constant, operator, bound.constant, only.operator, amount.constant
            )
            if trips is not None:
                at_least = 1 if loop.kind is NodeKind.DO else 0
                return Trips(constant=max(trips, at_least), feature="loops_constant_trips")
    if not steps:
        sources |= _sources(condition, activation)
    return _open(sources)


def count_trips(start: int, operator: str, bound: int, step: str, amount: int) -> int | None:
    """Count the trips of ``for (i = start; i operator bound; i step= amount)``; None if unknown.

    >>> count_trips(0, "<", 10, "+", 3)
    4
    >>> count_trips(1, "<=", 64, "*", 2)
    7
    >>> count_trips(0, "<", 10, "-", 1) is None
    True
    """
    if step == "-":
        step, amount = "+", -amount
    if step == "+":
        return _linear_trips(start, operator, bound, amount)
    if step in {"*", "<<", "/", ">>"}:
        return _geometric_trips(start, operator, bound, step, amount)
    return None


def _linear_trips(start: int, operator: str, bound: int, amount: int) -> int | None:
    distance = bound - start
    if operator == "!=":
        exact = amount != 0 and distance % amount == 0 and distance // amount >= 0
        return distance // amount if exact else None
    if operator in {">", ">="}:
        distance, amount = -distance, -amount
    distance += operator in {"<=", ">="}
    if distance <= 0 or amount <= 0:
        return 0 if distance <= 0 else None
    trips = -(-distance // amount)
    return trips if trips <= MAX_TRIPS else None


def _geometric_trips(start: int, operator: str, bound: int, step: str, amount: int) -> int | None:
    if amount < 1 or start < 0:
        return None
    value, trips = start, 0
    while _holds(value, operator, bound):
        if trips > 64:
            return None
        trips += 1
        if step in {"*", "<<"}:
            value *= amount if step == "*" else 1 << min(amount, 64)
        else:
            value //= amount if step == "/" else 1 << min(amount, 64)
    return trips


def _holds(value: int, operator: str, bound: int) -> bool:
    if operator == "!=":
        return value != bound
    below = value < bound if operator in {"<", ">="} else value <= bound
    return below if operator in {"<", "<="} else not below


def _parts(loop: Node) -> tuple[Node, Node | None, Node]:
    children = loop.children
    if loop.kind is NodeKind.FOR:
        return children[1], children[2], children[3]
    if loop.kind is NodeKind.DO:
        return children[-1], None, children[0]
    return children[0], None, children[-1]


def _bound(condition: Node) -> tuple[str, str, Node] | None:  # noqa: PLR0911  (one a shape)
    """Return (variable, operator, bound) of ``i < n`` or ``n > i``, alone or within ``&&``."""
    if condition.kind is NodeKind.UNARY and condition.name in {"post--", "--"}:
        return None
    if condition.kind is not NodeKind.BINARY or len(condition.children) != 2:
        return None
    left, right = condition.children
    if condition.name == "&&":
        return _bound(left) or _bound(right)
    if condition.name not in _FLIPPED:
        return None
    left, right = _uncast(left), _uncast(right)
    if left.kind is NodeKind.REFERENCE and left.value is None:
        return left.key, condition.name, right
    if right.kind is NodeKind.REFERENCE and right.value is None:
        return right.key, _FLIPPED[condition.name], left
    return None


def _uncast(node: Node) -> Node:
    while node.kind is NodeKind.CAST and len(node.children) == 1:
        node = node.children[0]
    return node


def _assignments(part: Node | None, variable: str) -> list[Definition]:
    return definitions(part).get(variable, []) if part is not None else []


def _start(loop: Node, variable: str, activation: Activation) -> Value:
    if loop.kind is NodeKind.FOR:
        for node in walk(loop.children[0]):
            found = definition_of(node)
            if found is not None and found[0] == variable and found[1].operator == "=":
                value = found[1].value
                return Value(constant=value) if isinstance(value, int) else activation.value(value)
    starts = [one for one in activation.modifications(variable) if one.operator == "="]
    if len(starts) == 1 and isinstance(starts[0].value, Node):
        return activation.value(starts[0].value)
    sources = Source.NOTHING
    for one in starts:
        if isinstance(one.value, Node):
            sources |= activation.value(one.value).sources
    return Value(sources=sources)


def _sources(node: Node, activation: Activation) -> Source:
    return activation.value(node).sources


def _open(sources: Source) -> Trips:
    if sources & Source.DATA or not sources:
        return Trips(constant=None, feature="loops_data_dependent")
    if sources & Source.SCALAR:
        return Trips(constant=None, feature="loops_bounded_by_scalar")
    return Trips(constant=None, feature="loops_bounded_by_ndrange")
