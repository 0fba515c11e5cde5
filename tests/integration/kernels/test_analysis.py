"""Memory analysis on the CPU device: each form of access, with the extent that follows from its text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmperf_common.analysis import Analysis, ContentsRule, Extent, launch_sizes
from llmperf_common.records import Kernel
from tests.support.reading import kernels_from_source
from tests.support.sampling import slow_but_each
from workers.analysis.analyse import analyse_kernel, probe_limits
from workers.analysis.copy.instrument import instrument
from workers.analysis.opening import open_prober
from workers.device.interface import DeviceRef, ProbeLaunch, Prober
from workers.discovery.find import choose

pytestmark = pytest.mark.opencl

G0, G1, L0, N0 = "global_size_0", "global_size_1", "local_size_0", "num_groups_0"


@pytest.fixture(scope="module")
def prober() -> Iterator[Prober]:
    ref = choose("cpu")
    assert isinstance(ref, DeviceRef), ref
    opened = open_prober(ref)
    yield opened
    opened.close()


def analysed(prober: Prober, source: str) -> tuple[Kernel, Analysis]:
    (kernel,) = [one for one in kernels_from_source(source) if one.name == "k"]
    assert kernel.failure is None, kernel.failure
    return kernel, analyse_kernel(kernel, prober, probe_limits(prober.device))


def formula(extent: Extent) -> tuple[dict[tuple[str, ...], int], dict[tuple[str, ...], int] | None]:
    def terms(one):
        found = {tuple(sorted(term.factors)): term.coefficient for term in one.terms}
        return found | ({(): one.constant} if one.constant else {})

    assert extent.form is not None, extent.reason
    return terms(extent.form), None if extent.cap is None else terms(extent.cap)


# (name, source of the kernel `k`, {argument: (form, cap)}); every one must be validated.
FORMS = [
    ("deref_of_sum", "__kernel void k(__global float *a) { int i = get_global_id(0); *(a + i) = 1; }",
     {"a": ({(G0,): 1}, None)}),
    ("written_as_arrays", """__kernel void k(__global float a[], __local int t[64], __constant float c[4]) {
        t[get_local_id(0)] = 1; a[2 * get_global_id(0) + 1] = c[3]; }""",
     {"a": ({(G0,): 2}, None), "t": ({(L0,): 1}, None), "c": ({(): 4}, None)}),
    ("moving_pointer", """__kernel void k(__global const float *a, __global float *o) {
        __global const float *p = a + 3 * get_global_id(0); float s = *p++; s += *p++; s += *p; o[get_global_id(0)] = s; }""",
     {"a": ({(G0,): 3}, None), "o": ({(G0,): 1}, None)}),
    ("stepped_back", """__kernel void k(__global float *a) { __global float *p = a + get_global_id(0) + 5;
        --p; p -= 2; p[1] = 1; p[-1] = 2; }""", {"a": ({(G0,): 1, (): 3}, None)}),
    ("alias_by_condition", """__kernel void k(__global float *a, __global float *b, int n) {
        int i = get_global_id(0); __global float *p = n > 6 ? a + i : b + 2 * i; p[0] = 1; a[i] = b[i] = 0; }""",
     {"a": ({(G0,): 1}, None)}),
    ("vload_vstore", """__kernel void k(__global const float *a, __global float *o) {
        int i = get_global_id(0); vstore3(vload3(i, a + 2), i, o); }""",
     {"a": ({(G0,): 3, (): 2}, None), "o": ({(G0,): 3}, None)}),
    ("half_loads", """__kernel void k(__global const half *a, __global half *o) {
        int i = get_global_id(0); vstore_half4(vload_half4(i, a) * 2, i, o); vstore_half(vload_half(i, a), i, o); }""",
     {"a": ({(G0,): 4}, None), "o": ({(G0,): 4}, None)}),
    ("aligned_half_triples", """__kernel void k(__global const half *a, __global float *o) {
        int i = get_global_id(0); o[i] = vloada_half3(i, a).x; }""",
     {"a": ({(G0,): 4, (): -1}, None)}),
    ("nested_helpers", """float inner(__global const float *p, int i) { return p[i + 1] + *(p + 1); }
        float outer(__global const float *p, int i, int n) { return i < n ? inner(p + n, i) : 0; }
        __kernel void k(__global const float *a, __global float *o, int n) { int i = get_global_id(0); o[i] = outer(a + 2, i, n); }""",
     {"a": ({(G0,): 1, ("n",): 1, (): 3}, {("n",): 2, (): 3}), "o": ({(G0,): 1}, None)}),
    ("struct_members", """typedef struct { int a; float b[4]; } T;
        __kernel void k(__global T *s, __global float *o) { int g = get_global_id(0); o[g] = s[g].b[2] + (s + g + 1)->a; (&s[g])->b[g & 3] = 1; }""",
     {"s": ({(G0,): 1, (): 1}, None)}),
    ("lanes", """__kernel void k(__global float4 *a, __global float *o) { int g = get_global_id(0);
        a[g + 1].xy = (float2)(1, 2); o[g] = a[g].s3 + (a + g)->y; }""",
     {"a": ({(G0,): 1, (): 1}, None)}),
    ("in_macros", """#define AT(p, i) (p)[(i) * W + 1]
        #define W 4
        #define ADD(x) AT(o, x) += AT(a, (x) + 1)
        __kernel void k(__global const float *a, __global float *o) { int g = get_global_id(0); ADD(g); }""",
     {"a": ({(G0,): 4, (): 2}, None), "o": ({(G0,): 4, (): -2}, None)}),
    ("atomics_on_elements", """__kernel void k(__global int *a, __global uint *b) { int g = get_global_id(0);
        atomic_add(&a[2 * g], 1); atom_inc(b + g + 7); atomic_cmpxchg(&b[g], 0, 1); }""",
     {"a": ({(G0,): 2, (): -1}, None), "b": ({(G0,): 1, (): 7}, None)}),
    ("async_copies", """__kernel void k(__global const float *a, __global float *o, __local float *t) {
        event_t e = async_work_group_copy(t, a + get_group_id(0) * get_local_size(0), get_local_size(0), 0);
        wait_group_events(1, &e); o[get_global_id(0)] = t[get_local_id(0)]; }""",
     {"a": ({(G0,): 1}, None), "o": ({(G0,): 1}, None), "t": ({(L0,): 1}, None)}),
    ("strided_copy", """__kernel void k(__global const float *a, __global float *o, __local float *t) {
        event_t e = async_work_group_strided_copy(t, a, get_local_size(0), 3, 0);
        wait_group_events(1, &e); o[get_global_id(0)] = t[get_local_id(0)]; }""",
     {"a": ({(L0,): 3, (): -2}, None)}),
    ("local_arrays_left_alone", """__kernel void k(__global const float *a, __global float *o) {
        __local float t[256][2]; float p[3]; int l = get_local_id(0); p[l % 3] = 1; t[l][1] = a[get_global_id(0)];
        barrier(CLK_LOCAL_MEM_FENCE); o[get_global_id(0)] = t[l][1] + p[l % 3]; }""",
     {"a": ({(G0,): 1}, None), "o": ({(G0,): 1}, None)}),
    ("two_dimensions", """__kernel void k(__global float *a, int w) {
        a[get_global_id(1) * w + get_global_id(0)] = 1; }""",
     {"a": ({("global_size_1", "w"): 1, ("w",): -1, (G0,): 1}, None)}),
    ("three_dimensions", """__kernel void k(__global float *a) {
        a[(get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0) + get_global_id(0)] = 1; }""",
     {"a": ({(G0, G1, "global_size_2"): 1}, None)}),
    ("group_arithmetic", """__kernel void k(__global const float *a, __global float *o) {
        int i = get_group_id(0) * get_local_size(0) * 2 + get_local_id(0);
        float s = a[i] + a[i + get_local_size(0)]; if (get_local_id(0) == 0) o[get_group_id(0)] = s; }""",
     {"a": ({(G0,): 2}, None), "o": ({(N0,): 1}, None)}),
    ("products", """__kernel void k(__global float *a, __global float *b, int n) {
        if (get_global_id(0) == 0 && get_global_id(1) == 0) a[n * n - 1] = 1;
        b[get_global_size(0) * get_global_size(1) - 1 - get_global_id(0)] = 1; }""",
     {"a": ({("n", "n"): 1}, None), "b": ({(G0, G1): 1}, None)}),
    ("guard", "__kernel void k(__global float *a, int n) { int i = get_global_id(0); if (i < n) a[i] = 1; }",
     {"a": ({(G0,): 1}, {("n",): 1})}),
    ("early_return", """__kernel void k(__global float *a, const uint n, const uint m) { size_t i = get_global_id(0);
        if (i >= n) return; a[i * m + m - 1] = 1; }""",
     {"a": ({(G0, "m"): 1}, {("m", "n"): 1})}),
    ("guard_by_constant", "__kernel void k(__global float *a) { int i = get_global_id(0); if (i < 100) a[i] = 1; }",
     {"a": ({(G0,): 1}, {(): 100})}),
    ("grid_stride", """__kernel void k(__global float *a, int n) {
        for (int i = get_global_id(0); i < n; i += get_global_size(0)) a[i] = 1; }""",
     {"a": ({("n",): 1}, None)}),
    ("loop_of_one_statement", """__kernel void k(__global const float *a, __global float *o, int n) { float s = 0;
        for (int i = 0; i < n; ++i) for (int j = 0; j < 2; ++j) if (j) s += a[i * 2 + j]; else s -= a[i]; o[get_global_id(0)] = s; }""",
     {"a": ({("n",): 2}, None)}),
    ("nested_accesses_of_ids", """__kernel void k(__global const float *a, __global float *o, __local int *t) {
        int l = get_local_id(0); t[l] = l; barrier(CLK_LOCAL_MEM_FENCE); o[get_global_id(0)] = a[t[t[l]]]; }""",
     {"a": ({(L0,): 1}, None), "t": ({(L0,): 1}, None)}),
    ("casts", """__kernel void k(__global uchar *a, __global float *o) { int g = get_global_id(0);
        o[g] = ((__global const float *)(a + 16))[g]; }""", {"a": ({(G0,): 4, (): 16}, None)}),
    ("pointer_to_row", """__kernel void k(__global float (*a)[8]) { a[get_global_id(0)][3] = 1; }""",
     {"a": ({(G0,): 1}, None)}),
    ("constant_argument", """__kernel void k(__constant float *c, __global float *o) { int g = get_global_id(0); float s = 0;
        for (int i = 0; i < 25; ++i) s += c[i]; o[g] = s; }""", {"c": ({(): 25}, None)}),
    ("kernel_calls_kernel", """__kernel void other(__global float *p, int i) { p[i + 1] = 1; }
        __kernel void k(__global float *a) { other(a, get_global_id(0)); }""",
     {"a": ({(G0,): 1, (): 1}, None)}),
    ("required_size", """__kernel __attribute__((reqd_work_group_size(16, 1, 1))) void k(__global float *a) {
        a[get_group_id(0) * 16 + get_local_id(0)] = 1; }""", {"a": ({(G0,): 1}, None)}),
    ("lanes_by_number", """__kernel void k(__global float4 *a, __global float *o) { int g = get_global_id(0);
        o[g] = a[g + 2][1]; }""", {"a": ({(G0,): 1, (): 2}, None)}),
    ("inside_reinterpreting_casts", """__kernel void k(__global const float *a, __global uint *o) { int g = get_global_id(0);
        o[g] = as_uint(a[g + 1]) + as_uint2(vload2(g, a)).y; }""", {"a": ({(G0,): 2}, None)}),
    ("overloads", """float __attribute__((overloadable)) at(__global const float *p, int i) { return p[i]; }
        float __attribute__((overloadable)) at(__global const int *p, int i) { return p[i + 1]; }
        __kernel void k(__global const float *a, __global const int *b, __global float *o) { int g = get_global_id(0); o[g] = at(a, g) + at(b, g); }""",
     {"a": ({(G0,): 1}, None), "b": ({(G0,): 1, (): 1}, None)}),
    ("moved_parameters", """void put(__global float *p, float v) { p[3] = v; }
        __kernel void k(__global float *const a, volatile __global float *restrict b) { b += get_global_id(0) * 2; b[0] = 1; put(&a[get_global_id(0)], 2); }""",
     {"a": ({(G0,): 1, (): 3}, None), "b": ({(G0,): 2, (): -1}, None)}),
    ("pointers_in_a_table", """__kernel void k(__global float *a, __global float *b) { __global float *p[2] = {a, b + 1};
        for (int i = 0; i < 2; ++i) p[i][get_global_id(0)] = i; }""",
     {"a": ({(G0,): 1}, None), "b": ({(G0,): 1, (): 1}, None)}),
    ("division_by_contents", """__kernel void k(__global const int *a, __global int *o, int n) { int g = get_global_id(0);
        int v = a[g]; v /= a[g] % a[g]; o[g] = n / a[g] + v; }""", {"a": ({(G0,): 1}, None), "o": ({(G0,): 1}, None)}),
    ("index_by_a_lane", """typedef struct { float4 x, y; } T;
        __kernel void k(__global const T *a, __global float *o) { int2 v = (int2)(get_global_id(0) + 2, 1);
        o[get_global_id(0)] = a[v.x].y.z + a[v.y].x.x; }""", {"a": ({(G0,): 1, (): 2}, None)}),
    ("results_by_pointer", """void both(float *s, float *c, int *n) { *s = 1; *c = 2; *n += 1; }
        __kernel void k(__global float *a) { float s, c, f; int n = 3; both(&s, &c, &n);
        s += fract(c, &f) + sincos(s, &c); a[get_global_id(0) + n] = s + f; }""", {"a": ({(G0,): 1, (): 4}, None)}),
    ("up_to_the_end_of_an_array", """__kernel void k(__global float *a) { float t[16]; int n = 0;
        for (float *p = t, *end = &t[16]; p < end; *p++ = 1) ++n; a[get_global_id(0) + n + sizeof(t)] = t[3]; }""",
     {"a": ({(G0,): 1, (): 80}, None)}),
    ("array_as_parameter", """void put(float p[4], __local float q[64], int i) { *p = 2; q[i & 63] = p[i & 3]; float *r = &p[2]; *r = 3; }
        __kernel void k(__global float *a) { float t[4]; __local float s[64]; put(t, s, get_local_id(0)); a[get_global_id(0) + (int)t[2]] = 1; }""",
     {"a": ({(G0,): 1, (): 3}, None)}),
    ("array_in_a_structure", """typedef struct { int n; int v[3]; } T;
        void put(T *s, int i) { s->v[i] = i + 1; s->n += s->v[i]; }
        __kernel void k(__global float *a) { T s[2]; s[1].n = 4; put(&s[1], 2); put(s + 1, 1); a[get_global_id(0) + s[1].n] = 1; }""",
     {"a": ({(G0,): 1, (): 9}, None)}),
    ("lanes_by_pointer", """__kernel void k(__global float *a) { int4 v = (int4)(1, 2, 3, 4); int *p = (int *)&v;
        a[get_global_id(0) + p[2]] = 1; }""", {"a": ({(G0,): 1, (): 3}, None)}),
    ("array_of_constants", """__constant int W[5] = {1, 2, 3, 4, 5}; __constant char *__constant TEXT = "abc";
        int weight(__constant int *w, int i) { return w[i]; }
        __kernel void k(__global float *a) { a[get_global_id(0) + weight(W + 1, 2) + (TEXT[1] == 'b')] = 1; }""",
     {"a": ({(G0,): 1, (): 5}, None)}),
    ("strings_outlive_functions", """__constant char *digits(int n) { return n ? "12" : "30"; }
        __kernel void k(__global float *a) { a[get_global_id(0) + digits(1)[1] - '0'] = digits(0)[0]; }""",
     {"a": ({(G0,): 1, (): 2}, None)}),
    ("untouched", "__kernel void k(__global float *a, __global float *b) { a[get_global_id(0)] = 1; }",
     {"b": ({}, None)}),
    ("far_and_negative_cannot_fault", "__kernel void k(__global float *a) { a[get_global_id(0) * 100000000L + 5] = 1; }",
     {"a": ({(G0,): 100000000, (): 6 - 100000000}, None)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "expected"),
    slow_but_each(2, [(source, expected) for _, source, expected in FORMS]),
    ids=[name for name, _, _ in FORMS],
)
def test_each_form_of_access_is_seen_exactly(prober, source, expected):
    kernel, analysis = analysed(prober, source)
    assert analysis.failure == ""
    assert analysis.data_dependent is False
    for argument in kernel.signature.arguments:
        if argument.name in expected:
            extent = analysis.extent(argument.position)
            assert formula(extent) == expected[argument.name], argument.name
            assert extent.validated, extent.reason


def test_a_pointer_that_every_other_work_item_moves_along_gives_bounds(prober):
    _, analysis = analysed(
        prober,
        """__kernel void k(__global float *a, __global float *b) {
            int i = get_global_id(0); __global float *p = i % 2 ? a : b; p[i] = 1; }""",
    )
    for extent in analysis.extents:
        assert formula(extent) == ({(G0,): 1}, None)
        assert not extent.validated
        assert "upper bound" in extent.reason


def test_two_guards_of_two_dimensions_have_no_exact_form_but_a_bound(prober):
    _, analysis = analysed(
        prober,
        """__kernel void k(__global float *a, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1); if (x < w && y < h) a[y * w + x] = 1; }""",
    )
    (extent,) = analysis.extents
    assert not extent.validated
    assert "upper bound" in extent.reason
    assert "line 2" in extent.reason
    for g0, g1, w, h in [
        (8, 8, 20, 30),
        (40, 40, 7, 9),
        (40, 4, 7, 9),
        (5, 90, 7, 9),
        (7, 9, 7, 9),
    ]:
        touched = (min(g1, h) - 1) * w + min(g0, w)
        bound = extent.elements(launch_sizes((g0, g1), (1, 1), {"w": w, "h": h}))
        assert bound is not None
        assert bound >= touched
        if (g0 <= w) == (g1 <= h):
            assert bound == touched


def test_rows_of_a_sparse_matrix_are_a_prefix_and_columns_are_bounded(prober):
    kernel, analysis = analysed(
        prober,
        """__kernel void k(__global const int *rows, __global const int *cols, __global const float *vals,
                            __global const float *x, __global float *y, int n) {
            int r = get_global_id(0);
            if (r < n) { float s = 0; int end = rows[r + 1];
                for (int j = rows[r]; j < end; ++j) s += vals[j] * x[cols[j]];
                y[r] = s; } }""",
    )
    assert analysis.data_dependent
    rows, cols, vals, x, y = analysis.extents
    assert formula(rows) == ({(G0,): 1, (): 1}, {("n",): 1, (): 1})
    assert rows.validated
    assert y.validated
    assert [one.form for one in (cols, vals, x)] == [None] * 3
    assert "rows" in vals.reason
    assert "line 5" in vals.reason
    roles = {kernel.signature.arguments[one.position].name: one for one in analysis.index_roles}
    assert roles["rows"].rule is ContentsRule.PREFIX
    assert {target.position for target in roles["rows"].targets} == {1, 2}
    assert roles["cols"].rule is ContentsRule.BOUNDED
    (target,) = roles["cols"].targets
    assert (target.position, target.form.value({"value_limit": 50})) == (3, 50)


def test_a_branch_on_contents_gives_an_unvalidated_bound(prober):
    _, analysis = analysed(
        prober,
        """__kernel void k(__global const int *mask, __global float *o) {
            int i = get_global_id(0); if (mask[i]) o[i] = 1; }""",
    )
    mask, o = analysis.extents
    assert analysis.data_dependent
    assert mask.validated
    assert formula(o) == ({(G0,): 1}, None)
    assert not o.validated
    assert "contents" in o.reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("__kernel void k(__global float *a) { a[get_global_id(0) ^ 5] = 1; }", "line 1"),
        ("__kernel void k(__global float *a, int n) { a[n / 3 + get_global_id(0)] = 1; }", ""),
        ("__kernel void k(__global float *a) { int i = get_global_id(0); a[i - 1] = 1; }", "below its start"),
        ("__kernel void k(__global float *a) { int i = get_global_id(0); if (i < 9000000) a[i] = 1; }", "9000000"),
        ("__kernel void k(__global float *a, float f) { a[(int)(get_global_id(0) * f)] = 1; }", ""),
    ],
    ids=["xor", "rational", "negative", "far_guard", "float_scalar"],
)  # fmt: skip
def test_what_is_not_certain_is_not_validated_and_says_why(prober, source, reason):
    _, analysis = analysed(prober, source)
    (extent,) = analysis.extents
    assert not extent.validated
    assert extent.reason
    assert reason in extent.reason


THROUGH_POINTERS = (
    "__local float *p = t; p[l] = 1;",
    "__local float *p = t + 32; p[l - 32] = 1;",
    "__local float *p = &t[l]; *p = 1;",
    "*(t + l) = 1;",
    "__local float *p = l < 2000 ? t : t + 1; p += l; p[0] = 1;",
    "((__local uint *)t)[l] = 1u;",
    "atomic_inc((__local uint *)t + l);",
    "vstore2((float2)(1), l / 2, t);",
    "event_t e = async_work_group_copy(t, a, get_local_size(0), 0); wait_group_events(1, &e);",
)


@pytest.mark.parametrize(
    ("source", "smallest"),
    slow_but_each(3, [
        ("__kernel void k(__global float *a) { __local float t[256]; t[get_local_id(0)] = a[get_global_id(0)];"
         " barrier(CLK_LOCAL_MEM_FENCE); a[get_global_id(0)] = t[0]; }", ((288,),)),
        ("__kernel void k(__global float *a, int n) { __local float t[20]; if (get_global_id(0) < n) t[get_local_id(0)] = 1;"
         " barrier(CLK_LOCAL_MEM_FENCE); a[get_global_id(0)] = t[0]; }", ((32,),)),
        ("__kernel void k(__global float *a) { __local float t[16][16]; int x = get_local_id(0), y = get_local_id(1);"
         " t[y][x] = a[get_global_id(1) * get_global_size(0) + get_global_id(0)]; barrier(CLK_LOCAL_MEM_FENCE);"
         " a[get_global_id(1) * get_global_size(0) + get_global_id(0)] = t[y][0]; }", ((8, 32), (32, 2), (64, 1))),
        ("__kernel void k(__global float *a, int n) { float p[4]; for (int i = 0; i < n; i++) p[i] = a[i];"
         " a[get_local_id(0)] = p[0]; }", ()),
        ("__kernel void k(__global float *a) { __local float t[1024]; t[get_local_id(0)] = 1; a[get_global_id(0)] = t[0]; }", ()),
        *((f"""__kernel void k(__global float *a) {{ __local float t[64]; int l = get_local_id(0); {statement}
            barrier(CLK_LOCAL_MEM_FENCE); a[get_global_id(0)] = t[l & 63]; }}""", ((96,),)) for statement in THROUGH_POINTERS),
        ("""void st(__local float *s, int l) { s[l] = 1; } __kernel void k(__global float *a) { __local float t[16][16];
            int x = get_local_id(0), y = get_local_id(1); st(t[y], x); barrier(CLK_LOCAL_MEM_FENCE);
            a[get_global_id(1) * get_global_size(0) + get_global_id(0)] = t[y & 15][x & 15]; }""", ((8, 32), (32, 16))),
    ]),
    ids=["line", "guarded", "tile", "by_scalar", "large_enough", *THROUGH_POINTERS, "rows"],
)  # fmt: skip
def test_local_sizes_that_an_array_is_too_small_for_are_told(prober, source, smallest):
    _, found = analysed(prober, source)
    assert found.overflowing_local_sizes == smallest


def test_what_lies_beside_an_array_is_not_overwritten_through_a_pointer(prober):
    _, found = analysed(prober, """void st(__local float *s, int l, float v) { s[l] = v; }
        void through(__local float *s, int l, float v) { st(s + 1, l - 1, v); }
        __kernel void k(__global float *a, __global float *o) { __local float s[64]; __local int beside[4]; int l = get_local_id(0);
        if (l < 4) beside[l] = 3; barrier(CLK_LOCAL_MEM_FENCE); through(s, l, 1000000.f); barrier(CLK_LOCAL_MEM_FENCE);
        o[get_global_id(0)] = a[beside[l & 3]]; }""")  # fmt: skip
    assert found.overflowing_local_sizes == ((96,),)
    assert formula(found.extents[0]) == ({(): 4}, None)
    assert found.extents[0].validated


@pytest.mark.parametrize(
    "body",
    ["float t[16], *p = t; for (int j = 0; j < n; j++) p[j * 1000000] = j; a[i] = p[n - 1];",
     "float x = i; *(float16 *)&x = (float16)(n); a[i] = x;"],
)  # fmt: skip
def test_private_memory_is_not_overwritten_through_a_pointer(prober, body):
    source = f"__kernel void k(__global float *a, int n) {{ int i = get_global_id(0); {body} }}"
    _, found = analysed(prober, source)
    assert "beyond its end in nearly every probe" in found.failure


@pytest.mark.parametrize(
    "statement",
    ["__local int *p = t; p[d[i] & 63] = 1;", "atomic_inc(&t[d[i] & 63]);", "atomic_inc(t + (d[i] & 63));"],
)  # fmt: skip
def test_an_index_that_comes_from_contents_is_seen_through_a_pointer(prober, statement):
    _, found = analysed(prober, f"""__kernel void k(__global const int *d, __global float *o) {{ __local int t[64];
        int i = get_global_id(0); {statement} barrier(CLK_LOCAL_MEM_FENCE); o[i] = t[i & 63]; }}""")  # fmt: skip
    assert found.data_dependent
    assert all(extent.validated for extent in found.extents)


def test_a_pointer_that_another_work_item_made_is_not_followed(prober):
    _, found = analysed(prober, """__kernel void k(__global float *a) { __local float t[64]; __local float *__local p;
        if (get_local_id(0) == 0) p = t; barrier(CLK_LOCAL_MEM_FENCE); p[get_local_id(0) & 63] = 1; a[get_global_id(0)] = 2; }""")  # fmt: skip
    assert "a pointer that comes from no argument and no variable" in found.failure


BARRIER_UNDER_GUARD = """__kernel void k(__global const float *v, __global const int *cols, __global const int *rows, int n, int w, __global float *o) {
    int t = get_local_id(0), id = t & (w - 1); int row = get_group_id(0) * (get_local_size(0) / w) + t / w;
    __local float part[128]; part[t] = 0;
    if (row < n) {
        float s = 0; for (int j = rows[row] + id; j < rows[row + 1]; j += w) s += v[cols[j]];
        part[t] = s; barrier(CLK_LOCAL_MEM_FENCE);
        for (int b = w / 2; b > 0; b /= 2) { if (id < b) part[t] += part[t + b]; barrier(CLK_LOCAL_MEM_FENCE); }
        if (id == 0) o[row] = part[t];
    } }"""


def test_a_barrier_that_not_all_work_items_reach_is_left_out(prober):
    (kernel,) = kernels_from_source(BARRIER_UNDER_GUARD)
    limits = probe_limits(prober.device)
    found = analyse_kernel(kernel, prober, limits, without_barriers=True)
    assert not any(one.validated for one in found.extents)
    assert all("without its barriers" in one.reason for one in found.extents)
    rules = {role.position: role.rule for role in found.index_roles}
    assert rules == {1: ContentsRule.BOUNDED, 2: ContentsRule.PREFIX}
    assert found.overflowing_local_sizes


@pytest.mark.slow
def test_loops_with_barriers_that_contents_make_long_are_analysed_in_time(prober):
    _, found = analysed(prober, """__kernel void k(__global float *a, __global const int *m, int turns) {
        __local float t[256]; int l = get_local_id(0), n = m[get_group_id(0)];
        for (int j = 0; j < turns; j++) for (int i = 0; i < n * n; i++) { t[l] = a[i]; barrier(CLK_LOCAL_MEM_FENCE); }
        a[get_global_id(0)] = t[0]; }""")  # fmt: skip
    assert not found.failure
    assert found.data_dependent
    assert [role.position for role in found.index_roles] == [1]


def test_an_array_of_a_few_elements_does_not_keep_a_kernel_from_being_analysed(prober):
    kernel, found = analysed(prober, """__kernel void k(__global float *a) { __local float t[4];
        t[get_local_id(0)] = a[get_global_id(0)]; barrier(CLK_LOCAL_MEM_FENCE); a[get_global_id(0)] = t[0]; }""")  # fmt: skip
    assert found.overflowing_local_sizes == ((8,),)
    assert found.extents[0].validated
    assert formula(found.extents[0]) == ({(G0,): 1}, None)
    assert kernel.signature is not None


@pytest.mark.parametrize(
    "source",
    [
        "__kernel void k(__global float *a) { while (a[0] < 2) a[0] = 1; }",
        "__kernel void k(__global float *a, int n) { for (;;) { if (n > 1 << 30) break; } a[0] = 1; }",
    ],
)
def test_an_endless_loop_is_cut_off(prober, source):
    _, analysis = analysed(prober, source)
    assert not any(extent.validated for extent in analysis.extents)


def test_nested_loops_are_cut_off_together(prober):
    """Else each of 10**12 iterations of the outer loops would run 64 iterations of the inner one."""
    source = """__kernel void k(__global int *a) {
        for (long i = 0; i < 1000000; ++i) for (long j = 0; j < 1000000; ++j)
            for (long l = 0; l < 1000000; ++l) a[l & 7] += i ^ j; }"""
    (kernel,) = kernels_from_source(source)
    launch = ProbeLaunch(
        global_size=(512,), local_size=(1,), scalars={}, seed=1, default_limit=8, max_turns=2**17
    )
    (record,) = prober.run(kernel, instrument(kernel.source, kernel.name), [launch])
    assert record.exceeded
    assert 2**17 <= record.turns <= 2**19


def test_many_short_loops_are_not_cut_off(prober):
    """More iterations than the limit, but less than the 64 of a work-item that are checked."""
    source = """__kernel void k(__global float *a) { int g = get_global_id(0); float s = 0;
        for (int i = 0; i < 60; ++i) s += a[g * 60 + i];
        a[g * 60] = s; }"""
    (kernel,) = kernels_from_source(source)
    launch = ProbeLaunch(
        global_size=(8192,), local_size=(1,), scalars={}, seed=1, default_limit=8, max_turns=2**17
    )
    (record,) = prober.run(kernel, instrument(kernel.source, kernel.name), [launch])
    assert record.turns == 60 * 8192
    assert not record.exceeded
    assert record.access_ranges[0].end_bytes == 4 * 60 * 8192


def test_short_loops_of_large_launches_refute_a_form(prober):
    """Only launches of more than 2**16 work-items access more than 60 elements."""
    _, found = analysed(prober, """__kernel void k(__global const float *a, __global float *b) {
        ulong g = get_global_id(0); int far = (int)((g * g) >> 33); float s = 0;
        for (int i = 0; i < 60; ++i) s += a[far + i];
        b[g] = s; }""")  # fmt: skip
    assert not found.extents[0].validated
    assert found.extents[1].validated


def test_equal_kernels_are_analysed_alike(prober):
    source = FORMS[1][1]
    assert analysed(prober, source)[1] == analysed(prober, source)[1]
