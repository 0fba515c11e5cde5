"""Checks of the numbers in a corpus that another user may have written.

Owns the allowed ranges. A number that no column of a dataset can hold would end each run of that
corpus at the same task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from llmperf_common.analysis import Analysis, Polynomial
from llmperf_common.records import MAX_ELEMENT_BYTES, Argument, Signature

_MAX_DIMS = 3
_MAX_SIDE = 2**31 - 1
"""Maximum work-items in one dimension of a work-group."""
_ROUNDING = 1e-9
"""How far a share may exceed 1. Shares exceed 1 by some 1e-15 in corpora that were analysed before
26 November 2026."""
_MAX_NUMBER = 2**53
"""Largest constant, coefficient, limit and number of bytes. Python computes their products with
sizes exactly."""


def check_signature(signature: Signature) -> None:
    """Raise ValueError if the signature has a number that no source can lead to."""
    if not 1 <= signature.dims <= _MAX_DIMS:
        raise ValueError(
            f"the kernel has {_told(signature.dims)} dimensions, but must have 1 to {_MAX_DIMS}"
        )
    required = signature.required_local_size
    if required is not None:
        if not 1 <= len(required) <= _MAX_DIMS:
            raise ValueError(
                f"the required local size has {len(required)} dimensions, but must have 1 to "
                f"{_MAX_DIMS}"
            )
        for side in required:
            _check(side, 1, _MAX_SIDE * 2 + 1, "a side of the required local size")
    _check(signature.static_local_bytes, 0, _MAX_NUMBER, "the static local bytes")
    for name, value in signature.static_features.items():
        if not math.isfinite(value):
            raise ValueError(f"the static feature {name[:80]!r} is {value}, but must be finite")
    for position, argument in enumerate(signature.arguments):
        _check_argument(argument, position)


def check_analysis(analysis: Analysis) -> None:
    """Raise ValueError if the analysis has a number that no probe can lead to."""
    for form in _forms(analysis):
        for number in (form.constant, *(term.coefficient for term in form.terms)):
            _check(number, -_MAX_NUMBER, _MAX_NUMBER, "a coefficient of an extent")
    for local_size in analysis.overflowing_local_sizes:
        for side in local_size:
            _check(side, 0, _MAX_SIDE, "a side of an overflowing local size")
    inputs = analysis.inputs
    if inputs is None:
        return
    _check(inputs.num_tried, 0, _MAX_SIDE, "the number of inputs that were tried")
    if inputs.contents is not None:
        _check(inputs.contents.limit, 1, _MAX_NUMBER, "the limit of the contents")
    for share in (inputs.plain_share, inputs.active_share):
        if share is not None and not 0 <= share <= 1 + _ROUNDING:
            raise ValueError(f"a share of work-items is {share}, but must be from 0 to 1")


def _check_argument(argument: Argument, position: int) -> None:
    where = f"argument {position}"
    _check(argument.position, position, position, f"the position of {where}")
    _check(argument.element_bytes, 0, MAX_ELEMENT_BYTES, f"the element size of {where}")
    _check(argument.vector_width, 1, MAX_ELEMENT_BYTES, f"the vector width of {where}")
    for leaf in argument.leaves:
        _check(leaf.offset_bytes, 0, MAX_ELEMENT_BYTES, f"the offset of a member of {where}")
        _check(leaf.count, 1, MAX_ELEMENT_BYTES, f"the number of members of {where}")


def _forms(analysis: Analysis) -> Iterator[Polynomial]:
    for extent in analysis.extents:
        yield from (one for one in (extent.form, extent.cap) if one is not None)
    for role in analysis.index_roles:
        yield from (target.form for target in role.targets)


def _check(number: int, least: int, most: int, what: str) -> None:
    if not least <= number <= most:
        raise ValueError(f"{what} is {_told(number)}, but must be from {least} to {most}")


def _told(number: int) -> str:
    """Return a number in few characters: Python does not print numbers of many thousand digits."""
    return str(number) if abs(number) < 2**64 else f"a number of {number.bit_length()} bits"
