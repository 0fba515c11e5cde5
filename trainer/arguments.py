"""The arguments of a launch: those a user gave, checked against the signature, and those left out, filled.

Each error says what, where and what to do; each filled argument is said in a warning.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmperf_common.analysis import launch_sizes
from llmperf_common.launch_columns import is_integer_scalar
from llmperf_common.records import Argument, ArgumentKind, LaunchArgument, Signature
from trainer.errors import BadInput
from trainer.extents import extent_elements

Value = int | float | str

MOST_ELEMENTS = 2**48
"""More than any device holds; far below what a 64-bit column overflows at."""

_INTEGER_RANGES = {
    "bool": (0, 1),
    "char": (-(2**7), 2**7 - 1),
    "uchar": (0, 2**8 - 1),
    "short": (-(2**15), 2**15 - 1),
    "ushort": (0, 2**16 - 1),
    "int": (-(2**31), 2**31 - 1),
    "uint": (0, 2**32 - 1),
    "long": (-(2**63), 2**63 - 1),
    "ulong": (0, 2**64 - 1),
}
"""Smallest and largest value of each OpenCL integer type."""


def read_arguments(signature: Signature, given: Mapping[str, Value]) -> dict[int, int | float]:
    """Return position to checked value of the arguments that were given.

    Raises:
        BadInput: A name the kernel does not have, a value of the wrong type or out of its range, or an
            argument that this release cannot fill (image, sampler, pipe, struct).
    """
    by_name = {argument.name: argument for argument in signature.arguments}
    for argument in signature.arguments:
        if not (argument.kind.is_buffer or argument.kind is ArgumentKind.SCALAR):
            raise BadInput(
                f"argument {argument.name!r} is of type {argument.type_name!r} ({argument.kind.value}): "
                "such kernels are not supported yet"
            )
    values = {}
    for name, value in given.items():
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadInput(
                f"--arg {name}: the kernel's arguments are {', '.join(by_name) or 'none'}{hint}"
            )
        values[by_name[name].position] = _checked(by_name[name], value)
    return values


def _checked(argument: Argument, value: Value) -> int | float:
    where = f"--arg {argument.name}={value}"
    if argument.kind.is_buffer:
        elements = _integer(value, f"{where}: a buffer's value is its number of elements")
        if elements < 1:
            raise BadInput(f"{where}: a buffer has at least 1 element")
        if elements > MOST_ELEMENTS:
            raise BadInput(f"{where}: a buffer has at most {MOST_ELEMENTS} elements")
        return elements
    kind = argument.scalar_type
    if not is_integer_scalar(kind):
        try:
            number = float(value)
        except ValueError:
            raise BadInput(f"{where}: {argument.type_name!r} takes a number") from None
        if not math.isfinite(number):
            raise BadInput(f"{where}: {argument.type_name!r} takes a finite number")
        return number
    whole = _integer(value, f"{where}: {argument.type_name!r} takes a whole number")
    low, high = _INTEGER_RANGES.get(kind, _INTEGER_RANGES["long"])
    if not low <= whole <= high:
        raise BadInput(f"{where}: {argument.type_name!r} holds {low} to {high}")
    return whole


def _integer(value: Value, problem: str) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError):
        raise BadInput(problem) from None
    if not isinstance(value, str) and number != value:
        raise BadInput(problem)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Every argument of one launch, and what was said about those that were not given."""

    args: tuple[LaunchArgument, ...]
    warnings: tuple[str, ...]


def fill_arguments(
    signature: Signature,
    given: Mapping[int, int | float],
    analysis: Mapping[int, Mapping[str, Any]],
    global_size: Sequence[int],
    local_size: Sequence[int],
) -> Filled:
    """Complete the arguments of one launch.

    As the simple strategy plans them, so that the question lies where the training data do: a missing
    floating scalar is 1, an integer scalar the global size of dimension 0; a missing buffer has the extent
    its analysis gives for this launch, else g**dims elements, g the longest side of the global size
    (``__local``: one element a work-item of the group).
    """
    elements, warnings = min(max(global_size) ** len(global_size), MOST_ELEMENTS), {}
    values: dict[int, int | float] = dict(given)
    for argument in signature.arguments:
        if argument.kind is ArgumentKind.SCALAR and argument.position not in given:
            whole = is_integer_scalar(argument.scalar_type)
            low, high = _INTEGER_RANGES.get(argument.scalar_type, _INTEGER_RANGES["long"])
            values[argument.position] = min(max(global_size[0], low), high) if whole else 1.0
            rule = "the global size" if whole else "the default of a floating scalar"
            warnings[argument.position] = _filled(argument, values[argument.position], rule)
    scalars = {
        argument.name: values[argument.position]
        for argument in signature.arguments
        if argument.kind is ArgumentKind.SCALAR and is_integer_scalar(argument.scalar_type)
    }
    sizes = launch_sizes(global_size, local_size, scalars)
    for argument in signature.arguments:
        if argument.kind.is_buffer and argument.position not in given:
            extent = extent_elements(analysis.get(argument.position, {}), sizes)
            rule = "the extent its analysis gives"
            if extent is None and argument.kind is ArgumentKind.LOCAL_BUFFER:
                extent, rule = math.prod(local_size), "one element a work-item of the group"
            elif extent is None:
                extent, rule = elements, "the global size"
            values[argument.position] = extent
            warnings[argument.position] = _filled(argument, extent, rule)
    launch = tuple(
        LaunchArgument(
            position=argument.position,
            kind=argument.kind,
            elements=int(values[argument.position]) if argument.kind.is_buffer else None,
            value=None if argument.kind.is_buffer else values[argument.position],
        )
        for argument in signature.arguments
    )
    return Filled(args=launch, warnings=tuple(warnings[at] for at in sorted(warnings)))


def _filled(argument: Argument, value: int | float, rule: str) -> str:
    what = "elements" if argument.kind.is_buffer else "value"
    return f"argument {argument.name!r} not given: {what} {value} taken ({rule})"


def local_memory_bytes(signature: Signature, args: Sequence[LaunchArgument]) -> int:
    """Return the local memory a work-group needs: declared in the kernel and given as arguments."""
    width = {argument.position: argument.element_bytes for argument in signature.arguments}
    return signature.static_local_bytes + sum(
        (item.elements or 0) * width[item.position]
        for item in args
        if item.kind is ArgumentKind.LOCAL_BUFFER
    )
