"""Count what a kernel does, from its source: operations, memory accesses, loops, shape.

Owns the counting. ``llmperf_common/features/static_feature_names.py`` has the features' names and
meanings. Needs no device, so predictions can use the features. If the parser drops statements
because of errors, only the remaining statements are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmperf_common.families.tokens import tokenize
from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.records import Argument, ArgumentKind
from workers.source.clang.nodes import (
    Function,
    NodeKind,
    ParsedSource,
    Space,
    TypeClass,
    TypeFacts,
    walk,
)
from workers.source.clang.values import Source, Value
from workers.source.operation_counts import Counts, OperationCounter

_WEIGHTED: dict[str, tuple[str, ...]] = {
    "float_ops": ("float_ops", "double_ops", "half_ops"),
    "double_ops": ("double_ops",),
    "int_ops": ("int_ops",),
    "math_calls": (
        "sqrt_calls", "exp_log_calls", "trig_calls", "pow_calls", "native_calls",
        "other_math_calls",
    ),
    "global_accesses": ("global_loads", "global_stores"),
    "global_bytes": ("global_load_bytes", "global_store_bytes"),
    "local_accesses": ("local_loads", "local_stores"),
    "atomics": ("global_atomics", "local_atomics"),
    "barriers": ("barriers",),
}  # fmt: skip
_ARGUMENT_COUNTS = {
    "num_global_buffers": ArgumentKind.GLOBAL_BUFFER,
    "num_constant_buffers": ArgumentKind.CONSTANT_BUFFER,
    "num_local_buffers": ArgumentKind.LOCAL_BUFFER,
    "num_scalars": ArgumentKind.SCALAR,
}
MAX_COUNT = 1e15
"""Largest count, for nested loops with huge constant bounds. The sum of a few such counts stays
below 2**53, so a float holds it exactly."""


def static_features(
    source: ParsedSource,
    text: bytes,
    kernel: Function,
    functions: Sequence[Function],
    arguments: Sequence[Argument],
    dims: int,
) -> dict[str, float]:
    """Return every feature of ``STATIC_FEATURES`` for one kernel.

    Args:
        source: the parsed file.
        text: the file's bytes; its tokens are counted.
        kernel: the kernel's function.
        functions: the kernel and every function that it reaches.
        arguments: the kernel's declared arguments.
        dims: number of NDRange dimensions that the kernel uses.
    """
    bound = tuple(_parameter_value(one.type) for one in kernel.parameters)
    counts = OperationCounter(source).count(kernel, bound)
    found: dict[str, float] = dict.fromkeys(STATIC_FEATURES, 0.0)
    for name in found:
        found[name] = float(counts.plain[name])
    _add_weighted(found, counts)
    _add_arguments(found, arguments)
    _add_shape(found, functions, arguments, text)
    found["max_loop_depth"] = float(counts.depth)
    found["max_constant_trips"] = counts.trips
    found["dims"] = float(dims)
    found["uses_local"] = float(
        any(found[name] > 0 for name in ("num_local_buffers", "static_local_bytes", "local_loads"))
    )
    return {name: min(value, MAX_COUNT) for name, value in found.items()}


def _parameter_value(kind: TypeFacts) -> Value:
    if kind.shape is TypeClass.POINTER:
        return Value(space=kind.pointee.space if kind.pointee is not None else None)
    return Value(sources=Source.SCALAR)


def _add_weighted(found: dict[str, float], counts: Counts) -> None:
    for group, names in _WEIGHTED.items():
        found[f"weighted_{group}"] = float(sum(counts.weighted[name] for name in names))
        if f"open_{group}" in found:
            found[f"open_{group}"] = float(sum(counts.open[name] for name in names))


def _add_arguments(found: dict[str, float], arguments: Sequence[Argument]) -> None:
    for name, kind in _ARGUMENT_COUNTS.items():
        found[name] = float(sum(one.kind is kind for one in arguments))
    sizes = [one.element_bytes for one in arguments if one.kind.is_buffer]
    found["max_element_bytes"] = float(max(sizes, default=0))


def _add_shape(
    found: dict[str, float],
    functions: Sequence[Function],
    arguments: Sequence[Argument],
    text: bytes,
) -> None:
    scalars = {one.scalar_type for one in arguments}
    lanes = [one.vector_width for one in arguments if one.kind is ArgumentKind.SCALAR]
    tokens = 0
    for function in functions:
        piece = text[function.start : function.end].decode("utf-8", "replace")
        tokens += len(tokenize(piece))
        for node in walk(function.body):
            scalars.add(node.type.scalar)
            if node.type.shape is TypeClass.VECTOR:
                lanes.append(node.type.num_scalars)
            if node.kind is NodeKind.VARIABLE:
                _add_variable(found, node.type)
    found["max_vector_width"] = float(max([1, *lanes]))
    found["source_tokens"] = float(tokens)
    found["uses_fp64"] = float("double" in scalars)
    found["uses_half"] = float("half" in scalars)


def _add_variable(found: dict[str, float], kind: TypeFacts) -> None:
    if kind.space is Space.LOCAL:
        found["static_local_bytes"] += kind.size_bytes
    elif kind.shape is TypeClass.ARRAY:
        found["private_array_bytes"] += kind.size_bytes


def empty_features() -> Mapping[str, float]:
    """Return all features as 0, for a kernel in which nothing could be counted."""
    return dict.fromkeys(STATIC_FEATURES, 0.0)
