"""The names and meanings of the features that are counted in a kernel's source.

Owns the table only, so that it can be imported without libclang.
``workers/source/static_features.py`` counts the features; ``llmperf_common/features/features.py``
combines them with a launch. Names are stored in ``kernels.static_features``, so add names, but
never rename one.

Conventions. Operations and special functions count once per vector lane, each memory access once.
The body of a helper function counts at every call. ``weighted_*``: counts inside a loop are
multiplied by its trip count if that is a constant; other ("open") loops count as one trip.
``open_*``: the part of the ``weighted_*`` count inside open loops, so that weighted + open x (trips
- 1) estimates the work.
"""

from __future__ import annotations

STATIC_FEATURES: dict[str, str] = {
    # Arithmetic.
    "float_ops": "Single-precision additions, multiplications, ...; cheap built-ins (min, mix).",
    "double_ops": "The same in double precision.",
    "half_ops": "The same in half precision.",
    "int_ops": "Integer and bit operations, pointer arithmetic included; subscripts are not.",
    "float_divisions": "Floating-point divisions (also counted as operations).",
    "int_divisions": "Integer divisions and remainders (also counted as operations).",
    "comparisons": "Comparisons of any type.",
    "fma_calls": "fma, mad, mad24 (also counted as two operations each).",
    "conversions": "Casts and convert_* between integer, float, double and half.",
    "sqrt_calls": "sqrt, rsqrt, cbrt, hypot, length, distance, normalize.",
    "exp_log_calls": "Exponentials and logarithms.",
    "trig_calls": "Trigonometric and hyperbolic functions and their inverses.",
    "pow_calls": "pow, pown, powr, rootn.",
    "native_calls": "native_* and half_* functions of any of the groups above.",
    "other_math_calls": "Other floating-point built-ins (erf, fmod, ldexp, ...).",
    # Memory.
    "global_loads": "Loads from global memory.",
    "global_stores": "Stores to global memory.",
    "global_load_bytes": "Bytes of those loads, each counted once.",
    "global_store_bytes": "Bytes of those stores, each counted once.",
    "constant_loads": "Loads from constant memory.",
    "local_loads": "Loads from local memory.",
    "local_stores": "Stores to local memory.",
    "private_array_accesses": "Loads and stores of private arrays.",
    "global_atomics": "Atomic operations on global memory.",
    "local_atomics": "Atomic operations on local memory.",
    "barriers": "Work-group barriers.",
    "async_copies": "async_work_group_copy and its strided form.",
    # How neighbouring work-items (dimension 0) access global and constant memory.
    "unit_stride_accesses": "Neighbouring work-items touch neighbouring elements.",
    "broadcast_accesses": "Neighbouring work-items touch the same element.",
    "strided_accesses": "Neighbouring work-items touch elements at a fixed distance of "
    "more than one.",
    "indirect_accesses": "The address depends on data that was loaded: a[b[i]].",
    "irregular_accesses": "Any other address.",
    # Control.
    "branches": "if statements, and cases of switch statements.",
    "selects": "Conditional expressions and && or ||.",
    "loops": "Loops.",
    "max_loop_depth": "Deepest nesting of loops.",
    "loops_constant_trips": "Loops with a constant trip count (an upper bound if they break).",
    "loops_bounded_by_scalar": "Loops whose bound depends on a scalar argument and on no data.",
    "loops_bounded_by_ndrange": "Loops whose bound depends on sizes or ids of the launch only.",
    "loops_data_dependent": "Loops whose bound depends on loaded data, or could not be derived.",
    "max_constant_trips": "Largest product of constant trip counts around one statement.",
    # Work: counts multiplied by constant trip counts of loops.
    "weighted_float_ops": "float_ops, double_ops and half_ops.",
    "weighted_double_ops": "double_ops.",
    "weighted_int_ops": "int_ops.",
    "weighted_math_calls": "All groups of *_calls except fma_calls.",
    "weighted_global_accesses": "global_loads and global_stores.",
    "weighted_global_bytes": "global_load_bytes and global_store_bytes.",
    "weighted_local_accesses": "local_loads and local_stores.",
    "weighted_atomics": "global_atomics and local_atomics.",
    "weighted_barriers": "barriers.",
    "open_float_ops": "The part of weighted_float_ops inside open loops.",
    "open_int_ops": "The part of weighted_int_ops inside open loops.",
    "open_math_calls": "The part of weighted_math_calls inside open loops.",
    "open_global_bytes": "The part of weighted_global_bytes inside open loops.",
    "open_local_accesses": "The part of weighted_local_accesses inside open loops.",
    # Shape of the kernel.
    "max_vector_width": "Largest number of lanes of a vector type in use; 1 without vectors.",
    "num_global_buffers": "Arguments that are global buffers.",
    "num_constant_buffers": "Arguments that are constant buffers.",
    "num_local_buffers": "Arguments that are local buffers.",
    "num_scalars": "Arguments passed by value.",
    "max_element_bytes": "Bytes of the largest buffer element.",
    "source_tokens": "Tokens of the kernel and the helpers it calls, comments left out.",
    "helper_calls": "Calls of functions defined in the source.",
    "private_array_bytes": "Bytes of private arrays per work-item.",
    "static_local_bytes": "Bytes of __local variables declared in the kernel.",
    "uses_fp64": "1 if any value is a double.",
    "uses_half": "1 if any value is a half.",
    "uses_local": "1 if local memory is used at all.",
    "dims": "Number of NDRange dimensions that the kernel uses.",
}
"""A mapping from name to meaning. Every kernel has all features; a count is 0 where nothing was
found."""
