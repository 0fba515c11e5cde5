"""What a source says about its kernels: arguments, access, dimensions, refusals."""

import pytest

from llmperf_common.failures import Failure, FailureCode, Stage
from llmperf_common.records import Access, ArgumentKind, Signature
from tests.support.reading import read_signatures
from workers.device.opencl.build_options import parser_options
from workers.source.front_end import read_kernels
from workers.source.kernel_headers import mentions_kernel


def signature(source: str, build_options: str = "") -> Signature:
    found = read_signatures(source, build_options)
    assert isinstance(found[0].signature, Signature), found[0].signature
    return found[0].signature


def failure(source: str) -> Failure:
    found = read_kernels(source)
    outcome = found if isinstance(found, Failure) else found[0].failure
    assert isinstance(outcome, Failure)
    return outcome


def accesses(parameters: str, body: str, helpers: str = "") -> dict[str, Access]:
    found = signature(f"{helpers}\n__kernel void k({parameters}) {{ {body} }}")
    return {argument.name: argument.access for argument in found.arguments}


def test_arguments_have_types_sizes_and_kinds():
    found = signature(
        "typedef float real_t; typedef struct { float x, y, z; } point;\n"
        "kernel void k(__global const float3 *a, __constant uchar *lut, local double *tile, unsigned int n,"
        " real_t f, global point *p, float4 v, size_t s) {}"
    )
    rows = [
        (a.name, a.kind, a.type_name, a.scalar_type, a.vector_width, a.element_bytes)
        for a in found.arguments
    ]
    assert rows == [
        ("a", ArgumentKind.GLOBAL_BUFFER, "float3*", "float", 3, 16),
        ("lut", ArgumentKind.CONSTANT_BUFFER, "uchar*", "uchar", 1, 1),
        ("tile", ArgumentKind.LOCAL_BUFFER, "double*", "double", 1, 8),
        ("n", ArgumentKind.SCALAR, "uint", "uint", 1, 4),
        ("f", ArgumentKind.SCALAR, "real_t", "float", 1, 4),
        ("p", ArgumentKind.GLOBAL_BUFFER, "point*", "float", 3, 12),
        ("v", ArgumentKind.SCALAR, "float4", "float", 4, 16),
        ("s", ArgumentKind.SCALAR, "size_t", "ulong", 1, 8),
    ]
    assert [a.is_const for a in found.arguments[:2]] == [True, False]


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("read_only image2d_t picture", "'picture'.*'image2d_t'.*image"),
        ("sampler_t s", "'s'.*sampler"),
        ("read_only pipe int p", "'p'.*pipe"),
        ("global float **rows", "'rows'.*float"),
        ("struct S s", "'s'.*structure"),
        ("global struct P *s", "'s'.*'struct P\\*'.*structure"),
        ("global struct U *s", "'s'.*structure.*overlapping"),
        ("global struct K *s", "'s'.*structure.*packed"),
        ("global struct B *s", "'s'.*structure"),
        ("global struct M *s", "'s'.*structure"),
        ("global void *v", "'v'.*'void\\*'"),
        ("bool b", "'b'.*'bool'"),
        ("float *p", "'p'"),
    ],
)
def test_what_cannot_be_filled_is_unsupported_and_named(parameter, words):
    found = failure(
        "struct S { int a; float b; }; struct P { int a; global float *b; };"
        "struct U { int a; union { int i; float f; } u; }; struct B { int a : 3; float b; };"
        "struct __attribute__((packed)) K { char a; int b; }; struct M { struct S many[33]; };\n"
        f"kernel void k({parameter}) {{}}"
    )
    assert (found.code, found.stage) == (FailureCode.UNSUPPORTED, Stage.SIGNATURE)
    assert __import__("re").search(words, found.detail), found.detail


def leaves(members: str) -> list[tuple[int, str, int]]:
    found = signature(f"typedef struct {{ {members} }} S;\nkernel void k(global S *s) {{}}")
    (argument,) = found.arguments
    assert (argument.kind, argument.scalar_type) == (ArgumentKind.GLOBAL_BUFFER, "")
    return [(one.offset_bytes, one.scalar_type, one.count) for one in argument.leaves]


