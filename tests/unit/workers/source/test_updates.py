"""Which atomic operations decide no more than a work-item's own update."""

from __future__ import annotations

import time

import pytest

from workers.source.clang.flow import Origin
from workers.source.clang.influence import influence_of
from workers.source.clang.parse import parse

HEAD = "__kernel void k(__global const float *a, __global float *o, volatile __global int *c, int n, __local float *t)"
ID = " int g = get_global_id(0), l = get_local_id(0); "
CLAIM = (
    "int claim(volatile __global int *p, int x) { if (atomic_max(p, x) < x) return 1; return 0; }"
)
POP = """int pop(volatile __global int *p) {
    int s;
    do { s = *p; if (s == 0) return -1; } while (atomic_cmpxchg(p, s, s - 1) != s);
    return s - 1;
}"""
FLOAT_MAX = """float put(volatile __global int *p, float v) {
    int old = *p;
    while (as_float(old) < v) {
        int b = atomic_cmpxchg(p, old, as_int(v));
        if (b == old) return v;
        old = b;
    }
    return as_float(old);
}"""
FLOAT_ADD = """void add(volatile __global float *p, float v) {
    union { uint i; float f; } x, y;
    do { x.f = *p; y.f = x.f + v; }
    while (atomic_cmpxchg((volatile __global uint *)p, x.i, y.i) != x.i);
}"""
FIND = "int find(volatile __global int *p, int i) { while (p[i] != i) i = p[i]; return i; }"


def is_decided(body: str, before: str = "") -> bool:
    parsed = parse(f"{before} {HEAD} {{ {ID} {body} }}")
    assert not parsed.errors, parsed.errors
    return bool(influence_of(parsed, parsed.kernels[0]).branches & Origin.ATOMIC)


@pytest.mark.parametrize(
    "body",
    [
        "int h = *c; float x = 0; while (h < n) { int old = atomic_cmpxchg(c, h, h + 1); if (old == h) { x += a[g]; h = *c; } else h = old; } o[g] = x;",
        "for (;;) { int h; do { h = *c; if (h >= n) return; } while (atomic_cmpxchg(c, h, h + 1) != h); o[h] = a[h] * 2.5f; }",
        "int h = *c; while (h < n) { int old = atomic_cmpxchg(c, h, h + 1); if (old == h) { o[h] = a[h] * 2.5f; h = *c; } else h = old; }",
        "int s; do { s = *c; if (s == 0) return; } while (atomic_cmpxchg(c, s, s - 1) != s); o[g] = a[s - 1];",
        "int s; do { s = *c; if (s == 0) return; } while (atomic_cmpxchg(c, s, s - 1) != s); o[g] = a[g];",
        "int h; do { h = *c; } while (atomic_cmpxchg(c, h, h + 1) != h); o[h] = a[g];",
        "int h; while ((h = *c) < n) { o[g] += 1; atomic_cmpxchg(c, h, h + 1); }",
        "for (;;) { int f = *c, h = f; if (f >= n) return; if (atomic_cmpxchg(c, h, h + 1) != h) continue; o[g] += a[g]; }",
        "float x = 0; int h = *c; while (h < n) { int old = atomic_cmpxchg(c, h, h + 1); if (old == h) { for (int j = 0; j < 99; ++j) x += j; h = *c; } else h = old; } o[g] = x;",
        "for (;;) { int h = atomic_add(c, 0); if (h >= n) break; if (atomic_cmpxchg(c, h, h + 1) == h) o[h] = 1; }",
        "int h = *c; int2 v = (int2)(h, 0); while (atomic_cmpxchg(c, v.x, v.x + 1) != v.x) v.x = *c; o[v.x] = 1;",
    ],
)  # fmt: skip
def test_an_exchange_that_leads_to_other_work(body: str) -> None:
    assert is_decided(body)


