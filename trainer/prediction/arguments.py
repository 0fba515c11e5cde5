"""The arguments of a launch: those a user gave are checked, the others are filled by a ``Filler``.

Each error says what, where and what to do. What the others get is decided by the planner of
``collect``, which comes in as a ``Filler``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from llmperf_common.launch import integer_range, is_integer_scalar
from llmperf_common.records import Argument, ArgumentKind, LaunchArgument, Signature
from trainer.errors import BadInput

Value = int | float | str

MOST_ELEMENTS = 2**48
"""Elements of an argument: more than any device holds, and far below an overflow of a 64-bit
column."""


def read_arguments(signature: Signature, given: Mapping[str, Value]) -> dict[int, int | float]:
    """Return position to checked value of the arguments that were given.

    Raises:
        BadInput: ``given`` is no mapping, a name the kernel does not have, a value of the wrong type or out of its range, or
            an argument that this release cannot fill (image, sampler, pipe, struct).
    """
    by_name = {argument.name: argument for argument in signature.arguments}
    for argument in signature.arguments:
        if not (argument.kind.is_buffer or argument.kind is ArgumentKind.SCALAR):
            raise BadInput(
                f"argument {argument.name!r} is of type {argument.type_name!r} ({argument.kind.value}): "
                "such kernels are not supported yet"
            )
    if not isinstance(given, Mapping):
        raise BadInput(f"args={given!r}: give a mapping of names to values, as {{'n': 1024}}")
    values = {}
    for name, value in given.items():
        if name not in by_name:
            near = difflib.get_close_matches(str(name), by_name, n=1, cutoff=0.5)
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
        except (ValueError, TypeError):
            raise BadInput(f"{where}: {argument.type_name!r} takes a number") from None
        if not math.isfinite(number):
            raise BadInput(f"{where}: {argument.type_name!r} takes a finite number")
        return number
    whole = _integer(value, f"{where}: {argument.type_name!r} takes a whole number")
    low, high = integer_range(kind)
    if not low <= whole <= high:
        raise BadInput(f"{where}: {argument.type_name!r} holds {low} to {high}")
    return whole


def _integer(value: Value, problem: str) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError, TypeError):
        raise BadInput(problem) from None
    if not isinstance(value, str) and number != value:
        raise BadInput(problem)
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Every argument of one launch, and what is to be said about them.

    Attributes:
        args: in position order.
        warnings: which were not given and what was taken; which buffers the launch overruns.
    """

    args: tuple[LaunchArgument, ...]
    warnings: tuple[str, ...]


class Filler(Protocol):
    """Completes the arguments of launches of one kernel, some of which a user has given.

    The rule is that of ``collect``, which the trainer does not know: its caller passes it in.
    """

    def fill(self, global_size: tuple[int, ...], local_size: tuple[int, ...]) -> Filled:
        """Return every argument of one launch."""
        ...

    def allows(self, local_size: tuple[int, ...]) -> bool:
        """Whether the kernel's own arrays are large enough for a local size, as far as is known."""
        ...
