"""How much an iteration of a loop counts towards the limits on loop iterations.

The limits bound the time of a probe. An iteration of most loops takes less than 0.5 us in an
instrumented copy, but 64 calls of ``tan`` take 5 us.
"""

from __future__ import annotations

from typing import Any

from workers.analysis.copy.cursors import (
    CALL,
    DO,
    FOR,
    MEMBER,
    SUBSCRIPT,
    WHILE,
    children_of,
    is_dereference,
)
from workers.source.builtin_groups import CHEAP_CALLS, FREE_CALLS

_UNIT = 16
"""Cost of an iteration that counts once."""
_OF_CALL, _OF_ACCESS = 4, 1
"""Costs, in units of about 20 ns, of calling a function that computes something, and of an access."""
_LARGEST = 64
_DEEPEST = 4
"""Calls within calls that are followed."""


def turn_weight(body: Any) -> int:
    """Return as how many iterations one iteration of a loop counts, at least 1.

    Inner loops are left out, because they count their own iterations.

    Args:
        body: the statement that the loop repeats.
    """
    return max(1, min(_LARGEST, _cost(body, frozenset()) // _UNIT))


def _cost(body: Any, callers: frozenset[int]) -> int:
    cost = 0
    stack = [body]
    while stack:
        one = stack.pop()
        if one._kind_id == CALL:
            cost += _cost_of_call(one, callers)
        elif one._kind_id in {SUBSCRIPT, MEMBER} or is_dereference(one):
            cost += _OF_ACCESS
        stack += [child for child in children_of(one) if child._kind_id not in {WHILE, DO, FOR}]
    return cost


def _cost_of_call(call: Any, callers: frozenset[int]) -> int:
    if call.spelling in CHEAP_CALLS | FREE_CALLS or call.spelling.startswith("convert_"):
        return 0
    callee = call.referenced
    definition = callee.get_definition() if callee is not None else None
    if definition is None:
        return _OF_CALL
    if definition.hash in callers or len(callers) == _DEEPEST:
        return 0
    return _cost(definition, callers | {definition.hash})
