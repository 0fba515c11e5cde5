"""Which branches and indices of a kernel depend on values of other work-items."""

from __future__ import annotations

import itertools

import pytest

from workers.source.clang.flow import Origin
from workers.source.clang.influence import Influence, influence_of
from workers.source.clang.parse import parse

HEAD = "__kernel void k(__global const float *a, __global float *o, volatile __global int *c, int n, __local float *t)"
ID = " int g = get_global_id(0), l = get_local_id(0); "
BARRIER = " barrier(CLK_LOCAL_MEM_FENCE); "
GLOBAL_BARRIER = " barrier(CLK_GLOBAL_MEM_FENCE); "


def influence(body: str, before: str = "") -> Influence:
    parsed = parse(f"{before} {HEAD} {{ {ID} {body} }}")
    assert not parsed.errors, parsed.errors
    return influence_of(parsed, parsed.kernels[0])


@pytest.mark.parametrize(
    "body",
    [
        "int s; while ((s = atomic_inc(c)) < n) o[s] = a[s];",
        "if (atomic_add(c, 3) < n) o[g] = a[g];",
        "int s = atomic_inc(c); int r = s + 1; for (int i = 0; i < r; ++i) o[g] += a[i];",
        "o[g] = atomic_xchg(&c[g], 1) ? a[g] : 0;",
        "int s = atom_inc(c); if (g < n && a[s] > 0) o[g] = 1;",
        "switch (atomic_dec(c)) { case 0: o[g] = 1; }",
        "if (atomic_cmpxchg(&c[g], 0, 1) == 0) o[g] = 1;",
        "int part[4]; part[l & 3] = atomic_inc(c); if (part[0] < n) o[g] = 1;",
        "__local int last; if (l == 0) last = atomic_inc(c) == n;"
        + BARRIER
        + "if (last) o[g] = 1;",
    ],
)
def test_branches_on_results_of_global_atomics(body: str) -> None:
    assert influence(body).branches & Origin.ATOMIC


@pytest.mark.parametrize(
    ("helpers", "body"),
    [
        ("int next(volatile __global int *q) { return atomic_inc(q); }", "if (next(c) < n) o[g] = 1;"),
        ("void next(volatile __global int *q, int *s) { *s = atomic_inc(q); }", "int s; next(c, &s); if (s < n) o[g] = 1;"),
        ("void work(__global float *p, int s) { if (s > 3) p[0] = 1; }", "work(o, atomic_inc(c));"),
    ],
)  # fmt: skip
def test_results_are_followed_through_helpers(helpers: str, body: str) -> None:
    assert influence(body, helpers).branches == Origin.ATOMIC


@pytest.mark.parametrize(
    ("body", "appended"),
    [
        ("int s = atomic_inc(c); o[2 * s] = a[g];", {1}),
        ("__global float *p = o + atomic_inc(c); p[1] = a[g];", {1}),
        ("int s = atomic_inc(c); vstore4((float4)(1), s, o);", {1}),
        ("int s = atomic_inc(c); vstore4((float4)(s), g, o);", set()),
        ("int2 v; v.x = atomic_inc(c); o[v.x] = 1;", {1}),
        ("int2 v = (int2)(atomic_inc(c), 0); o[v.x] = 1;", {1}),
        ("int2 v = 0; v.y = atomic_inc(c); *(o + v.y) = 1;", {1}),
        ("o[g] = atomic_inc(c);", set()),
        ("o[g] = atomic_inc(c) < n ? 1 : 0;", set()),
        ("if (a[g] > 0) atomic_inc(c);", set()),
        ("o[g] = atomic_inc(c); __global float *p = &o[g]; p[1] = 0;", set()),
    ],
)
def test_results_as_indices_or_values_decide_no_branch(body: str, appended: set[int]) -> None:
    found = influence(body)
    assert found.branches == Origin.NOTHING
    assert found.appended == appended
    assert bool(found.indices & Origin.ATOMIC) == bool(appended)


@pytest.mark.parametrize(
    "body",
    [
        "t[l] = a[g];" + BARRIER + "if (t[l ^ 1] > t[l]) o[g] = 1;",
        "__local int any; any = 0;"
        + BARRIER
        + "if (a[g] > 0) any = 1;"
        + BARRIER
        + "if (any) o[g] = 1;",
        "__local float u[64]; u[l] = a[g];"
        + BARRIER
        + "float m = u[0]; int k = m; while (k--) o[g] += 1;",
        "o[g] = a[g];" + GLOBAL_BARRIER + "if (o[g ^ 1] > 0) o[g] = 1;",
        "__local int f; int old = atomic_inc(&f);" + BARRIER + "if (old == 0) o[g] = 1;",
    ],
)
def test_branches_on_memory_that_others_write(body: str) -> None:
    assert influence(body).branches == Origin.SHARED


@pytest.mark.parametrize(
    "body",
    [
        "t[l] = a[g];" + BARRIER + "for (int s = 32; s > 0; s >>= 1) { if (l < s) t[l] += t[l + s];" + BARRIER + "} if (l == 0) o[g] = t[0];",
        "o[g] = a[g];" + BARRIER + "if (a[g] > 0) o[g] = 1;",
        "o[g] = a[g];" + GLOBAL_BARRIER + "if (a[g] > 0) o[g] = 1;",
    ],
)  # fmt: skip
def test_shared_values_that_decide_nothing(body: str) -> None:
    assert influence(body).branches == Origin.NOTHING


def test_many_assignments_in_reverse_order_end_with_the_worst_case() -> None:
    names = [f"v{n}" for n in range(300)]
    declared = "".join(f" int {name} = 0;" for name in names)
    chain = "".join(f" {one} = {other};" for one, other in itertools.pairwise(names))
    body = f"{declared} {chain} v299 = atomic_inc(c); if (v0) o[g] = 1;"
    assert influence(body).branches == Origin.ATOMIC


def test_deep_code_is_followed() -> None:
    body = "".join(f"if (n == {n}) o[g] = {n}; else " for n in range(400))
    assert influence(f"{body} if (atomic_inc(c)) o[g] = 1;").branches == Origin.ATOMIC
