"""Forms of access: moving pointers, helpers, structures, copies by groups."""

from __future__ import annotations

from tests.extents.case import case, guarded, items, lanes, plane, steered

CASES = (
    case(
        """
        __kernel void form_movingptr(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            __global float *p = a + i;
            float s = 0;
            for (int j = 0; j < n; j++) {
                s += *p;
                p += 3;
            }
            o[i] = s;
        }
        """,
        a=lambda s: max(0, s.g0 + 3 * (s.n - 1)) if s.n > 0 else 0,
        o=items,
    ),
    case(
        """
        __kernel void form_derefplus(__global int *a, __global int *o) {
            int i = get_global_id(0);
            *(o + 2 * i + 1) = *(a + i * 5 + 7);
        }
        """,
        a=lambda s: 5 * (s.g0 - 1) + 8,
        o=lambda s: 2 * s.g0,
    ),
    case(
        """
        __kernel void form_alias(__global float *a, int m) {
            __global float4 *v = (__global float4 *)(a + 4 * m);
            v[get_global_id(0)].y = 1.f;
        }
        """,
        a=lambda s: 4 * s.m + 4 * (s.g0 - 1) + 2,
    ),
    case(
        """
        __kernel void form_vload3half(__global half *h, __global float *f) {
            int i = get_global_id(0);
            float3 v = vload_half3(i, h);
            vstore3(v, i + 1, f);
        }
        """,
        h=lambda s: 3 * s.g0,
        f=lambda s: 3 * s.g0 + 3,
    ),
    case(
        """
        __kernel void form_vloada(__global half *h, __global half *o) {
            int i = get_global_id(0);
            float3 v = vloada_half3(i, h);
            vstorea_half3_rte(v, i, o);
        }
        """,
        h=lambda s: 4 * (s.g0 - 1) + 3,
        o=lambda s: 4 * (s.g0 - 1) + 3,
    ),
    case(
        """
        float h3(__global const float *p, int i) {
            return p[i + 2];
        }
        float h2(__global const float *p, int i) {
            return h3(p + 1, 2 * i);
        }
        __kernel void form_nested(__global const float *a, __global float *o) {
            int i = get_global_id(0);
            o[i] = h2(a + 5, i);
        }
        """,
        a=lambda s: 2 * (s.g0 - 1) + 2 + 1 + 5 + 1,
        o=items,
    ),
    case(
        """
        typedef struct {
            int a;
            float b[4];
            char c;
        } S;
        __kernel void form_struct(__global S *s, __global float *o) {
            int i = get_global_id(0);
            (s + i + 3)->c = 1;
            o[i] = s[i].b[2];
        }
        """,
        s=lambda s: s.g0 + 3,
        o=items,
    ),
    case(
        """
        #define IDX(y, x) ((y) * W + (x))
        #define LD(p, i) (p)[i]
        __kernel void form_macro(__global float *a, __global float *o, int W) {
            int x = get_global_id(0), y = get_global_id(1);
            o[y * get_global_size(0) + x] = LD(a, IDX(y, x));
        }
        """,
        a=lambda s: (s.g1 - 1) * s.W + s.g0,
        o=plane,
    ),
    case(
        """
        __kernel void form_atomics(__global int *h, __global int *q, int n) {
            int i = get_global_id(0);
            atomic_add(&h[i % n], 1);
            atomic_cmpxchg(q + 3 * i, 1, 2);
            atomic_inc(&(&q[i])[1]);
        }
        """,
        h=guarded,
        q=lambda s: max(3 * (s.g0 - 1) + 1, s.g0 + 1),
    ),
    steered(
        """
        __kernel void form_nestedidx(__global float *a, __global int *b, __global float *o, int n) {
            int i = get_global_id(0);
            if (i < n) o[i] = a[b[i]];
        }
        """,
        b=guarded,
        o=guarded,
    ),
    case(
        """
        __kernel void form_awgc(__global float *a, __global float *o, __local float *t) {
            int l = get_local_size(0), q = get_group_id(0);
            event_t e = async_work_group_copy(t, a + q * l + 4, l, 0);
            wait_group_events(1, &e);
            o[get_global_id(0)] = t[get_local_id(0)];
        }
        """,
        a=lambda s: s.g0 + 4,
        o=items,
        t=lanes,
    ),
    case(
        """
        __kernel void form_strided(__global float *a, __global float *o, __local float *t, int st) {
            int l = get_local_size(0), q = get_group_id(0);
            event_t e = async_work_group_strided_copy(t, a + q, l, st, 0);
            wait_group_events(1, &e);
            o[get_global_id(0)] = t[get_local_id(0)];
        }
        """,
        a=lambda s: (s.l0 - 1) * s.st + s.n0,
        o=items,
        t=lanes,
    ),
    case(
        """
        __kernel void form_3d(__global float *a, int nx, int ny) {
            int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
            a[(z * ny + y) * nx + x] = 1;
        }
        """,
        a=lambda s: ((s.g2 - 1) * s.ny + s.g1 - 1) * s.nx + s.g0,
    ),
    case(
        """
        __kernel void form_group(__global float *a, __global float *b) {
            a[get_group_id(0) * 2 + 1] = 1;
            b[get_num_groups(0) * get_local_size(0) + get_local_id(0)] = 1;
        }
        """,
        a=lambda s: 2 * s.n0,
        b=lambda s: s.g0 + s.l0,
    ),
    case(
        """
        __kernel void form_nn(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            float s = 0;
            for (int r = 0; r < n; r++) s += a[r * n + n - 1 - r % 2];
            o[i] = s;
        }
        """,
        a=lambda s: max(
            0,
            s.n * s.n
            if s.n % 2 == 1
            else max((s.n - 2) * s.n + s.n - 1 + 1, (s.n - 1) * s.n + s.n - 2 + 1),
        ),
        o=items,
    ),
    case(
        """
        __kernel void form_gs01(__global float *a) {
            int i = get_global_id(0) * get_global_size(1) + get_global_id(1);
            a[i * 2] = 1;
        }
        """,
        a=lambda s: 2 * (s.g0 * s.g1 - 1) + 1,
    ),
    case(
        """
        __kernel void form_guard2(__global float *a, __global float *b, int n) {
            int i = get_global_id(0);
            if (i > 0 && i < n - 1) b[i] = a[i - 1] + a[i + 1];
        }
        """,
        a=lambda s: min(s.g0, s.n - 1) + 1 if min(s.g0, s.n - 1) > 1 else 0,
        b=lambda s: min(s.g0, s.n - 1) if min(s.g0, s.n - 1) > 1 else 0,
    ),
    case(
        """
        __kernel void form_gridstride(__global float *a, int n) {
            for (int i = get_global_id(0); i < n; i += get_global_size(0)) a[i] = 1;
        }
        """,
        a=lambda s: max(0, s.n),
    ),
)
