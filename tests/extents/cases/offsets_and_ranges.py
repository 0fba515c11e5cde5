"""Offsets, strides, ranges and clamps by scalars."""

from __future__ import annotations

from tests.extents.case import case, guarded, items, plane, steered

CASES = (
    steered(
        """
        __kernel void range_ell(__global int *col, __global float *v, __global float *x, __global float *y, int n,
                                int k) {
            int i = get_global_id(0);
            if (i < n) {
                float s = 0;
                for (int j = 0; j < k; j++) s += v[j * n + i] * x[col[j * n + i]];
                y[i] = s;
            }
        }
        """,
        v=lambda s: (s.k - 1) * s.n + min(s.g0, s.n),
        y=guarded,
    ),
    case(
        """
        __kernel void range_off(__global float *a, int off, int stride) {
            int i = get_global_id(0);
            a[off + i * stride] = 1;
        }
        """,
        a=lambda s: s.off + (s.g0 - 1) * s.stride + 1,
    ),
    case(
        """
        __kernel void range_gmod(__global float *a, __global float *w) {
            int i = get_global_id(0);
            a[i] = w[i % 9];
        }
        """,
        w=lambda s: min(9, s.g0),
        a=items,
    ),
    case(
        """
        __kernel void range_2dblock(__global float *a, int n) {
            int bx = get_group_id(0), by = get_group_id(1);
            a[(by * get_local_size(1) + get_local_id(1)) * n + bx * get_local_size(0) + get_local_id(0)] = 1;
        }
        """,
        a=lambda s: (s.g1 - 1) * s.n + s.g0,
    ),
    case(
        """
        __kernel void range_fold8(__global float *a, __global float *b) {
            int i = get_global_id(0);
            b[i] = a[(i / 8) * 8];
        }
        """,
        b=items,
        a=lambda s: (s.g0 - 1) // 8 * 8 + 1,
    ),
    case(
        """
        __kernel void range_range(__global float *a, int b, int e) {
            int i = get_global_id(0);
            if (i >= b && i < e) a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, s.e) if min(s.g0, s.e) > s.b else 0,
    ),
    case(
        """
        __kernel void range_lastgroup(__global float *a, int n) {
            if (get_group_id(0) == get_num_groups(0) - 1) a[n + get_local_id(0)] = 1;
        }
        """,
        a=lambda s: s.n + s.l0,
    ),
    case(
        """
        __kernel void range_only0(__global float *a, int n) {
            if (get_global_id(0) == 0)
                for (int i = 0; i < n; i++) a[i] = 1;
        }
        """,
        a=lambda s: s.n,
    ),
    case(
        """
        __kernel void range_charn(__global float *a, char n) {
            int i = get_global_id(0);
            if (i < n) a[i] = 1;
        }
        """,
        a=guarded,
    ),
    case(
        """
        __kernel void range_max(__global float *a, int n, int m) {
            int i = get_global_id(0);
            a[i] = 1;
            if (i == 0) a[max(n, m)] = 1;
        }
        """,
        a=lambda s: max(s.g0, s.n + 1, s.m + 1),
    ),
    case(
        """
        __kernel void range_min3(__global float *a, __global float *o, int n, int m) {
            o[get_global_id(0)] = a[min(n, m)];
        }
        """,
        a=lambda s: min(s.n, s.m) + 1,
        o=items,
    ),
    case(
        """
        __kernel void range_interleave(__global float2 *a, int n) {
            int i = get_global_id(0);
            for (int j = i; j < n; j += get_global_size(0)) a[j * 2].x = 1;
        }
        """,
        a=lambda s: 2 * (s.n - 1) + 1,
    ),
    case(
        """
        __kernel void range_noid(__global float *a) {
            __local float t[256];
            __local int c;
            if (get_global_id(0) >= 0) c = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            int s = atomic_inc(&c);
            if (s == 0) a[get_global_id(0)] = 1;
        }
        """,
    ),
    case(
        """
        int pick(int t, int i) {
            if (t == 0) return i;
            return 2 * i;
        }
        __kernel void range_flaghelper0(__global float *a, int t) {
            a[pick(t, get_global_id(0))] = 1;
        }
        """,
        a=lambda s: items(s) if s.t == 0 else 2 * (s.g0 - 1) + 1,
    ),
    case(
        """
        float ld(__global float *a, int i, int inc) {
            return inc != 1 ? a[i * inc] : a[i + 4];
        }
        __kernel void range_neq1(__global float *a, __global float *o, int inc) {
            o[get_global_id(0)] = ld(a, get_global_id(0), inc);
        }
        """,
        a=lambda s: (s.g0 - 1) * s.inc + 1 if s.inc != 1 else s.g0 + 4,
        o=items,
    ),
    case(
        """
        __kernel void range_var1(__global float *a, const int order) {
            int o = order;
            int i = get_global_id(0);
            if (o == 1)
                a[i * 2] = 1;
            else
                a[i] = 1;
        }
        """,
        a=lambda s: 2 * (s.g0 - 1) + 1 if s.order == 1 else s.g0,
    ),
    case(
        """
        __kernel void range_dec(__global float *a, int n) {
            int i = get_global_id(0);
            for (int s = n; s > 1; s /= 2) a[i + s] = 1;
            if (n - 1 == 0) a[3 * i] = 1;
        }
        """,
        a=lambda s: s.g0 + s.n if s.n > 1 else 3 * (s.g0 - 1) + 1,
    ),
    case(
        """
        #define IDX(x, y) (clamp(y, 0, h - 1) * w + clamp(x, 0, w - 1))
        __kernel void range_clampimg(__global float *a, __global float *o, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            o[y * get_global_size(0) + x] = a[IDX(x - 1, y + 1)];
        }
        """,
        a=lambda s: max(0, min(s.g1, s.h - 1)) * s.w + max(0, min(s.g0 - 2, s.w - 1)) + 1,
        o=plane,
    ),
)