def test_structures_are_read_member_by_member():
    assert leaves("float x, y, z; int id;") == [(0, "float", 3), (12, "int", 1)]
    assert leaves("char t; double d;") == [(0, "char", 1), (8, "double", 1)]
    assert leaves("int i; float3 v; uchar c[3];") == [
        (0, "int", 1), (16, "float", 4), (32, "uchar", 3),
    ]  # fmt: skip
    assert leaves("struct { int i; float f; } in[2]; long l;") == [
        (0, "int", 1), (4, "float", 1), (8, "int", 1), (12, "float", 1), (16, "long", 1),
    ]  # fmt: skip
    assert leaves("int i; struct { short s; half h; }; bool b;") == [
        (0, "int", 1), (4, "short", 1), (6, "half", 1), (8, "bool", 1),
    ]  # fmt: skip
    assert leaves("int m[2000]; float f;") == [(0, "int", 2000), (8000, "float", 1)]


def test_structures_of_one_type_have_no_leaves():
    found = signature("typedef struct { float x, y; } S;\nkernel void k(global S *s) {}")
    assert (found.arguments[0].scalar_type, found.arguments[0].leaves) == ("float", ())


def test_structures_in_constant_and_local_memory():
    found = signature(
        "typedef struct { int i; float f; } S;\nkernel void k(constant S *c, local S *l, global S (*a)[2]) {}"
    )
    kinds = [ArgumentKind.CONSTANT_BUFFER, ArgumentKind.LOCAL_BUFFER, ArgumentKind.GLOBAL_BUFFER]
    assert [one.kind for one in found.arguments] == kinds
    assert [len(one.leaves) for one in found.arguments] == [2, 2, 4]


BUFFERS = "global float *p, global const float *c, global int *q, int n"


@pytest.mark.parametrize(
    ("body", "p"),
    [
        ("p[n] = c[n];", Access.WRITE),
        ("*p = 1;", Access.WRITE),
        ("*(p + n) = 1; p[2] = 3;", Access.WRITE),
        ("vstore4((float4)(1), n, p);", Access.WRITE),
        ("q[0] = p[n];", Access.READ),
        ("q[0] = vload4(n, p).x;", Access.READ),
        ("p[n] = p[n + 1];", Access.READ_WRITE),
        ("p[n] += 1;", Access.READ_WRITE),
        ("p[n]++;", Access.READ_WRITE),
        ("p[q[n]] = 1;", Access.WRITE),
        ("int a = sizeof(p[0]);", Access.NONE),
        ("global float *r = p + n; *r = 1;", Access.WRITE),
        ("global float *r = p; r++; float x = *r; q[0] = x;", Access.READ),
        ("global float *r; r = n ? p : p + 1; r[0] = r[1];", Access.READ_WRITE),
        ("global float4 *v = (global float4 *)p; v[n] = (float4)(0);", Access.WRITE),
        ("global float *rows[2] = {p, p}; rows[0][1] = 2;", Access.READ_WRITE),
        ("global float **pp = &p; **pp = 1;", Access.READ_WRITE),
        ("ulong address = (ulong)p; q[0] = address;", Access.READ_WRITE),
        ("unknown(p);", Access.READ_WRITE),
        ("local float t[4]; async_work_group_copy(t, p, 4, 0);", Access.READ),
        ("local float t[4]; async_work_group_copy(p, t, 4, 0);", Access.WRITE),
    ],
)
def test_access_of_a_buffer(body, p):
    assert accesses(BUFFERS, body)["p"] is p


def test_atomics_read_and_write():
    assert accesses(BUFFERS, "atomic_add(&q[n], 1);")["q"] is Access.READ_WRITE


@pytest.mark.parametrize(
    ("helper", "expected"),
    [
        ("void f(global float *x) { x[0] = 1; }", Access.WRITE),
        ("float f(global const float *x) { return x[0]; }", Access.READ),
        ("float f(global float *x) { return x[0]; }", Access.READ),
        ("void f(global float *x);", Access.READ_WRITE),
        ("void f(global float *x) { if (x[0]) f(x + 1); }", Access.READ_WRITE),
        ("global float *g(global float *x) { return x + 1; } void f(global float *x) { *g(x) = 2; }", Access.WRITE),
    ],
)  # fmt: skip
def test_access_follows_helpers(helper, expected):
    assert accesses("global float *p", "f(p);", helper)["p"] is expected


