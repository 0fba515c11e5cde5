"""Checks of the signatures in a corpus that another user may have written.

Owns the allowed ranges. A number that no column of a dataset can hold would end each run of that
corpus at the same task. ``foreign_analysis.py`` owns the checks of the kernels' analyses.
"""

from __future__ import annotations

import math

from llmperf_common.records import MAX_ELEMENT_BYTES, Argument, Signature
from llmperf_common.store.tables.foreign_analysis import MAX_NUMBER, MAX_SIDE, check_range, told

_MAX_DIMS = 3


def check_signature(signature: Signature) -> None:
    """Raise ValueError if the signature has a number that no source can lead to."""
    if not 1 <= signature.dims <= _MAX_DIMS:
        raise ValueError(
            f"the kernel has {told(signature.dims)} dimensions, but must have 1 to {_MAX_DIMS}"
        )
    required = signature.required_local_size
    if required is not None:
        if not 1 <= len(required) <= _MAX_DIMS:
            raise ValueError(
                f"the required local size has {len(required)} dimensions, but must have 1 to "
                f"{_MAX_DIMS}"
            )
        for side in required:
            check_range(side, 1, MAX_SIDE * 2 + 1, "a side of the required local size")
    check_range(signature.static_local_bytes, 0, MAX_NUMBER, "the static local bytes")
    for name, value in signature.static_features.items():
        if not math.isfinite(value):
            raise ValueError(f"the static feature {name[:80]!r} is {value}, but must be finite")
    for position, argument in enumerate(signature.arguments):
        _check_argument(argument, position)


def _check_argument(argument: Argument, position: int) -> None:
    where = f"argument {position}"
    check_range(argument.position, position, position, f"the position of {where}")
    check_range(argument.element_bytes, 0, MAX_ELEMENT_BYTES, f"the element size of {where}")
    check_range(argument.vector_width, 1, MAX_ELEMENT_BYTES, f"the vector width of {where}")
    for leaf in argument.leaves:
        check_range(leaf.offset_bytes, 0, MAX_ELEMENT_BYTES, f"the offset of a member of {where}")
        check_range(leaf.count, 1, MAX_ELEMENT_BYTES, f"the number of members of {where}")
