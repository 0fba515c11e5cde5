"""Read from a kernel's text the facts that its probes need.

Owns three kinds of facts: the sizes that can matter; the constants that code compares with sizes,
or divides or folds sizes by (probes must lie on both sides of each constant); and the buffers whose
neighbouring elements are read together. ``bit_counts.py`` finds the counts of bits, also those of
helpers. Pure; walks the tree of ``clang/nodes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from llmperf_common.records import ArgumentKind, Signature
from workers.analysis.bit_counts import BitCounts
from workers.source.clang.activation import Activation
from workers.source.clang.influence import influence_of
from workers.source.clang.nodes import (
    Function,
    Node,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    reachable,
    walk,
)
from workers.source.clang.values import UNIFORM, Source

_GROUP_CALLS = frozenset(
    {
        "barrier",
        "get_local_id",
        "get_local_size",
        "get_group_id",
        "get_num_groups",
        "get_enqueued_local_size",
        "get_enqueued_num_sub_groups",
        "get_local_linear_id",
        "get_max_sub_group_size",
        "get_num_sub_groups",
        "prefetch",
        "wait_group_events",
    }
)
_GROUP_PREFIXES = ("async_work_group_", "get_sub_group_", "sub_group_", "work_group_")
_COMPARISONS = frozenset({"<", ">", "<=", ">=", "==", "!="})
_FOLDING = frozenset({"%", "&", "|", "^", "/", ">>"})
_SHIFTS = frozenset({"<<", ">>"})
_FOLDING_CALLS = frozenset({"mul_hi", "mad_hi", "rotate", "clz", "ctz", "popcount"})
_FOLDED_BY_CALLS = 2**32
_COUNTED_UP_TO = 2**30
"""Sizes up to this number are needed so that a count of a size's bits can have any value."""
_MOST_SHIFTED = 24
_WIDEST_SHIFT = 64
_OPERATIONS = frozenset({NodeKind.BINARY, NodeKind.COMPOUND_ASSIGN})
_CLAMPING = frozenset({"min", "max", "clamp"})
_SMALLEST_THRESHOLD = 5
"""Smaller constants are no thresholds, because no probe has a size below this number."""
_SIZES = Source.SCALAR | Source.NDRANGE
_MOST_ASSIGNMENTS = 5
"""Maximum number of assignments through which a variable is followed back to a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """The facts on which the probes of one kernel depend.

    ``uses_groups``: the local size can matter, because the kernel asks for local ids, local sizes
    or groups, or has local memory. ``scalars``: positions of the integer scalars that the code
    mentions, vectors of integers included (all their lanes get one value). ``thresholds``:
    constants that code compares with expressions of sizes. ``folds``: constants that such
    expressions are divided by, taken modulo or masked with. ``tested``: all constants that the
    kernel or a helper compares with anything, because a scalar may take such a value. ``literals``:
    numbers that are passed to helpers or stored in the file's constants. ``flags``: by position of
    a scalar, the small values that it is compared with; 0 if it is itself a condition.
    ``neighbour_pairs``: positions of buffers that are read at some ``e`` and at ``e + 1``.
    ``appended``: positions of buffers whose index depends on the result of an atomic operation in
    global memory.
    """

    uses_groups: bool
    scalars: tuple[int, ...]
    thresholds: tuple[int, ...]
    folds: tuple[int, ...]
    tested: tuple[int, ...]
    literals: tuple[int, ...]
    flags: Mapping[int, tuple[int, ...]]
    neighbour_pairs: tuple[int, ...]
    appended: frozenset[int]


def kernel_facts(source: ParsedSource, kernel: Function, signature: Signature) -> KernelFacts:
    """Return the facts of ``kernel`` from a parsed (and preprocessed) file."""
    functions = reachable(source, kernel)
    counts = BitCounts(source, functions)
    calls = {
        node.name for one in functions for node in walk(one.body) if node.kind is NodeKind.CALL
    }
    mentioned = {node.key for node in walk(kernel.body) if node.kind is NodeKind.REFERENCE}
    integers = tuple(
        argument.position
        for argument, parameter in zip(signature.arguments, kernel.parameters, strict=True)
        if argument.kind is ArgumentKind.SCALAR
        and parameter.key in mentioned
        and argument.scalar_type not in {"half", "float", "double", "bool"}
    )
    pairs = {position for one in functions for position in _neighbour_pairs(kernel, one)}
    return KernelFacts(
        uses_groups=bool(calls & _GROUP_CALLS)
        or any(name.startswith(_GROUP_PREFIXES) for name in calls)
        or _has_local_memory(functions, signature),
        scalars=integers,
        thresholds=_constants(source, functions, counts, _compared),
        folds=_constants(source, functions, counts, _folded),
        tested=_tested_constants(source, functions),
        literals=_literals(source, functions),
        flags=_flags(kernel, integers),
        neighbour_pairs=tuple(sorted(pairs)),
        appended=influence_of(source, kernel).appended,
    )


def _has_local_memory(functions: Iterable[Function], signature: Signature) -> bool:
    """Whether work-items of a group share local memory, so that the local size can matter."""
    if any(one.kind is ArgumentKind.LOCAL_BUFFER for one in signature.arguments):
        return True
    return any(
        node.kind is NodeKind.VARIABLE and node.type.space is Space.LOCAL
        for one in functions
        for node in walk(one.body)
    )


def _tested_constants(source: ParsedSource, functions: Iterable[Function]) -> tuple[int, ...]:
    """Return the constants that code compares with anything: in comparisons and switch cases."""
    found: set[int] = set()
    for function in functions:
        values = Activation(source, function, (UNIFORM,) * len(function.parameters))
        for node in walk(function.body):
            operands = _compared(node)
            if node.kind is NodeKind.CASE:
                operands = node.children[:1]
            found |= {one for operand in operands for one in _constants_in(operand, values)}
    return tuple(sorted(one for one in found if one > 0))


def _literals(source: ParsedSource, functions: Iterable[Function]) -> tuple[int, ...]:
    """Return the numbers that may reach a comparison through helpers or the file's constants."""
    nodes = list(source.globals.values())
    for function in functions:
        for node in walk(function.body):
            if node.kind is NodeKind.CALL and node.key in source.functions:
                nodes += node.children
    found = {abs(one.value) for node in nodes for one in walk(node) if one.value is not None}
    return tuple(sorted(found))