def test_access_of_nested_structures_and_arrays():
    source = "typedef struct { float v[4]; float w; } item;"
    found = accesses("global item *p, int n", "p[n].v[2] = p[n].w;", source)
    assert found["p"] is Access.READ_WRITE
    assert accesses("global item *p, int n", "p[n].v[2] = 1;", source)["p"] is Access.WRITE
    assert accesses("global item *p", "p->w = 1;", source)["p"] is Access.WRITE


def test_missing_macros_leave_a_cautious_signature():
    found = signature("kernel void k(global float *p, global const float *c) { p[0] = SCALE; }")
    assert [a.access for a in found.arguments] == [Access.READ_WRITE, Access.READ]
    defined = signature(
        "kernel void k(global float *p, global const float *c) { p[0] = SCALE; }", "-DSCALE=2 -w"
    )
    assert [a.access for a in defined.arguments] == [Access.WRITE, Access.NONE]


@pytest.mark.parametrize(
    ("body", "attribute", "dims"),
    [
        ("", "", 1),
        ("get_global_id(0);", "", 1),
        ("get_group_id(1);", "", 2),
        ("row();", "", 3),
        ("", "__attribute__((reqd_work_group_size(N * 2, 4, 1)))", 2),
        ("", "__attribute__((reqd_work_group_size(64, 1, 1)))", 1),
    ],
)
def test_dims(body, attribute, dims):
    source = f"#define N 8\nint row() {{ return get_local_size(2); }}\n{attribute} kernel void k() {{ {body} }}"
    found = signature(source)
    assert found.dims == dims
    if "N" in attribute:
        assert found.required_local_size == (16, 4, 1)


def test_static_local_bytes_count_arrays_and_scalars():
    assert (
        signature(
            "kernel void k() { __local float t[4][17]; __local int flag; }"
        ).static_local_bytes
        == 4 * 17 * 4 + 4
    )


def test_several_kernels_keep_their_order_and_macro_spelling():
    found = read_signatures(
        "#define K __kernel void\nK b(global int *x) {}\nK a(global int *x) {}\nvoid helper() {}"
    )
    assert [one.name for one in found] == ["b", "a"]


def test_a_text_without_kernels_has_none():
    assert read_kernels("// a kernel, perhaps\nfloat f(float x) { return x; }") == ()
    assert not mentions_kernel('/* kernel */ int x; // __kernel "')


@pytest.mark.parametrize(
    "source",
    [
        "__kernel void k(__global int *x);",
        "__kernel )(",
        "#include <nowhere.h>\n__kernel",
    ],
)
def test_a_source_of_which_nothing_can_be_made_is_a_build_error(source):
    assert failure(source).code is FailureCode.BUILD_ERROR


def test_a_kernel_that_the_parser_lost_is_not_skipped():
    source = "kernel void good(global int *x) {}\nint f() { return 0; kernel void lost(global int *x) { x[0] = 1; }"
    found = read_kernels(source)
    assert isinstance(found, tuple)
    assert [one.name for one in found] == ["good", "lost"]
    assert isinstance(found[0].signature, Signature)


def test_an_old_name_that_became_a_keyword():
    found = signature("kernel void k(global int *p, int pipe) { p[0] = pipe; }")
    assert [a.name for a in found.arguments] == ["p", "pipe"]
    assert found.arguments[0].access is Access.WRITE


def test_a_reference_to_a_builtin_function_does_not_crash_libclang():
    assert signature("kernel void k(global float *p) { p[0] = -(__builtin_inff()); }").dims == 1


def test_parser_options_keep_what_the_parser_needs():
    assert parser_options("-DA='1 2' -U B -cl-mad-enable -I x -cl-std=CL1.1 -Werror -D") == (
        "-DA=1 2", "-U", "B", "-cl-std=CL1.1",
    )  # fmt: skip


def test_reading_is_deterministic():
    source = (
        "kernel void k(global float *p, int n) { for (int i = 0; i < n; ++i) p[i] = sin(p[i]); }"
    )
    assert read_signatures(source) == read_signatures(source)