@pytest.mark.parametrize(
    "body",
    [
        "o[g] = atomic_max(c, g) < g ? 1.0f : a[0] * 0;",
        "if (atomic_max(c, g) < g) { for (int j = 0; j < 16; ++j) o[j] = a[g * 16 + j]; }",
        "if (atomic_min(c, g) > g) { for (int j = 0; j < 16; ++j) o[j] = a[g * 16 + j]; }",
        "if (atomic_min(&c[g], n) > n) o[g] = 1;",
        "if (atomic_min(&c[g], n) > n) atomic_or(c + n, 1);",
        "int won = 0; if (atomic_max(c, g) < g) won = 1; if (won) o[0] = a[g];",
        "int won = atomic_max(c, g) < g; float s = 0; for (int j = 0; j < 16 * won; ++j) s += a[j]; o[g] = s;",
        "if (atomic_max(c, g) >= g) return; o[0] = a[g];",
        "for (int i = 0; i < n; ++i) { if (atomic_max(c, i) >= i) continue; o[0] = a[i]; }",
        "while (1) { if (atomic_max(c, g) >= g) break; return; } o[0] = a[g];",
        "if (atomic_max(c, g) < g) goto win; return; win: o[0] = a[g];",
        "float s = 0; if (atomic_max(c, g) < g) s = a[g]; o[g] = s;",
        "float s = 0; if (atomic_max(c, g) < g) for (int j = 0; j < n; ++j) s += j; o[g] = s;",
        "atomic_max(c, g) < g && (o[0] = a[g]);",
        "switch (atomic_max(c, 3)) { case 0: o[g] = 1; }",
        "if (atomic_xchg(c, atomic_xchg(c + 1, 1)) == 0) o[g] = 1;",
        "if (atomic_max(c, g) < g) t[l] = 1;",
        "int i = g, j = n; while (i != j) { if (i < j) { int s = i; i = j; j = s; } int old = atomic_min(&c[i], j); i = (i == old) ? j : old; }",
        "o[atomic_max(c, n)] = a[g];",
        "int best = atomic_max(c, g); int lost = best >= g; if (!lost) vstore4((float4)(1), 0, o);",
    ],
)  # fmt: skip
def test_a_minimum_or_maximum_that_leads_to_other_work(body: str) -> None:
    assert is_decided(body)


@pytest.mark.parametrize(
    "body",
    [
        "if (*c >= n) return; if (a[g] > 0) { int at = atomic_inc(c); o[at % n] = g; }",
        "atomic_inc(c); int seen = c[0]; if (seen < n) o[g] = 1;",
        "while (*c < n) { o[g] += 1; atomic_inc(c); }",
        "__global int *own = c + g; if (*own == 0) o[g] = 1; atomic_add(own, 1);",
    ],
)
def test_a_load_of_a_counter_that_others_increase(body: str) -> None:
    assert is_decided(body)


@pytest.mark.parametrize(
    "body",
    ["atomic_inc(c + g % 16); if (a[g] > 0) o[g] = 1;", "if (*c > 0) o[g] = 1; atomic_max(c, n);"],
)
def test_a_counter_that_is_not_loaded(body: str) -> None:
    assert not is_decided(body)


@pytest.mark.parametrize(
    ("helper", "body"),
    [
        (CLAIM, "if (claim(c, g)) o[0] = a[g];"),
        ("void put(__global float *p) { p[0] = 1; }", "if (atomic_max(c, g) < g) put(o);"),
        (POP, "int s = pop(c); if (s >= 0) o[g] = 1;"),
        (FIND, "int i = g, j = n, done = 0; do { i = find(c, i); j = find(c, j); if (i < j) { int old = atomic_min(&c[j], i); done = old == j; j = old; } else if (j < i) { int old = atomic_min(&c[i], j); done = old == i; i = old; } else done = 1; } while (!done);"),
        (POP, "int s; while ((s = pop(c)) >= 0) o[s] = a[s];"),
    ],
)  # fmt: skip
def test_an_update_in_a_helper_that_leads_to_other_work(helper: str, body: str) -> None:
    assert is_decided(body, helper)