def _constants(
    source: ParsedSource,
    functions: Iterable[Function],
    counts: BitCounts,
    operands_of: Callable[[Node], tuple[Node, ...]],
) -> tuple[int, ...]:
    found: set[int] = set()
    for function in functions:
        # A helper's parameters are unknown here, so they may be sizes.
        values = Activation(source, function, (UNIFORM,) * len(function.parameters))
        flow = _SizeFlow(values, frozenset(one.key for one in function.parameters))
        for node in walk(function.body):
            operands = operands_of(node)
            if not operands:
                continue
            others = [one for one in operands if values.value(one).constant is None]
            # What a helper stores is not followed, so a helper may have counted the bits of a size.
            if any(flow.reaches(one) or counts.is_given(one) for one in others):
                found |= {one for operand in operands for one in _constants_in(operand, values)}
                found |= _scales_of(node, values)
                if counts.any() and any(counts.decide(one, values) for one in _compared(node)):
                    found.add(_COUNTED_UP_TO)
    return tuple(sorted(one for one in found if one >= _SMALLEST_THRESHOLD))


def _constants_in(operand: Node, values: Activation) -> Iterator[int]:
    """Yield an expression's constants: its own value, or the scales and shifts of its sizes."""
    for node in walk(operand):
        constant = values.value(node).constant
        if constant is not None:
            yield abs(constant)
        elif node.kind is NodeKind.BINARY and node.name in _SHIFTS:
            by = values.value(node.children[1]).constant
            if by is not None and 0 <= by < _MOST_SHIFTED:
                yield 1 << by


def _scales_of(node: Node, values: Activation) -> set[int]:
    """Return how large a size must be so that a shift or a chain of divisions gives more than 0.

    ``size >> by`` needs 2**by; ``size / 512 / 512`` needs the product. Calls that keep the high
    bits need 2**32.
    """
    if node.kind is NodeKind.CALL and node.name in _FOLDING_CALLS:
        return {_FOLDED_BY_CALLS}
    scale = 1
    inner: Node | None = node
    while inner is not None and inner.kind in _OPERATIONS and len(inner.children) == 2:
        by = values.value(inner.children[1]).constant
        operator = inner.name.removesuffix("=")
        if operator in _SHIFTS and by is not None and 0 <= by < _WIDEST_SHIFT:
            scale <<= by
        elif operator == "/" and by:
            scale *= abs(by)
        else:
            break
        inner = inner.children[0] if inner.kind is NodeKind.BINARY else None
    return {scale} if scale > 1 else set()


