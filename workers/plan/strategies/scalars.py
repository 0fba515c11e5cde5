"""The values of scalar arguments: by their role, as large as the NDRange, or drawn independently.

Owns one function per strategy: a pure function of the NDRange and, for drawn values, of a random
number. Values are moved into the range of narrow types. ``workers/source/size_roles.py`` reads the
roles from the source; ``workers/work/input_choice.py`` tries values that keep more work-items busy.
"""

from __future__ import annotations

import math

from llmperf_common.analysis import HIGH_FACTOR, ScalarChoice
from llmperf_common.launch import integer_range, is_integer_scalar
from llmperf_common.records import Argument, ArgumentKind, Signature, SizeRole
from workers.plan.inputs import clamp_scalar
from workers.plan.ndranges import Shape, log_uniform

LOOP_LIMITS = (1024, 128, 16, 1)
"""Largest values of scalars that bound a loop or have no known role. If every work-item of a full
device looped over the global size, a launch would take hours. The first limit for which the buffers
fit is used. So matrices of many rows get shorter rows, and no NDRange is left out."""
DRAWN_LOOP_LIMITS = (4096, 512, 64, 8, 1)
"""Upper ends of the ranges from which the values of such scalars are drawn; used in the same way.
"""
MOST_LANES = 32
"""Value of a scalar that splits a work-group: the size of the smallest usual 1-D group. It is a
power of two, so it divides a group into equal parts."""
GUARD_SPREAD = 4
"""A drawn guard lies between the global size divided by this number and multiplied by it."""
PITCH_SPREAD = 2  # a drawn row length lies between global size 0 and this multiple of it

FLOATS = frozenset({"half", "float", "double"})
_GUARDED_AXIS = {SizeRole.GUARD_0: 0, SizeRole.GUARD_1: 1, SizeRole.GUARD_2: 2}

STAYING_SHARE = 0.5
"""Share of drawn floating-point scalars that stay at the usual 1.0."""
_LEAST_FLOAT_LOG2, _MOST_FLOAT_LOG2 = -3.0, 3.0
"""Smallest and largest log2 of all other drawn floating-point scalars. They are log-uniform around
the values that the analysis has probed: 1.0, 2.5 and -2.5."""
NEGATIVE_SHARE = 0.25
"""Share of these other scalars that are negative, if the analysis found that they steer nothing."""

Number = int | float


def scalar_arguments(signature: Signature) -> tuple[Argument, ...]:
    """Return the arguments passed by value."""
    return tuple(one for one in signature.arguments if one.kind is ArgumentKind.SCALAR)


def integer_scalars(signature: Signature) -> tuple[Argument, ...]:
    """Return the integer arguments passed by value: the scalars that may be sizes."""
    return tuple(one for one in scalar_arguments(signature) if is_integer_scalar(one.scalar_type))


def simple_value(argument: Argument, global_size: Shape) -> Number:
    """Return what the simple strategy passes: global size 0 for an integer, 1.0 for a float."""
    return _fitting(argument, global_size[0])


def role_value(argument: Argument, global_size: Shape, limit: int) -> Number:
    """Return what the memory-analysis strategy passes.

    A guard gets the global size that it is compared with. The row length of a matrix (``PITCH``)
    gets global size 0, and a scalar that splits a work-group gets ``MOST_LANES``. Loop bounds,
    unknown roles and 1-D row lengths get global size 0, but at most ``limit``, one of
    ``LOOP_LIMITS``.
    """
    axis = guarded_axis(argument, global_size)
    if axis is not None:
        return _fitting(argument, global_size[axis])
    if is_row_length(argument, global_size):
        return _fitting(argument, global_size[0])
    if argument.size_role is SizeRole.LANES:
        return _fitting(argument, MOST_LANES)
    return _fitting(argument, min(global_size[0], limit))


