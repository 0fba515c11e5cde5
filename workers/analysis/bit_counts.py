"""Find in a kernel which expressions count the bits of something.

Follows counts through helper functions in both directions: a helper that counts bits may return the
count or store it through a pointer, and a helper may get a count as an argument. ``facts.py``
decides which of these counts depend on sizes. A variable is followed through one assignment only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from workers.source.clang.activation import Activation
from workers.source.clang.nodes import Function, Node, NodeKind, ParsedSource, TypeClass, walk

_COUNTING = re.compile(
    r"clz|ctz|popcount|__builtin_(?:clrsb|clz|ctz|ffs|parity|popcount)(?:g|l|ll|s)?"
)
_POINTING = frozenset({TypeClass.ARRAY, TypeClass.POINTER})


class BitCounts:
    """Finds the counts of bits in the functions that a kernel reaches.

    Args:
        source: the parsed file.
        functions: the kernel and all functions that it reaches.
    """

    def __init__(self, source: ParsedSource, functions: Iterable[Function]) -> None:
        self._functions = source.functions
        functions = tuple(functions)
        calls = {
            one.key: [node for node in walk(one.body) if node.kind is NodeKind.CALL]
            for one in functions
        }
        self._counting: set[str] = set()
        """Keys of functions that count bits, directly or not."""
        self._given: set[str] = set()
        """Keys of variables that may hold a count: parameters, and variables that a helper sets."""
        if not any(_is_builtin(node) for nodes in calls.values() for node in nodes):
            return
        while (
            new := {key for key, nodes in calls.items() if any(map(self.is_count, nodes))}
            - self._counting
        ):
            self._counting |= new
        values = {one.key: Activation(source, one, ()) for one in functions}
        while (
            new := {
                key
                for caller, nodes in calls.items()
                for node in nodes
                for key in self._receivers(node, values[caller])
            }
            - self._given
        ):
            self._given |= new

    def any(self) -> bool:
        """Whether any of the functions counts bits."""
        return bool(self._counting)

    def is_count(self, node: Node) -> bool:
        """Whether a node is a call that counts bits, or calls a helper that does."""
        return _is_builtin(node) or (node.kind is NodeKind.CALL and node.key in self._counting)

    def decide(self, node: Node, values: Activation) -> bool:
        """Whether an expression, or a variable in it, is computed by counting bits."""
        keys = [one.key for one in walk(node) if one.kind is NodeKind.REFERENCE]
        assigned = [one.value for key in keys for one in values.modifications(key)]
        nodes = [node, *(one for one in assigned if isinstance(one, Node))]
        return any(
            self.is_given(one) or any(self.is_count(inner) for inner in walk(one)) for one in nodes
        )

    def is_given(self, node: Node) -> bool:
        """Whether an expression has a variable that may hold a count because of a helper's call."""
        return bool(self._given) and any(
            one.kind is NodeKind.REFERENCE and one.key in self._given for one in walk(node)
        )

    def _receivers(self, call: Node, values: Activation) -> Iterable[str]:
        """Yield the variables that may hold a count because of a call of a helper."""
        callee = self._functions.get(call.key)
        if callee is None:
            return
        for parameter, argument in zip(callee.parameters, call.children, strict=False):
            if self.decide(argument, values):
                yield parameter.key
            if callee.key in self._counting and parameter.type.shape in _POINTING:
                yield from (one.key for one in walk(argument) if one.kind is NodeKind.REFERENCE)


def _is_builtin(node: Node) -> bool:
    return node.kind is NodeKind.CALL and _COUNTING.fullmatch(node.name) is not None
