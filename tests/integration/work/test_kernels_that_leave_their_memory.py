"""A kernel's copy keeps to its own memory, whatever pointers the kernel makes up.

Each kernel ended its process before, at an address that it chose.
"""

from __future__ import annotations

import pytest

from llmperf_common.failures import Failure
from llmperf_common.features.work import Work
from tests.support.factories.launch_factory import configs_of, kernel_of
from workers.device.interface import DeviceRef
from workers.work.children import count_work

pytestmark = pytest.mark.opencl

HEAD = "__kernel void k(__global ulong *a, int n, ulong at) { int i = get_global_id(0); "
KERNELS = {
    "a complex number": HEAD + "_Complex float v = 5; *(_Complex float *)at = v; a[i] = 1; }",
    "a structure larger than the spare memory": (
        "struct big { ulong x[20000]; };\n"
        + HEAD
        + "struct big b; for (int j = 0; j < 20000; j++) b.x[j] = 0x4141; "
        "*(__global struct big *)at = b; a[i] = 1; }"
    ),
    "two structures of one name": (
        HEAD + "{ struct s { ulong x[2]; }; struct s b; b.x[0] = 1; *(__global struct s *)a = b; } "
        "{ struct s { ulong x[60000]; }; struct s b; for (int j = 0; j < 60000; j++) b.x[j] = 1; "
        "*(__global struct s *)a = b; } }"
    ),
    "a pointer to a variable that is gone": (
        "ulong *__attribute__((noinline)) h(ulong x) "
        "{ ulong q[128]; for (int j = 0; j < 128; j++) q[j] = x; return q; }\n"
        "ulong __attribute__((noinline)) v(ulong *p, ulong x) "
        "{ ulong r[4]; r[0] = x; for (int j = 0; j < 128; j++) p[j] = x; return r[0]; }\n"
        + HEAD
        + "ulong *p = h(n); a[i] = v(p, 0x4141414141414141ul); }"
    ),
    "a pointer to a parameter that is gone": (
        "struct s { ulong q[512]; };\n"
        "ulong *__attribute__((noinline)) h(struct s b) { return b.q; }\n"
        "ulong *__attribute__((noinline)) g(ulong x) "
        "{ struct s b; for (int j = 0; j < 512; j++) b.q[j] = x; return h(b); }\n"
        "void __attribute__((noinline)) w(ulong *p, ulong x) "
        "{ for (int j = 511; j >= 0; j--) p[j] = x; }\n"
        "ulong __attribute__((noinline)) v(ulong *p, ulong x) { w(p, x); return x; }\n"
        + HEAD
        + "ulong *p = g(i); a[i] = v(p, 0x4141414141414141ul); }"
    ),
    "constant memory": HEAD + "a[i] = *(__constant ulong *)at; }",
    "a string to print": HEAD + 'printf("%s", (char *)at); a[i] = 1; }',
    "an array without elements": (
        HEAD + "volatile struct { int b; ulong z[0]; } s; s.z[i + 0x100000000ul] = 5; a[i] = 1; }"
    ),
    "an array larger than the stack": (
        HEAD
        + "volatile char b[0x1000000000]; for (int j = 0; j < 4000; j++) { b[j] = n; } a[i] = 1; }"
    ),
}


@pytest.mark.parametrize("case", KERNELS)
def test_no_count_ends_its_process(ref: DeviceRef, case: str) -> None:
    kernel = kernel_of(KERNELS[case])
    for outcome in count_work(kernel, configs_of(kernel, 64, 128), ref):
        assert isinstance(outcome, Work) or "signal" not in outcome.detail, outcome
        if isinstance(outcome, Work):
            assert outcome.active_items > 0


def test_structures_of_one_name_have_their_own_sizes(ref: DeviceRef) -> None:
    """They had the size of the first one."""
    body = (
        "{{ struct {0} {{ float x[2]; }}; struct {0} b; b.x[0] = i; b.x[1] = i; "
        "((__global struct {0} *)a)[i] = b; }} "
        "{{ struct {1} {{ float x[16]; }}; struct {1} b; for (int j = 0; j < 16; j++) b.x[j] = j; "
        "((__global struct {1} *)a)[i] = b; }} }}"
    )
    found = []
    for names in (("s", "s"), ("s", "r")):
        kernel = kernel_of(HEAD + body.format(*names))
        (work,) = count_work(kernel, configs_of(kernel, 64), ref)
        assert not isinstance(work, Failure), work
        found.append(work.global_store_bytes)
    assert found[0] == found[1]


def test_a_printf_leaves_the_counts_of_its_arguments(ref: DeviceRef) -> None:
    kernel = kernel_of(HEAD + 'printf("%d %f\\n", i, (double)a[i]); printf("end"); a[i] = 1; }')
    (work,) = count_work(kernel, configs_of(kernel, 64), ref)
    assert not isinstance(work, Failure), work
    assert (work.global_loads, work.global_stores) == (64, 64)


HONEST = """
typedef struct { float a; float b; } pair;
pair made(float x) {
    float t[2] = {x, x + 1}; float *p = t; pair r; r.a = p[0]; r.b = p[1];
    if (x > 3) return r; else return (pair){p[1], p[0]};
}
float4 widened(float x) {
    float t[4]; float *p = t; for (int j = 0; j < 4; j++) p[j] = x;
    switch ((int)x) { case 0: return (float4)(p[0]); default: return vload4(0, p); }
}
void copied(float *o, float x) { float t = x; float *p = &t; if (*p < 0) return; *o = *p; }
int read(int x) { return x + 1; }
int last_of_two(int x) { int y = x, z = 3; int *p = &y; *p += 1; return *p, z; }
void both(float *o, float x) { float t = x; float *p = &t; return copied(o, *p); }
int of_text(__constant char *s, int i) { return s[i & 3]; }
__constant float mask[2] = {1, 2};
__constant float row[2] = {1, 2};
__constant int index[4] = {3, 2, 1, 0};
__kernel void k(__global float *a, int n) {
    int i = get_global_id(0); float q = 0; copied(&q, a[i]);
    pair r = made(q); float4 v = widened(r.a);
    if (i < 0) printf("%f\\n", v.x); else printf("none");
    __constant char *text = "hello";
    both(&q, q);
    for (int j = 0; j < last_of_two(i); j++) q += mask[j & 1] * row[j & 1];
    a[i] = r.b + v.x + v.s3 + index[read(i) & 3] + q + of_text("abcd", i) + text[i & 3];
}
"""


def test_helpers_with_pointers_to_their_variables_are_counted(ref: DeviceRef) -> None:
    """Their results are kept in a variable while their pointers become invalid."""
    kernel = kernel_of(HONEST)
    (work,) = count_work(kernel, configs_of(kernel, 64), ref)
    assert not isinstance(work, Failure), work
    assert (work.global_loads, work.global_stores) == (64, 64)
    assert work.loop_turns == 64 * (4 + 3)