@pytest.mark.parametrize(
    "body",
    [
        "int old, sum; do { old = c[0]; sum = as_int(as_float(old) + a[g]); } while (atomic_cmpxchg(c, old, sum) != old);",
        "int old = c[0], seen; do { seen = old; old = atomic_cmpxchg(c, seen, seen + 1); } while (seen != old);",
        "int old = c[g]; while (as_float(old) < a[g]) { int b = atomic_cmpxchg(c + g, old, as_int(a[g])); if (b == old) break; old = b; }",
        "int old = c[0]; while (old < n && (old = atomic_cmpxchg(c, old, n)) < n);",
        "if (c[g] < n) { int old; do { old = c[g]; if (old >= n) return; } while (atomic_cmpxchg(c + g, old, n) != old); }",
        "int old; do { old = c[g]; if (old >= n) break; } while (atomic_cmpxchg(c + g, old, n) != old); o[g] = 1;",
        "for (int i = 0; i < n; ++i) { int old; do { old = c[i]; } while (atomic_cmpxchg(c + i, old, old + i) != old); o[i] = a[i]; }",
        "atomic_max(c, n); atomic_min(c + 1, n); if (a[g] > 0) o[g] = 1;",
        "o[g] = atomic_max(c, n);",
        "int x = n; if (atomic_max(c, g) < g) x = 2 * n + 1; o[g] = x;",
        "int old = c[0]; for (;;) { if (atomic_cmpxchg(c, old, old + 1) == old) break; else old = *c; }",
        "int old = c[0]; while (atomic_cmpxchg(c, old, old + (int)a[g]) != old) old = *c;",
        "if (atomic_or(c, 0) > n) o[g] = 1;",
        "int old = n; while ((old = atomic_xchg(c, atomic_xchg(c, 0) + old)) != 0);",
        "int i = get_global_id(0); if (i == 0) *c = 0; atomic_cmpxchg(c, i, 42);",
        "__local int u; u = 0; barrier(1); int old; do { old = u; } while (atomic_cmpxchg(&u, old, old + 1) != old); if (a[g] > 0) o[g] = 1;",
        "int old; do { old = c[g]; mem_fence(CLK_GLOBAL_MEM_FENCE); } while (atomic_cmpxchg(c + g, old, max(old, n)) != old); o[g] = old;",
    ],
)  # fmt: skip
def test_a_work_item_decides_its_own_update(body: str) -> None:
    assert not is_decided(body)


@pytest.mark.parametrize(
    ("helper", "body"),
    [
        (FLOAT_MAX, "o[g] = put(c, a[g]); put(c + 1, a[g]);"),
        (FLOAT_ADD, "for (int i = 0; i < n; ++i) if (a[i] > 0) add(o + g, a[i]); if (o[g] > 0) o[g] = 0;"),
    ],
)  # fmt: skip
def test_a_helper_decides_its_own_update(helper: str, body: str) -> None:
    assert not is_decided(body, helper)


def test_many_updates_are_taken_to_decide_other_work() -> None:
    one = "if (atomic_max(c, g) < g) x = 1; "
    assert not is_decided(f"int x = 0; {one * 8} o[g] = x;")
    assert is_decided(f"int x = 0; {one * 400} o[g] = x;")


@pytest.mark.parametrize(
    "body",
    [
        "int x = 0, w = atomic_max(c, g); " + "if (w < g) return; x += 3; " * 1000,
        "int old; do { old = c[0]; "
        + "if (old < n) break; " * 1000
        + "} while (atomic_cmpxchg(c, old, old + 1) != old);",
    ],
)
def test_a_long_text_with_many_jumps_takes_seconds(body: str) -> None:
    began_s = time.process_time()
    assert is_decided(body)
    assert time.process_time() - began_s < 10
