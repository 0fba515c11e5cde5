"""OpenCL built-in functions, grouped by cost for the static features.

Owns only the names. A function in no group counts as ``other_math_calls`` if it returns a
floating-point value, else as one integer operation.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


MATH_GROUPS: dict[str, frozenset[str]] = {
    "sqrt_calls": frozenset(
        _words(
            "sqrt rsqrt cbrt hypot length distance normalize fast_length fast_distance"
            " fast_normalize"
        )
    ),
    "exp_log_calls": frozenset(_words("exp exp2 exp10 expm1 log log2 log10 log1p logb")),
    "trig_calls": frozenset(
        _words(
            "sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sinpi cospi tanpi"
            " asinpi acospi atanpi atan2pi sincos"
        )
    ),
    "pow_calls": frozenset(_words("pow pown powr rootn")),
}
"""Special functions. Their ``native_`` and ``half_`` forms are counted as ``native_calls``."""

GROUP_OF_CALL: dict[str, str] = {
    name: group for group, names in MATH_GROUPS.items() for name in names
}

FUSED_CALLS = frozenset({"fma", "mad", "mad24", "mad_hi", "mad_sat"})

CHEAP_CALLS = frozenset(
    _words(
        "min max clamp abs abs_diff fabs fmin fmax minmag maxmag fdim mix step smoothstep floor"
        " ceil round trunc rint sign copysign select bitselect any all isnan isinf isfinite"
        " isnormal isequal isnotequal isgreater isgreaterequal isless islessequal islessgreater"
        " isordered isunordered signbit mul24 mul_hi rotate popcount clz ctz hadd rhadd add_sat"
        " sub_sat upsample degrees radians dot cross nan shuffle shuffle2"
    )
)
"""Functions that cost about one operation per vector lane."""

BARRIER_CALLS = frozenset({"barrier", "work_group_barrier", "sub_group_barrier"})
FREE_CALLS = frozenset(
    _words(
        "get_global_id get_local_id get_group_id get_global_size get_local_size get_num_groups"
        " get_work_dim get_global_offset get_enqueued_local_size get_global_linear_id"
        " get_local_linear_id get_sub_group_local_id get_sub_group_id get_sub_group_size mem_fence"
        " read_mem_fence write_mem_fence atomic_work_item_fence wait_group_events prefetch printf"
        " vec_step __builtin_inff __builtin_inf __builtin_huge_valf __builtin_huge_val"
        " __builtin_nanf __builtin_nan"
    )
)
"""Functions that count as no work: ids are in registers; fences and prefetches compute nothing; the
last six are constants, to which ``INFINITY``, ``NAN`` and ``HUGE_VAL`` expand."""

NDRANGE_CALLS = frozenset(
    _words(
        "get_global_id get_local_id get_group_id get_global_size get_local_size get_num_groups"
        " get_global_offset get_enqueued_local_size"
    )
)
"""Functions whose argument is the number of an NDRange dimension."""

RESULT_CALLS = frozenset(_words("fract frexp lgamma_r modf remquo sincos"))
"""Functions that store a second result through their last argument, a pointer."""

VECTOR_MEMORY_PREFIXES = ("vload", "vstore")
ALIGNED_VECTOR_MEMORY_PREFIXES = ("vloada_", "vstorea_")
COPY_PREFIX = "async_work_group_"
ATOMIC_PREFIXES = ("atomic_", "atom_")
CHEAP_MATH_PREFIXES = ("native_", "half_")
