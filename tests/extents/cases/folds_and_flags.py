"""Indices divided, masked and converted; scalars that are tested for one value."""

from __future__ import annotations

from tests.extents.case import case, items, lanes

CASES = (
    case(
        """
        __kernel void rare_div1000(__global float *a, __global float *o) {
            int i = get_global_id(0);
            o[i] = a[i / 1000];
        }
        """,
        a=lambda s: (s.g0 - 1) // 1000 + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_shr16(__global float *a, __global float *o) {
            int i = get_global_id(0);
            o[i] = a[i >> 16];
        }
        """,
        a=lambda s: (s.g0 - 1 >> 16) + 1,
        o=items,
    ),
    case(
        """
        #define TILE 256
        __kernel void rare_div256(__global const float *mean, __global float *x) {
            int i = get_global_id(0);
            x[i] -= mean[i / TILE];
        }
        """,
        mean=lambda s: (s.g0 - 1) // 256 + 1,
        x=items,
    ),
    case(
        """
        __kernel void rare_lid256(__global float *a, __global float *o) {
            int l = get_local_id(0);
            o[get_global_id(0)] = a[l / 256];
        }
        """,
        a=lambda s: (s.l0 - 1) // 256 + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_grp100(__global float *a, __global float *o) {
            o[get_global_id(0)] = a[get_group_id(0) / 100];
        }
        """,
        a=lambda s: (s.n0 - 1) // 100 + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_scalardiv(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            o[i] = a[n / 4096];
        }
        """,
        a=lambda s: s.n // 4096 + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_uchar(__global int *h, __global int *o) {
            int i = get_global_id(0);
            o[i] = h[i - (uchar)i];
        }
        """,
        h=lambda s: (s.g0 - 1) // 256 * 256 + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_and(__global int *h) {
            int i = get_global_id(0);
            h[i & 0xFFFF] = 1;
        }
        """,
        h=lambda s: min(s.g0, 65536),
    ),
    case(
        """
        __kernel void rare_mod(__global int *h) {
            int i = get_global_id(0);
            h[i % 10007] = 1;
        }
        """,
        h=lambda s: min(s.g0, 10007),
    ),
    case(
        """
        __kernel void rare_floatscale(__global int *h, __global int *o) {
            int i = get_global_id(0);
            o[i] = h[(int)(i * 0.0005f)];
        }
        """,
        h=lambda s: int((s.g0 - 1) * 0.0005) + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_flag7(__global int *a, int mode) {
            int i = get_global_id(0);
            a[mode == 7 ? i + 100 : i] = 1;
        }
        """,
        a=lambda s: s.g0 + (100 if s.mode == 7 else 0),
    ),
    case(
        """
        int at(int i, int inv, int n) {
            return inv == 1 ? i + n : i;
        }
        __kernel void rare_helperflag(__global int *a, int inv, int n) {
            int i = get_global_id(0);
            a[at(i, inv, n)] = n;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.inv == 1 else 0),
    ),
    case(
        """
        __kernel void rare_lt2(__global int *a, int n) {
            int i = get_global_id(0);
            int off = n < 2 ? (int)get_global_size(0) : 0;
            a[i + off] = 1;
        }
        """,
        a=lambda s: s.g0 * (2 if s.n < 2 else 1),
    ),
    case(
        """
        __kernel void rare_vecscalar(__global float *a, int2 d) {
            int i = get_global_id(0);
            a[i * d.x + d.y] = 1;
        }
        """,
        a=lambda s: (s.g0 - 1) * s.d + s.d + 1,
    ),
    case(
        """
        __kernel void rare_localcounter(__global int *a, __global int *o) {
            __local int c;
            c = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            int p = atomic_inc(&c);
            a[p] = 1;
            o[get_global_id(0)] = p;
        }
        """,
        a=lanes,
        o=items,
    ),
    case(
        """
        __kernel void rare_2dlid(__global float *a) {
            int l = get_local_id(0);
            int i = get_global_id(1) * get_global_size(0) + get_global_id(0);
            a[l >= 20 ? i + (int)get_global_size(0) : i] = 1;
        }
        """,
        a=lambda s: s.g0 * s.g1 + (s.g0 if s.l0 > 20 else 0),
    ),
    case(
        """
        __kernel void rare_imgsupport(__global float *a) {
            int i = get_global_id(0);
        #ifdef __IMAGE_SUPPORT__
            a[2 * i] = 1;
        #else
            a[i] = 1;
        #endif
        }
        """,
    ),
    case(
        """
        int in(int i, int lim) {
            return i < lim;
        }
        __kernel void rare_helperlim(__global float *a) {
            int i = get_global_id(0);
            if (in(i, 20000)) a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, 20000),
    ),
    case(
        """
        __kernel void rare_fltlit(__global float *a, int n) {
            int i = get_global_id(0);
            a[(float)n > 5e4f ? i + n : i] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.n > 50000.0 else 0),
    ),
    case(
        """
        __constant int LIM = 20000;
        __kernel void rare_constvar(__global float *a) {
            int i = get_global_id(0);
            if (i < LIM) a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, 20000),
    ),
    case(
        """
        __constant int LIM[2] = {20000, 7};
        __kernel void rare_consttable(__global float *a) {
            int i = get_global_id(0);
            if (i < LIM[0]) a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, 20000),
    ),
    case(
        """
        __kernel void rare_window(__global float *a, int n) {
            int i = get_global_id(0);
            int o = (n >= 1000 && n < 1030) ? n : 0;
            a[i + o] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n if 1000 <= s.n < 1030 else 0),
    ),
    case(
        """
        __kernel void rare_mod256(__global float *a, int n) {
            int i = get_global_id(0);
            if (n % 256 == 0) {
                a[4 * i + 3] = 1;
            } else
                a[i] = 1;
        }
        """,
        a=lambda s: 4 * s.g0 if s.n % 256 == 0 else s.g0,
    ),
)
