"""Facts about launches: the ranges of scalar types, and the local memory that a launch needs.

Plans, predictions and features share these facts. ``workers/plan/strategies/memory_limits.py`` says
what fits on a device.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmperf_common.records import ArgumentKind, LaunchArgument, Signature

INTEGER_RANGES = {
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
"""Smallest and largest value of each OpenCL integer type of fixed width."""

MOST_ELEMENTS = 2**48
"""Maximum number of elements of a buffer: more than any device can hold, but small enough that
computations with int64 do not overflow."""

INTEGER_TYPES = frozenset({*INTEGER_RANGES, "size_t", "ptrdiff_t", "intptr_t", "uintptr_t"})
"""Canonical names of the OpenCL scalar types that hold integers."""


def is_integer_scalar(scalar_type: str) -> bool:
    """Whether a canonical OpenCL scalar type holds integers.

    >>> is_integer_scalar("uint"), is_integer_scalar("float")
    (True, False)
    """
    return scalar_type in INTEGER_TYPES


def integer_range(scalar_type: str) -> tuple[int, int]:
    """Return the smallest and largest value of a type; ``size_t`` and the like count as ``long``.

    >>> integer_range("short"), integer_range("size_t") == integer_range("long")
    ((-32768, 32767), True)
    """
    return INTEGER_RANGES.get(scalar_type, INTEGER_RANGES["long"])


def local_memory_bytes(signature: Signature, args: Sequence[LaunchArgument]) -> int:
    """Return a work-group's local memory in bytes: declared arrays and ``__local`` arguments."""
    element_bytes = {one.position: one.element_bytes for one in signature.arguments}
    return signature.static_local_bytes + sum(
        (one.elements or 0) * element_bytes[one.position]
        for one in args
        if one.kind is ArgumentKind.LOCAL_BUFFER
    )