def _flags(kernel: Function, scalars: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    """Return the small constants with which the code compares each scalar, by its position."""
    keys = {kernel.parameters[position].key: position for position in scalars}
    found: dict[int, set[int]] = {}
    for node in walk(kernel.body):
        for key, value in _tests(node):
            if key in keys and 0 <= value < _SMALLEST_THRESHOLD:
                found.setdefault(keys[key], set()).add(value)
    return {position: tuple(sorted(values)) for position, values in sorted(found.items())}


def _tests(node: Node) -> Iterator[tuple[str, int]]:
    """Yield the variables that a node tests, each with a value that the variable is tested for."""
    children = node.children
    if node.kind in {NodeKind.IF, NodeKind.CONDITIONAL} or node.name in {"!", "&&", "||"}:
        for child in children:
            if child.kind is NodeKind.REFERENCE:
                yield child.key, 0
    if node.kind is NodeKind.BINARY and node.name in _COMPARISONS:
        for one, other in (children, children[::-1]):
            if one.kind is NodeKind.REFERENCE and other.kind is NodeKind.INT_LITERAL:
                value = other.value or 0
                # Try the value and the next one, which lie on both sides of a bound.
                yield from ((one.key, value + step) for step in (0, 1))
    if node.kind is NodeKind.SWITCH and children and children[0].kind is NodeKind.REFERENCE:
        cases = [one for one in walk(node) if one.kind is NodeKind.CASE and one.children]
        for case in cases:
            if case.children[0].kind is NodeKind.INT_LITERAL:
                yield children[0].key, case.children[0].value or 0


def _compared(node: Node) -> tuple[Node, ...]:
    if node.kind is NodeKind.BINARY and node.name in _COMPARISONS:
        return node.children
    if node.kind is NodeKind.CALL and node.name in _CLAMPING:
        return node.children
    return ()


def _folded(node: Node) -> tuple[Node, ...]:
    if node.kind is NodeKind.CALL and node.name in _FOLDING_CALLS:
        return node.children
    is_operation = node.kind in _OPERATIONS
    return node.children if is_operation and node.name.removesuffix("=") in _FOLDING else ()


class _SizeFlow:
    """Tells which expressions of a function depend on sizes or on its parameters.

    Args:
        values: the function, with unknown parameters.
        parameters: the keys of the function's parameters.
    """

    def __init__(self, values: Activation, parameters: frozenset[str]) -> None:
        self._values, self._parameters = values, parameters
        self._assigned: dict[str, tuple[bool, frozenset[str]]] = {}

    def reaches(self, node: Node) -> bool:
        """Whether an expression depends on a size or a parameter, through a few assignments."""
        if self._values.value(node).sources & _SIZES:
            return True
        keys = _referenced(node)
        if not keys.isdisjoint(self._parameters):
            return True
        seen: set[str] = set()
        for _ in range(_MOST_ASSIGNMENTS):
            seen |= keys
            assigned = [self._assigned_to(key) for key in keys]
            if any(is_size for is_size, _ in assigned):
                return True
            keys = frozenset().union(*(inner for _, inner in assigned)) - seen
        return False

    def _assigned_to(self, key: str) -> tuple[bool, frozenset[str]]:
        """Return whether a size is assigned to a variable, and all variables assigned to it."""
        known = self._assigned.get(key)
        if known is None:
            assigned = [one.value for one in self._values.modifications(key)]
            nodes = [one for one in assigned if isinstance(one, Node)]
            inner = frozenset().union(*map(_referenced, nodes))
            is_size = any(self._values.value(one).sources & _SIZES for one in nodes)
            known = is_size or not inner.isdisjoint(self._parameters), inner
            self._assigned[key] = known
        return known


def _referenced(node: Node) -> frozenset[str]:
    return frozenset(one.key for one in walk(node) if one.kind is NodeKind.REFERENCE)


def _neighbour_pairs(kernel: Function, function: Function) -> set[int]:
    """Return the positions of buffers that ``function`` accesses at two neighbouring elements.

    Buffers are matched by name.
    """
    names = {one.name: position for position, one in enumerate(kernel.parameters)}
    indices: dict[int, list[Node]] = {}
    for node in walk(function.body):
        if node.kind is not NodeKind.SUBSCRIPT or len(node.children) != 2:
            continue
        base, index = node.children
        position = names.get(base.name) if base.kind is NodeKind.REFERENCE else None
        if position is not None and node.type.shape is not TypeClass.ARRAY:
            indices.setdefault(position, []).append(index)
    return {
        position
        for position, found in indices.items()
        if any(_is_next(one, other) for one in found for other in found)
    }


def _is_next(index: Node, other: Node) -> bool:
    """Whether ``index`` is written as ``other + 1``, or ``other`` as ``index - 1``."""
    return _stripped(index, "+") == other or _stripped(other, "-") == index


def _stripped(node: Node, sign: str) -> Node | None:
    if node.kind is not NodeKind.BINARY or node.name != sign:
        return None
    first, second = node.children
    if second.kind is NodeKind.INT_LITERAL and second.value == 1:
        return first
    if sign == "+" and first.kind is NodeKind.INT_LITERAL and first.value == 1:
        return second
    return None
