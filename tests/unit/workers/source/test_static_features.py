"""Counts made from a source."""

import pytest

from llmperf_common.features.static_feature_names import STATIC_FEATURES
from llmperf_common.records import Signature
from tests.support.reading import read_signatures
from workers.source.loop_trips import count_trips


def features(body: str, parameters: str = "", before: str = "") -> dict[str, float]:
    default = "global float *p, global const float *c, global const int *q, int n"
    found = read_signatures(f"{before}\nkernel void k({parameters or default}) {{ {body} }}")
    assert isinstance(found, tuple)
    assert isinstance(found[0].signature, Signature), found[0].signature
    return dict(found[0].signature.static_features)


def nonzero(found: dict[str, float], *names: str) -> dict[str, float]:
    return {name: value for name, value in found.items() if value and (not names or name in names)}


def test_every_kernel_has_the_whole_documented_list():
    assert list(features("")) == list(STATIC_FEATURES)
    assert all(
        name.isidentifier() and meaning.endswith(".") for name, meaning in STATIC_FEATURES.items()
    )
    assert len(STATIC_FEATURES) == 69


def test_vector_lanes_and_groups_of_operations():
    found = features(
        "float4 v = (float4)(1.0f) + 2.0f; v = sqrt(v) * native_sin(v); p[0] = v.x / c[1];"
        "p[1] = mad(v.y, v.z, exp(v.w)); p[2] = pow(v.x, 2.0f) + (float)n; int k = n / 3 + n % 5;"
    )
    expected = {
        "float_ops": 4 + 4 + 1 + 2 + 1, "float_divisions": 1, "fma_calls": 1, "sqrt_calls": 4,
        "native_calls": 4, "exp_log_calls": 1, "pow_calls": 1, "conversions": 1, "int_ops": 3, "int_divisions": 2,
    }  # fmt: skip
    assert nonzero(found, *expected) == expected
    assert found["max_vector_width"] == 4


def test_double_and_half_are_flagged():
    assert features("double d = 1.0; d = d * d;")["double_ops"] == 1
    assert features("double d = 1.0;")["uses_fp64"] == 1
    assert (
        features("p[0] = vload_half(n, h);", "global float *p, global half *h, int n")["uses_half"]
        == 1
    )
    assert features("p[0] = 1.0f;")["uses_fp64"] == 0


@pytest.mark.parametrize(
    ("index", "pattern"),
    [
        ("get_global_id(0)", "unit_stride_accesses"),
        ("get_global_id(0) + 7", "unit_stride_accesses"),
        ("get_group_id(0) * get_local_size(0) + get_local_id(0)", "unit_stride_accesses"),
        ("get_global_id(1) * n + get_global_id(0)", "unit_stride_accesses"),
        ("n - get_global_id(0)", "unit_stride_accesses"),
        ("get_global_id(0) % n", "unit_stride_accesses"),
        ("get_group_id(0)", "broadcast_accesses"),
        ("n * 3", "broadcast_accesses"),
        ("get_global_id(0) / n", "broadcast_accesses"),
        ("get_global_id(0) * 2", "strided_accesses"),
        ("get_global_id(0) << 2", "strided_accesses"),
        ("get_global_id(0) * n + get_global_id(1)", "strided_accesses"),
        ("q[get_global_id(0)]", "indirect_accesses"),
        ("get_global_id(0) * get_global_id(0)", "irregular_accesses"),
        ("flat(get_global_id(0), get_global_id(1), n)", "unit_stride_accesses"),
    ],
)
def test_access_patterns(index, pattern):
    before = "int flat(int x, int y, int w) { return mad24(y, w, x); }"
    base = features("int i = 0;", before=before)
    found = features(f"int i = {index}; p[i] = 0.0f;", before=before)
    assert found[pattern] - base[pattern] >= 1
    assert found["global_stores"] == 1


def test_a_pointer_variable_and_a_structure_of_arrays():
    assert features("global float *r = p + get_global_id(0); *r = 1;")["unit_stride_accesses"] == 1
    strided = features(
        "s[get_global_id(0)].b = 1;", "global point *s", "typedef struct { float a, b; } point;"
    )
    assert nonzero(strided, "strided_accesses", "global_store_bytes") == {
        "strided_accesses": 1, "global_store_bytes": 4,
    }  # fmt: skip


