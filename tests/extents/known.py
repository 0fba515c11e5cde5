"""Where the analysis is known to be wrong about a case, and where a plan is known to give too little.

An entry that no longer fails is an error of the tests that read this, so it goes when its defect does.
"""

from __future__ import annotations

_NESTED_FOLD = "folds of folds multiply, and through variables that is not followed: 512 * 512 lies beyond every probe"
_FUNCTION_OF_SIZE = (
    "a function of a size is compared, so the constant does not say which size meets it"
)
_LOCAL_SIZE = "local sizes that plans use and no probe does"
_OTHER_LOCAL_SIZE = f"{_LOCAL_SIZE}: a constant of 1 adds none"
_LOG2 = f"log2: {_FUNCTION_OF_SIZE}"
_QUOTIENT = "400 is compared with a quotient by 400: the scalar meets it at 160,400"
_ROUNDED = "ids above 2^24 are rounded on their way through a float, the last one upwards"
_DEGREE = (
    "a bound of degree 3 for an extent of degree 4: it outgrows the multiple that the probes needed"
)
_BEYOND = (
    "not validated: the threshold lies beyond every probe, and the bound is what was seen below it"
)

WRONG: dict[str, str] = {
    "shifted_twice.a": _NESTED_FOLD,
    "equal_to_range.a": _QUOTIENT,
    "leading_zeros.a": f"clz: {_FUNCTION_OF_SIZE}",
    "root_of_id.a": f"sqrt: {_FUNCTION_OF_SIZE}",
    "squared_scalar.a": _LOG2,
    "limit_in_table.a": "a floating-point constant in a __constant array is no constant that ids may be compared with",
    "rounded_to_float.a": _ROUNDED,
    "wraps_at_32_bits.a": "32-bit arithmetic on ids wraps beyond every probe",
    "flat_groups.a": _OTHER_LOCAL_SIZE,
    "form_alias.a": "a lane of a vector counts as the whole vector: two elements more than are written",
}
"""Validated extents that a planned launch refutes, by ``kernel.argument``."""

PLANNED_SHORT: dict[str, str] = {
    "shifted_twice.a": _NESTED_FOLD,
    "equal_to_range.a": _QUOTIENT,
    "squared_scalar.a": _LOG2,
    "rounded_to_float.a": _ROUNDED,
    "flat_groups.a": _OTHER_LOCAL_SIZE,
    "conv_layer.weights": _DEGREE,
    "late_groups.a": _BEYOND,
    "product_of_groups.a": _BEYOND,
    "rare_andguard.a": _BEYOND,
}
"""Buffers with a form that a plan makes too short; all others with a form must hold what their kernel touches.

Where there is no form the simple strategy's size is planned, which promises nothing.
"""

FLAGS: dict[str, str] = {
    "rare_xgt100": "a floating-point threshold beyond the contents that are tried",
}
"""Kernels for which ``data_dependent`` is wrong."""

UNPROBED: dict[str, str] = {
    "mixed_privptr": "a loop up to a scalar fills a private array of 16: nearly every probe runs over",
}
"""Kernels that cannot be probed at all."""

VARYING = frozenset({"rare_imgsupport", "rare_fp16ext", "odd_ifdefgpu"})
"""Kernels whose text asks for macros of the device: they have no truths, and nothing of them may be validated."""
