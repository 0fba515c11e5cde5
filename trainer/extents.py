"""How large an argument would be that the user did not give: from the kernel's stored analysis, or a rule.

The extent of a buffer is min(polynomial, cap polynomial) over the NDRange and the scalars (DESIGN 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def launch_sizes(
    global_size: Sequence[int], local_size: Sequence[int], scalars: Mapping[str, float]
) -> dict[str, int]:
    """Return every name a polynomial may use with its value; unused dimensions have size 1.

    >>> launch_sizes((64,), (16,), {"n": 60})["num_groups_0"]
    4
    """
    sizes: dict[str, int] = {}
    for axis in range(3):
        total = global_size[axis] if axis < len(global_size) else 1
        local = local_size[axis] if axis < len(local_size) else 1
        sizes[f"global_size_{axis}"] = total
        sizes[f"local_size_{axis}"] = local
        sizes[f"num_groups_{axis}"] = -(-total // local)
    sizes.update({name: int(value) for name, value in scalars.items()})
    return sizes


def extent_elements(analysis: Mapping[str, Any], sizes: Mapping[str, int]) -> int | None:
    """Return the elements of one buffer, at least 1; None where the analysis has no form for it.

    Args:
        analysis: one entry of ``kernels.analysis``.
        sizes: as ``launch_sizes`` gives them.
    """
    extent = _polynomial(analysis.get("constant"), analysis.get("terms"), sizes)
    if extent is None:
        return None
    cap = _polynomial(analysis.get("cap_constant"), analysis.get("cap_terms"), sizes)
    return max(1, extent if cap is None else min(extent, cap))


def _polynomial(
    constant: int | None, terms: Sequence[Mapping[str, Any]] | None, sizes: Mapping[str, int]
) -> int | None:
    if constant is None:
        return None
    total = int(constant)
    for term in terms or ():
        product = int(term["coefficient"])
        for factor in term["factors"]:
            if factor not in sizes:
                return None
            product *= sizes[factor]
        total += product
    return total