def drawn_value(argument: Argument, global_size: Shape, at: float, limit: int) -> Number:
    """Return what the decoupled strategy passes: a log-uniform integer, or 1.0 for a float.

    Guards lie within a factor of ``GUARD_SPREAD`` around the global size that they are compared
    with, so that both sides of the guard occur. Row lengths lie between global size 0 and
    ``PITCH_SPREAD`` times that. A scalar that splits a work-group is a power of two up to
    ``MOST_LANES``. Loop bounds and unknown roles lie in [1, ``limit``].

    Args:
        argument: an argument passed by value.
        global_size: work-items of the launch, by dimension.
        at: a random number in [0, 1).
        limit: largest value of loop bounds and unknown roles, one of ``DRAWN_LOOP_LIMITS``.
    """
    axis = guarded_axis(argument, global_size)
    if argument.size_role is SizeRole.LANES:
        return _fitting(argument, 1 << int(at * MOST_LANES.bit_length()))
    low, high = 1, limit
    if axis is not None:
        side = global_size[axis]
        low, high = max(1, math.ceil(side / GUARD_SPREAD)), GUARD_SPREAD * side
    elif is_row_length(argument, global_size):
        low, high = global_size[0], PITCH_SPREAD * global_size[0]
    return _fitting(argument, log_uniform(low, high, at))


def drawn_float(at: float) -> float:
    """Return a floating-point scalar: 1.0 for half of the draws, else log-uniform in [1/8, 8].

    >>> drawn_float(0.2), drawn_float(0.5), drawn_float(0.75), drawn_float(0.9)
    (1.0, 0.125, 1.0, 3.482)
    """
    if at < STAYING_SHARE:
        return 1.0
    share = (at - STAYING_SHARE) / (1.0 - STAYING_SHARE)
    log2 = _LEAST_FLOAT_LOG2 + share * (_MOST_FLOAT_LOG2 - _LEAST_FLOAT_LOG2)
    return round(math.exp2(log2), 3)


def signed_float(value: float, at: float) -> float:
    """Return ``value`` with the sign that the random ``at`` in [0, 1) gives; 1.0 stays positive.

    >>> signed_float(1.0, 0.1), signed_float(3.5, 0.1), signed_float(3.5, 0.3)
    (1.0, -3.5, 3.5)
    """
    return -value if value != 1.0 and at < NEGATIVE_SHARE else value


def chosen_value(argument: Argument, global_size: Shape, choice: ScalarChoice) -> Number:
    """Return the chosen value of a scalar, used in place of the usual value."""
    value = {
        ScalarChoice.ZERO: 0,
        ScalarChoice.LOW: 1,
        ScalarChoice.HIGH: HIGH_FACTOR * global_size[0],
        ScalarChoice.SIDE: global_size[0],
        ScalarChoice.ROOT: math.isqrt(math.prod(global_size)),
    }[choice]
    if is_float_scalar(argument):
        return clamp_scalar(argument.scalar_type, value)
    return _fitting(argument, value)


def is_float_scalar(argument: Argument) -> bool:
    """Return whether the argument is a floating-point number passed by value."""
    return argument.kind is ArgumentKind.SCALAR and argument.scalar_type in FLOATS


def guarded_axis(argument: Argument, global_size: Shape) -> int | None:
    """Return the dimension whose index the scalar guards; None if the launch lacks it."""
    axis = _GUARDED_AXIS.get(argument.size_role)
    return axis if axis is not None and axis < len(global_size) else None


def is_row_length(argument: Argument, global_size: Shape) -> bool:
    """Return whether the scalar is the length of rows that lie along dimension 0."""
    return argument.size_role is SizeRole.PITCH and len(global_size) > 1


def largest_value(scalar_type: str) -> int:
    """Return the largest integer of a type; ``size_t`` and similar types count as ``long``."""
    return integer_range(scalar_type)[1]


def _fitting(argument: Argument, number: int) -> Number:
    if argument.scalar_type in FLOATS:
        return 1.0
    return min(number, largest_value(argument.scalar_type))