def test_a_grid_stride_loop_keeps_unit_stride():
    found = features("for (int i = get_global_id(0); i < n; i += get_global_size(0)) p[i] = c[i];")
    assert found["unit_stride_accesses"] == 2
    assert found["loops_bounded_by_scalar"] == 1


@pytest.mark.parametrize(
    ("loop", "kind", "weight"),
    [
        ("for (int i = 0; i < 10; ++i)", "loops_constant_trips", 10),
        ("for (int i = 9; i >= 0; i -= 3)", "loops_constant_trips", 4),
        ("for (int i = 1; i <= 64; i *= 2)", "loops_constant_trips", 7),
        ("for (int i = 64; i > 0; i >>= 1)", "loops_constant_trips", 7),
        ("int i; for (i = 0; i != N; i = i + 2)", "loops_constant_trips", 4),
        ("for (int i = 0; i < n; ++i)", "loops_bounded_by_scalar", 1),
        ("for (int i = 0; i < get_local_size(0); ++i)", "loops_bounded_by_ndrange", 1),
        ("for (int i = q[0]; i < q[1]; ++i)", "loops_data_dependent", 1),
        ("for (;;)", "loops_data_dependent", 1),
        ("int i = 0; while (i++ < n)", "loops_bounded_by_scalar", 1),
    ],
)
def test_loops_weigh_what_is_inside(loop, kind, weight):
    found = features(f"float s = 0; {loop} {{ s += c[1]; }} p[0] = s;", before="#define N 8")
    assert found[kind] == found["loops"] == 1
    assert found["weighted_float_ops"] == weight
    is_open = kind != "loops_constant_trips"
    assert found["open_float_ops"] == (1 if is_open else 0)
    assert found["max_constant_trips"] == weight


def test_nested_loops_and_helpers_multiply():
    before = "float f(const global float *x) { float s = 0; for (int i = 0; i < 5; ++i) s += x[i]; return s; }"
    found = features(
        "float s = 0; for (int i = 0; i < n; ++i) for (int j = 0; j < 3; ++j) s += f(c); p[0] = s;",
        before=before,
    )
    assert found["max_loop_depth"] == 3
    assert found["weighted_float_ops"] == found["open_float_ops"] == 3 * 5 + 3
    assert found["helper_calls"] == 1
    assert found["max_constant_trips"] == 15


def test_recursion_ends():
    before = "int f(int x) { return x ? f(x - 1) + g(x) : 0; } int g(int x) { return f(x); }"
    assert features("p[f(n)] = 1;", before="int g(int x);" + before)["helper_calls"] >= 1


def test_local_memory_barriers_atomics_and_private_arrays():
    found = features(
        "local float t[64]; float mine[8]; t[get_local_id(0)] = p[0]; barrier(CLK_LOCAL_MEM_FENCE);"
        "mine[n] = t[n]; atomic_inc(&bins[n]); if (mine[0] > 0) p[1] = n ? 1 : 2;",
        "global float *p, global int *bins, int n",
    )
    expected = {
        "local_stores": 1, "local_loads": 1, "barriers": 1, "private_array_accesses": 2, "global_atomics": 1,
        "branches": 1, "selects": 1, "private_array_bytes": 32, "static_local_bytes": 256, "uses_local": 1,
        "num_global_buffers": 2, "num_scalars": 1,
    }  # fmt: skip
    assert nonzero(found, *expected) == expected


def test_source_tokens_ignore_comments_and_other_kernels():
    alone = features("p[0] = 1;")
    commented = features(
        "/* a long comment */ p[0] = 1; // more\n", before="void other() { int x = 3; }"
    )
    assert alone["source_tokens"] == commented["source_tokens"]


@pytest.mark.parametrize(
    ("loop", "trips"),
    [
        ((0, "<", 10, "+", 0), None),
        ((0, ">", 10, "+", 1), 0),
        ((10, ">", 0, "-", 4), 3),
        ((0, "!=", 9, "+", 2), None),
        ((1, "<", 1 << 70, "*", 1), None),
        ((0, "<", 1 << 50, "+", 1), None),
        ((5, "<", 10, "&", 1), None),
    ],
)
def test_count_trips(loop, trips):
    assert count_trips(*loop) == trips
