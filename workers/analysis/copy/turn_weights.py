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
"""Number of calls within calls that are followed."""
_FREE = CHEAP_CALLS | FREE_CALLS
_LOOPS = frozenset({WHILE, DO, FOR})


class TurnWeights:
    """The weights of the loops of one file; the cost of each helper is computed once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}
        """Cost of a function, by its hash and the number of calls around it."""

    def weight(self, body: Any) -> int:
        """Return as how many iterations one iteration of a loop counts, at least 1.

        Inner loops are left out, because they count their own iterations.

        Args:
            body: the statement that the loop repeats.
        """
        return max(1, min(_LARGEST, self._cost(body, 0) // _UNIT))

    def _cost(self, body: Any, depth: int) -> int:
        cost = 0
        stack = [body]
        while stack:
            one = stack.pop()
            if one._kind_id == CALL:
                cost += self._cost_of_call(one, depth)
            elif one._kind_id in {SUBSCRIPT, MEMBER} or is_dereference(one):
                cost += _OF_ACCESS
            stack += [child for child in children_of(one) if child._kind_id not in _LOOPS]
        return cost

    def _cost_of_call(self, call: Any, depth: int) -> int:
        if call.spelling in _FREE or call.spelling.startswith("convert_"):
            return 0
        callee = call.referenced
        definition = callee.get_definition() if callee is not None else None
        if definition is None:
            return _OF_CALL
        if depth == _DEEPEST:
            return 0
        key = (definition.hash, depth)
        if key not in self._known:
            self._known[key] = self._cost(definition, depth + 1)
        return self._known[key]
