"""Guards, loops, results by pointer, odd types of arguments."""

from __future__ import annotations

from tests.extents.case import case, items, lanes

CASES = (
    case(
        """
        __kernel void form_reverse(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            float s = 0;
            for (int j = n - 1; j >= 0; j--) s += a[j * 2 + i];
            o[i] = s;
        }
        """,
        a=lambda s: 2 * (s.n - 1) + s.g0 if s.n > 0 else 0,
        o=items,
    ),
    case(
        """
        __kernel void form_swap(__global float *a, __global float *b, int n) {
            __global float *p = a, *q = b;
            int i = get_global_id(0);
            for (int t = 0; t < 3; t++) {
                q[i + t] = p[i * 2];
                __global float *r = p;
                p = q;
                q = r;
            }
        }
        """,
        a=lambda s: max(2 * (s.g0 - 1) + 1, s.g0 + 1),
        b=lambda s: max(s.g0 + 2, 2 * (s.g0 - 1) + 1),
    ),
    case(
        """
        __kernel void form_const(__constant float *c, __global float *o, int r) {
            int i = get_global_id(0);
            float s = 0;
            for (int k = -r; k <= r; k++) s += c[k + r];
            o[i] = s;
        }
        """,
        c=lambda s: 2 * s.r + 1,
        o=items,
    ),
    case(
        """
        __kernel void form_barrierreturn(__global float *a, __local float *t, int n) {
            int i = get_global_id(0), l = get_local_id(0);
            t[l] = i < n ? a[i] : 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (i >= n) return;
            a[i + 1] = t[l];
        }
        """,
        a=lambda s: min(s.g0, s.n) + 1 if s.n > 0 else 0,
        t=lanes,
    ),
    case(
        """
        __kernel void form_switch(__global float *a, int m) {
            int i = get_global_id(0);
            switch (m) {
            case 0: a[i] = 1; break;
            case 1: a[i] = 2; break;
            default: a[i] = 3;
            }
        }
        """,
        a=items,
    ),
    case(
        """
        void f(__global float **p, int k) {
            *p += k;
        }
        __kernel void form_outparam(__global float *a, int n) {
            __global float *p = a;
            f(&p, n);
            p[get_global_id(0)] = 1;
        }
        """,
        a=lambda s: s.n + s.g0,
    ),
    case(
        """
        typedef __global float gf;
        typedef gf *gfp;
        typedef struct {
            float f;
            int i;
        } U;
        __kernel void form_typedef(gfp a, __global U *u) {
            gfp p = a;
            int i = get_global_id(0);
            p[i + 9] = u[i + 1].i;
        }
        """,
        a=lambda s: s.g0 + 9,
        u=lambda s: s.g0 + 1,
    ),
    case(
        """
        __kernel void form_offset(__global float *a) {
            a[get_global_id(0) - get_global_offset(0) + get_global_size(0)] = 1;
        }
        """,
        a=lambda s: 2 * s.g0,
    ),
    case(
        """
        __kernel void form_ulong(__global float *a, ulong n, long m) {
            ulong i = get_global_id(0);
            if ((long)i < m) a[i + n] = 1;
        }
        """,
        a=lambda s: min(s.g0, s.m) + s.n if s.m > 0 else 0,
    ),
    case(
        """
        __kernel void form_dim2guard(__global float *a, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < w && y < h) a[y * w + x] = 1;
        }
        """,
        a=lambda s: (min(s.g1, s.h) - 1) * s.w + min(s.g0, s.w),
    ),
    case(
        """
        __kernel void form_prodguard(__global float *a, int w, int h) {
            int i = get_global_id(0);
            if (i < w * h) a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, s.w * s.h),
    ),
    case(
        """
        __kernel void form_prodguard3(__global float *a, int w, int h, int d) {
            int i = get_global_id(0);
            if (i < w * h * d) a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, s.w * s.h * s.d),
    ),
    case(
        """
        __kernel void form_postinc(__global int *a, __global int *b) {
            __global int *p = a + get_global_id(0);
            __global int *q = b + 2 * get_global_id(0);
            *q++ = *p++;
            *q = *p;
            (*p)++;
        }
        """,
        a=lambda s: s.g0 + 1,
        b=lambda s: 2 * s.g0,
    ),
    case(
        """
        __kernel void form_half_int(__global float *a, int n) {
            int i = get_global_id(0);
            a[i / 2] = 1;
            a[n - 1] = 2;
        }
        """,
        a=lambda s: max((s.g0 - 1) // 2 + 1, s.n),
    ),
    case(
        """
        __kernel void form_clamp(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            o[i] = a[clamp(i + 5, 0, n - 1)];
        }
        """,
        a=lambda s: max(1, min(s.g0 + 5, s.n)),
        o=items,
    ),
    case(
        """
        __kernel void form_2darr(__global float (*a)[16], __global float *o) {
            int i = get_global_id(0);
            o[i] = a[i][7];
        }
        """,
        o=items,
    ),
    case(
        """
        __kernel void form_sincos(__global float4 *a, __global float *o, __global int *e) {
            int i = get_global_id(0);
            float4 c;
            a[2 * i] = sincos((float4)1.f, &c);
            o[i] = frexp(1.f, &e[i + 3]);
            float s = modf(1.5f, o + i + 1);
            e[0] = s;
        }
        """,
        a=lambda s: 2 * s.g0 - 1,
        o=lambda s: s.g0 + 1,
        e=lambda s: s.g0 + 3,
    ),
    case(
        """
        __kernel void form_float3(__global float3 *a, __global float *b) {
            int i = get_global_id(0);
            a[i] = vload3(i, (__global float *)a);
            b[i * 3 + 2] = a[i].z;
        }
        """,
        a=items,
        b=lambda s: 3 * s.g0,
    ),
)
