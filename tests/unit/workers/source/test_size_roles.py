"""The roles of integer scalars: what the source compares, multiplies and counts them with."""

from __future__ import annotations

import pytest

from llmperf_common.records import SizeRole
from tests.support.reading import read_signatures
from workers.source.clang.parse import parse
from workers.source.size_roles import size_roles

GUARD_0, GUARD_1, GUARD_2 = SizeRole.GUARD_0, SizeRole.GUARD_1, SizeRole.GUARD_2
PITCH, LOOP, NONE, LANES = SizeRole.PITCH, SizeRole.LOOP, SizeRole.NONE, SizeRole.LANES

HELPERS = """
int inside(int index, int limit) { return index < limit; }
int flat(int x, int y, int row) { return y * row + x; }
int my_id(void) { return get_global_id(0); }
float sum_of(__global const float *p, int count) {
    float s = 0; for (int k = 0; k < count; ++k) s += p[k]; return s;
}
int deep(int a, int b) { return inside(a, b); }
int endless(int a, int b) { return a > 0 ? endless(a - 1, b) : b; }
"""

CASES = {
    "if (get_global_id(0) < n) a[get_global_id(0)] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); if (i >= n) return; a[i] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); if (i > 0 && i < n - 1) a[i] = m;": {"n": GUARD_0, "m": NONE},
    "int i = get_global_id(0); if (n <= i) return; a[i] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); int left = n - i; if (left > 0) a[i] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); if (i == n - 1) a[i] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); a[min(i, n - 1)] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); a[clamp(i + 1, 0, n)] = 1;": {"n": GUARD_0},
    "int i = get_group_id(0) * get_local_size(0) + get_local_id(0); if (i < n) a[i] = 1;": {"n": GUARD_0},
    "for (int i = get_global_id(0); i < n; i += get_global_size(0)) a[i] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); int stop = n / 2; while (i < stop) { a[i] = 1; i += m; }": {"n": GUARD_0, "m": LOOP},
    "int x = get_global_id(0), y = get_global_id(1); if (x < n && y < m) a[y * n + x] = 1;": {"n": GUARD_0, "m": GUARD_1},
    "int x = get_global_id(1), y = get_global_id(0); if (x >= n || y >= m) return; a[y * n + x] = 1;": {"n": GUARD_1, "m": GUARD_0},
    "int z = get_global_id(2); if (z < n) a[z] = 1;": {"n": GUARD_2},
    "int2 at = (int2)(get_global_id(0), get_global_id(1)); if (at.x < n && at.y < m) a[at.x] = 1;": {"n": GUARD_0, "m": GUARD_1},
    "int x = get_global_id(0), y = get_global_id(1); a[y * n + x] = 1;": {"n": PITCH},
    "int x = get_global_id(0), y = get_global_id(1); a[mad24(y, n, x)] = 1;": {"n": PITCH},
    "int y = get_global_id(1); __global float *p = a + y * n; p[get_global_id(0)] = 1;": {"n": PITCH},
    "int i = get_global_id(0); float s = 0; for (int k = 0; k < n; ++k) s += a[k * m + i]; a[i] = s;": {"n": LOOP, "m": PITCH},
    "int i = get_global_id(0); float s = 0; for (int k = 0; k < n; ++k) s += a[k]; a[i] = s;": {"n": LOOP},
    "int i = get_global_id(0); for (int k = n / 2; k > 0; k >>= 1) a[i] += k;": {"n": LOOP},
    "int i = get_global_id(0); int k = 0; while (1) { if (k >= n) break; a[i] += ++k; }": {"n": LOOP},
    "int i = get_global_id(0); int k = 0; do { a[i] += k; } while (++k != n);": {"n": LOOP},
    "int i = get_global_id(0); a[i] = n;": {"n": NONE},
    "int i = get_global_id(0); if (i < n * m) a[i] = 1;": {"n": NONE, "m": NONE},
    "int i = get_global_id(0); a[i] = i * n * 0.5f;": {"n": NONE},
    "int i = get_global_id(0); if (inside(i, n)) a[i] = 1;": {"n": GUARD_0},
    "int i = my_id(); if (deep(i, n)) a[i] = 1;": {"n": GUARD_0},
    "a[flat(get_global_id(0), get_global_id(1), n)] = 1;": {"n": PITCH},
    "int i = get_global_id(0); a[i] = sum_of(a, n);": {"n": LOOP},
    "int i = get_global_id(0); if (endless(n, i) < m) a[i] = 1;": {"m": GUARD_0},
    "int i = get_global_id(0); if ((int)a[i] < n) a[i] = 1;": {"n": NONE},
    "int i = get_local_id(0); __local float t[64]; if (i < n) t[i] = a[i];": {"n": GUARD_0},
    "int x = get_global_id(0), y = get_global_id(1); if (x < n && y < n) a[y * n + x] = 1;": {"n": GUARD_0},
    "int i = get_global_id(0); vstore4(1.0f, i * n, a);": {"n": PITCH},
    """int t = get_local_id(0), lane = t & (n - 1); int row = get_group_id(0) * (get_local_size(0) / n) + t / n;
       if (row < m) for (int j = lane; j < 99; j += n) a[j] += row;""": {"n": LANES, "m": GUARD_0},
    "int i = get_global_id(0); int x = i % n, y = i / n; if (y < m) a[y * n + x] = 1;": {"n": PITCH, "m": GUARD_0},
}  # fmt: skip


@pytest.mark.parametrize("body", CASES)
def test_roles(body: str) -> None:
    source = f"{HELPERS}\n__kernel void f(__global float *a, int n, const uint m) {{ {body} }}"
    parsed = parse(source, "")
    assert not parsed.errors
    kernel = next(one for one in parsed.kernels if one.name == "f")
    found = dict(zip(("a", "n", "m"), size_roles(parsed, kernel), strict=True))
    assert found.pop("a") is NONE
    assert {name: found[name] for name in CASES[body]} == CASES[body]


def test_roles_are_part_of_the_signature() -> None:
    source = (
        "__kernel void f(__global float *a, float scale, int n, long4 m)"
        "{ int i = get_global_id(0); if (i < n && i < scale) a[i] = m.x; }"
    )
    (named,) = read_signatures(source)
    assert [one.size_role for one in named.signature.arguments] == [NONE, NONE, GUARD_0, NONE]
