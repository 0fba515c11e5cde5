"""Checks of an analysis that another user may have written, in a corpus or a replay file.

Owns the allowed ranges, and needs no Arrow. ``rows.check_storable`` converts an analysis to its
columns, and so covers the numbers and texts of all fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from llmperf_common.analysis import Analysis, Polynomial
from llmperf_common.records import ArgumentKind, Signature

MAX_SIDE = 2**31 - 1
"""Maximum work-items in one dimension of a work-group."""
MAX_NUMBER = 2**53
"""Largest constant, coefficient, limit and number of bytes. Python computes their products with
sizes exactly."""
_ROUNDING = 1e-9
"""How far a share may exceed 1. Shares exceed 1 by some 1e-15 in corpora that were analysed before
26 November 2026."""


def check_analysis(analysis: Analysis) -> None:
    """Raise ValueError if the analysis has a value that no probe can lead to."""
    for form in _forms(analysis):
        for number in (form.constant, *(term.coefficient for term in form.terms)):
            check_range(number, -MAX_NUMBER, MAX_NUMBER, "a coefficient of an extent")
    for local_size in analysis.overflowing_local_sizes:
        for side in local_size:
            check_range(side, 0, MAX_SIDE, "a side of an overflowing local size")
    inputs = analysis.inputs
    if inputs is not None:
        check_range(inputs.num_tried, 0, MAX_SIDE, "the number of inputs that were tried")
        if inputs.contents is not None:
            check_range(inputs.contents.limit, 1, MAX_NUMBER, "the limit of the contents")
        for share in (inputs.plain_share, inputs.active_share):
            if share is not None and not 0 <= share <= 1 + _ROUNDING:
                raise ValueError(f"a share of work-items is {share}, but must be from 0 to 1")


def check_positions(analysis: Analysis, signature: Signature | None) -> None:
    """Raise ValueError if the analysis names an argument that its kernel does not have.

    Args:
        analysis: the analysis.
        signature: the kernel's signature; None for a kernel without one.
    """
    arguments = signature.arguments if signature else ()
    kinds = {one.position: one.kind for one in arguments}
    for position, what, needs_buffer in _positions(analysis):
        kind = kinds.get(position)
        where = f"{what} is of argument {told(position)}"
        if kind is None:
            raise ValueError(f"{where}, but the kernel has {len(arguments)} arguments")
        if not (kind.is_buffer if needs_buffer else kind is ArgumentKind.SCALAR):
            raise ValueError(f"{where}, which is no {'buffer' if needs_buffer else 'scalar'}")


def check_range(number: int, least: int, most: int, what: str) -> None:
    """Raise ValueError if a number lies out of its range; ``what`` names it in the message."""
    if not least <= number <= most:
        raise ValueError(f"{what} is {told(number)}, but must be from {least} to {most}")


def told(number: int) -> str:
    """Return a number in few characters: Python does not print numbers of many thousand digits.

    >>> told(2**31), told(2**80)
    ('2147483648', 'a number of 81 bits')
    """
    return str(number) if abs(number) < 2**64 else f"a number of {number.bit_length()} bits"


def _positions(analysis: Analysis) -> Iterator[tuple[int, str, bool]]:
    """Yield each position, what it is the position of, and whether it must be a buffer's."""
    for extent in analysis.extents:
        yield extent.position, "an extent", True
    for role in analysis.index_roles:
        yield role.position, "an index role", True
        for target in role.targets:
            yield target.position, "an index target", True
    for scalar in analysis.inputs.scalars if analysis.inputs else ():
        yield scalar.position, "a chosen scalar", False


def _forms(analysis: Analysis) -> Iterator[Polynomial]:
    for extent in analysis.extents:
        yield from (one for one in (extent.form, extent.cap) if one is not None)
    for role in analysis.index_roles:
        yield from (target.form for target in role.targets)
