"""Abstract values: how an index or a loop bound changes between neighbouring work-items.

Owns the abstract value (difference between neighbours in dimension 0, sources, constant) and its
algebra. ``clang/activation.py`` evaluates a function's expressions to such values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntFlag

from workers.source.clang.nodes import Space


class Source(IntFlag):
    """What a value is computed from: arguments, ids and sizes of the NDRange, memory contents."""

    NOTHING = 0
    SCALAR = 1
    NDRANGE = 2
    DATA = 4


@dataclass(frozen=True, slots=True)
class Value:
    """One abstract value.

    ``stride``: difference between neighbouring work-items in dimension 0, in bytes for a pointer;
    None if it is not a known constant. ``is_linear``: whether the difference is constant, even
    if it is unknown (``id * n``). ``constant``: the value itself, if known. ``space``: the address
    space to which a pointer points.
    """

    stride: int | None = 0
    is_linear: bool = True
    sources: Source = Source.NOTHING
    constant: int | None = None
    space: Space | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether neighbouring work-items have the same value."""
        return self.stride == 0


UNKNOWN = Value(stride=None, is_linear=False)
UNIFORM = Value()
_WARP_LANES = 32


def added(first: Value, second: Value) -> Value:
    """Return the sum of two values."""
    constant = None
    if first.constant is not None and second.constant is not None:
        constant = first.constant + second.constant
    known = first.stride is not None and second.stride is not None
    return Value(
        stride=(first.stride or 0) + (second.stride or 0) if known else None,
        is_linear=first.is_linear and second.is_linear,
        sources=first.sources | second.sources,
        constant=constant,
        space=first.space or second.space,
    )


def scaled(value: Value, factor: int) -> Value:
    """Return ``value`` times a constant."""
    return replace(
        value,
        stride=None if value.stride is None else value.stride * factor,
        constant=None if value.constant is None else value.constant * factor,
    )


def multiplied(first: Value, second: Value) -> Value:
    """Return the product of two values."""
    sources = first.sources | second.sources
    if first.constant is not None:
        return replace(scaled(second, first.constant), sources=sources)
    if second.constant is not None:
        return replace(scaled(first, second.constant), sources=sources)
    if first.is_uniform and second.is_uniform:
        return Value(sources=sources)
    one_uniform = first.is_uniform or second.is_uniform
    return Value(
        stride=None,
        is_linear=one_uniform and first.is_linear and second.is_linear,
        sources=sources,
    )


def join(first: Value, second: Value) -> Value:
    """Return the facts that hold for both values."""
    same = first.stride is not None and first.stride == second.stride
    return Value(
        stride=first.stride if same else None,
        is_linear=same or (first.is_linear and second.is_linear and _both_unknown(first, second)),
        sources=first.sources | second.sources,
        constant=first.constant if first.constant == second.constant else None,
        space=first.space if first.space == second.space else (first.space or second.space),
    )


def join_all(values: list[Value]) -> Value:
    """Return the join of any number of values; a uniform value if there are none."""
    if not values:
        return UNIFORM
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result


def _both_unknown(first: Value, second: Value) -> bool:
    return first.stride is None and second.stride is None


def all_sources(values: Iterable[Value]) -> Source:
    """Return the union of the sources of ``values``."""
    sources = Source.NOTHING
    for value in values:
        sources |= value.sources
    return sources


def irregular(value: Value) -> Value:
    """Return a value of which nothing is known except its sources, those of ``value``."""
    return replace(UNKNOWN, sources=value.sources)


def other_operator(name: str, first: Value, second: Value) -> Value:
    """Return the value of an operator that is not linear, applied to two values."""
    sources = first.sources | second.sources
    if first.is_uniform and second.is_uniform:
        return Value(sources=sources, constant=_folded(name, first.constant, second.constant))
    # Rows of a flattened 2-D index (i / w, i % w): if w is at least a warp, or unknown, most
    # neighbours have the same quotient, and remainders that differ by one.
    wide = second.is_uniform and (second.constant is None or second.constant >= _WARP_LANES)
    shifted = second.constant is not None and second.constant >= _WARP_LANES.bit_length() - 1
    masked = second.constant is not None and second.constant >= _WARP_LANES - 1
    if (name == "/" and wide) or (name == ">>" and shifted):
        return Value(sources=sources)
    if (name == "%" and wide) or (name == "&" and masked):
        return replace(first, sources=sources, constant=None)
    return replace(UNKNOWN, sources=sources)


def _folded(name: str, first: int | None, second: int | None) -> int | None:
    if first is None or second is None:
        return None
    if name in {"/", "%"}:
        if second == 0:
            return None
        quotient = abs(first) // abs(second) * (1 if (first < 0) == (second < 0) else -1)
        return quotient if name == "/" else first - quotient * second
    if name == ">>":
        return first >> second if 0 <= second < 64 else None
    table = {"&": first & second, "|": first | second, "^": first ^ second}
    return table.get(name)
