"""The arguments of a launch: checks of the user's values, and the choice of missing values.

The trainer does not import the planner of ``collect``, which chooses the missing values; its caller
passes the planner in as a ``Filler``.
"""

from __future__ import annotations

import difflib
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from llmperf_common.files.visible import shortened, shown_value
from llmperf_common.launch import MOST_ELEMENTS, integer_range, is_integer_scalar
from llmperf_common.records import Argument, ArgumentKind, LaunchArgument, Signature
from trainer.errors import BadInput

Value = int | float | str

_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)")
"""A whole number as a text. Python would also read 1_000 and the digits of other scripts."""


def read_arguments(signature: Signature, given: Mapping[str, Value]) -> dict[int, int | float]:
    """Return a mapping from argument position to checked value; ``given`` maps names to values.

    Raises:
        BadInput: ``given`` is not a mapping, has an unknown name or a bad value, or the kernel has
            an argument of a kind that is not supported (image, sampler, pipe, struct).
    """
    by_name = {argument.name: argument for argument in signature.arguments}
    for argument in signature.arguments:
        if not (argument.kind.is_buffer or argument.kind is ArgumentKind.SCALAR):
            raise BadInput(
                f"argument {argument.name!r} is of type {argument.type_name!r} "
                f"({argument.kind.value}): such kernels are not supported yet"
            )
    if not isinstance(given, Mapping):
        raise BadInput(
            f"args={shown_value(given)}: give a mapping of names to values, such as {{'n': 1024}}"
        )
    values = {}
    for name, value in given.items():
        if name not in by_name:
            shown = shortened(str(name))
            near = difflib.get_close_matches(shown, by_name, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadInput(
                f"--arg {shown}: the kernel's arguments are "
                f"{', '.join(map(shortened, by_name)) or 'none'}{hint}"
            )
        values[by_name[name].position] = _checked(by_name[name], value)
    return values


_FORMATS = {"half": "<e", "float": "<f"}
_LARGEST_FLOATS = {"half": 65504.0, "float": 3.4028234663852886e38}


def _checked(argument: Argument, value: Value) -> int | float:
    given = shortened(value) if isinstance(value, str) else shown_value(value)
    where = f"--arg {shortened(argument.name)}={given}"
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
            number = float(_plain(value))
        except (ValueError, TypeError, OverflowError):
            raise BadInput(f"{where}: {argument.type_name!r} takes a number") from None
        if not math.isfinite(number):
            raise BadInput(f"{where}: {argument.type_name!r} takes a finite number")
        try:
            struct.pack(_FORMATS.get(kind, "<d"), number)
        except OverflowError:
            largest = _LARGEST_FLOATS[kind]
            raise BadInput(
                f"{where}: {argument.type_name!r} holds -{largest:g} to {largest:g}"
            ) from None
        return number
    whole = _integer(value, f"{where}: {argument.type_name!r} takes a whole number")
    low, high = integer_range(kind)
    if not low <= whole <= high:
        raise BadInput(f"{where}: {argument.type_name!r} holds {low} to {high}")
    return whole


def _integer(value: Value, problem: str) -> int:
    try:
        number = _whole(value) if isinstance(value, str) else int(_plain(value))
    except (ValueError, OverflowError, TypeError):
        raise BadInput(problem) from None
    if not isinstance(value, str) and number != value:
        raise BadInput(problem)
    return number


def _whole(text: str) -> int:
    if not _INTEGER.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text, 0)


def _plain(value: Any) -> Any:
    """Return a value whose text means the same to Python and to a user, else raise.

    Raises ValueError or TypeError.
    """
    if isinstance(value, bytes | bytearray):
        raise TypeError(value)
    if isinstance(value, str) and ("_" in value or not value.isascii()):
        raise ValueError(value)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """Every argument of one launch, and warnings about them.

    Attributes:
        args: the arguments by position.
        warnings: arguments that were not given, with the chosen values; buffers that the launch
            accesses beyond their end.
    """

    args: tuple[LaunchArgument, ...]
    warnings: tuple[str, ...]


class Filler(Protocol):
    """Completes the arguments of launches of one kernel by the rules of ``collect``."""

    def fill(self, global_size: tuple[int, ...], local_size: tuple[int, ...]) -> Filled:
        """Return every argument of one launch."""
        ...

    def allows(self, local_size: tuple[int, ...]) -> bool:
        """Return False if a local size is known to overrun an array in the kernel."""
        ...
