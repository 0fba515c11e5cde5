"""Conditions that only some sizes meet: bits, limits, equal scalars, shapes of work-groups."""

from __future__ import annotations

from tests.extents.case import case, items, steered

CASES = (
    case(
        """
        __kernel void rare_g1small(__global float *a) {
            int i = get_global_id(1) * get_global_size(0) + get_global_id(0);
            a[get_global_size(1) < 3 ? i + 1000 : i] = 1;
        }
        """,
        a=lambda s: s.g0 * s.g1 + (1000 if s.g1 < 3 else 0),
    ),
    case(
        """
        void put(__local float *t, int l, float v) {
            t[l] = v;
        }
        float get(__local float *t, int l) {
            return t[l];
        }
        __kernel void rare_localptr(__global float *a) {
            __local float t[64];
            int l = get_local_id(0);
            put(t, l, a[get_global_id(0)]);
            barrier(CLK_LOCAL_MEM_FENCE);
            a[get_global_id(0)] = get(t, l);
        }
        """,
        a=items,
    ),
    case(
        """
        enum { FWD = 1, BWD = 2 };
        __kernel void rare_enumflag(__global float *a, int dir) {
            int i = get_global_id(0);
            a[dir == FWD ? i + 77 : i] = 1;
        }
        """,
        a=lambda s: s.g0 + (77 if s.dir == 1 else 0),
    ),
    case(
        """
        __kernel void rare_switchhi(__global float *a, int m) {
            int i = get_global_id(0);
            switch (m) {
            case 10: a[3 * i] = 1; break;
            case 20: a[5 * i] = 1; break;
            default: a[i] = 1;
            }
        }
        """,
        a=lambda s: 3 * (s.g0 - 1) + 1 if s.m == 10 else 5 * (s.g0 - 1) + 1 if s.m == 20 else s.g0,
    ),
    case(
        """
        __kernel void rare_ls128(__global float *a) {
            int i = get_global_id(0);
            int L = get_local_size(0);
            if (L == 256)
                a[i] = 2;
            else if (L == 128)
                a[2 * i] = 1;
            else
                a[i] = 1;
        }
        """,
        a=lambda s: 2 * (s.g0 - 1) + 1 if s.l0 == 128 else s.g0,
    ),
    case(
        """
        __kernel void rare_short(__global float *a, __global float *o) {
            ushort i = get_global_id(0);
            o[get_global_id(0)] = a[i];
        }
        """,
        a=lambda s: min(s.g0, 65536),
        o=items,
    ),
    case(
        """
        __kernel void rare_satuchar(__global float *a, __global float *o) {
            int i = get_global_id(0);
            o[i] = a[convert_uchar_sat(i)];
        }
        """,
        a=lambda s: min(s.g0, 256),
        o=items,
    ),
    case(
        """
        __kernel void rare_loopbig(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            float s = 0;
            for (int k = 0; k < n; k++) s += a[k >= 9000 ? k : 0];
            o[i] = s;
        }
        """,
        a=lambda s: (s.n if s.n > 9000 else 1) if s.n > 0 else 0,
        o=items,
    ),
    case(
        """
        __kernel void rare_bigthr(__global float *a, int n) {
            int i = get_global_id(0);
            int o = 0;
            if (n > 100000) o = n;
            a[i + o] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.n > 100000 else 0),
    ),
    case(
        """
        __kernel void rare_shiftguard(__global float *a) {
            int i = get_global_id(0);
            if (i >> 17)
                a[i] = 2;
            else
                a[i & 1] = 1;
        }
        """,
        a=lambda s: s.g0 if s.g0 > 131072 else 2,
    ),
    case(
        """
        __kernel void rare_andguard(__global float *a) {
            int i = get_global_id(0);
            a[(i & 0x40000) ? 2 * i : i] = 1;
        }
        """,
        a=lambda s: max(
            [s.g0]
            + (
                [2 * (s.g0 - 1) + 1]
                if s.g0 - 1 & 262144
                else [2 * ((s.g0 - 1 >> 19 << 19) - 1) + 1]
                if s.g0 > 2**19
                else []
            )
        ),
    ),
    case(
        """
        __kernel void rare_5flags(__global float *a, int p, int q, int r, int s, int t) {
            int i = get_global_id(0);
            a[(p == 1 && q == 2 && r == 1 && s == 2 && t == 1) ? i + 500 : i] = 1;
        }
        """,
        a=lambda s: s.g0 + (500 if (s.p, s.q, s.r, s.s, s.t) == (1, 2, 1, 2, 1) else 0),
    ),
    case(
        """
        __kernel void rare_nlt(__global float *a, int n) {
            int i = get_global_id(0);
            int half_ = n / 2;
            if (half_ < 1)
                a[3 * i] = 1;
            else
                a[i] = 1;
        }
        """,
        a=lambda s: 3 * (s.g0 - 1) + 1 if s.n < 2 else s.g0,
    ),
    case(
        """
        __kernel void rare_signed(__global float *a, int n) {
            int i = get_global_id(0);
            int k = i - n;
            a[k < 0 ? 0 : k] = 1;
        }
        """,
        a=lambda s: max(1, s.g0 - s.n),
    ),
    case(
        """
        __kernel void rare_mulhi(__global float *a, __global float *o) {
            uint i = get_global_id(0);
            o[i] = a[mul_hi(i, (uint)(1u << 20))];
        }
        """,
        a=lambda s: (s.g0 - 1 >> 12) + 1,
        o=items,
    ),
    case(
        """
        __kernel void rare_wg(__global float *a, __global float *o, int n) {
            int i = get_global_id(0);
            int nb = (n + 511) / 512;
            o[i] = a[nb - 1];
        }
        """,
        a=lambda s: (s.n + 511) // 512,
        o=items,
    ),
    case(
        """
        __kernel void rare_localidxscan(__global int *a, __local int *t) {
            int l = get_local_id(0);
            t[4 * l] = get_global_id(0);
            barrier(CLK_LOCAL_MEM_FENCE);
            a[t[4 * (get_local_size(0) - 1 - l)]] = 1;
        }
        """,
        a=items,
        t=lambda s: 4 * (s.l0 - 1) + 1,
    ),
    case(
        """
        __kernel void rare_eqscalars(__global float *a, int n, int m) {
            int i = get_global_id(0);
            a[n == 2 * m ? i + n : i] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.n == 2 * s.m else 0),
    ),
    steered(
        """
        __kernel void rare_xgt100(__global float *x, __global float *a) {
            int i = get_global_id(0);
            a[x[i] > 100.f ? i + 64 : i] = 1;
        }
        """,
        x=items,
    ),
    case(
        """
        #ifdef cl_khr_fp16
        #define STEP 2
        #else
        #define STEP 1
        #endif
        #ifdef __GPU__
        #endif
        __kernel void rare_fp16ext(__global float *a) {
            a[get_global_id(0) * STEP] = 1;
        }
        """,
    ),
    steered(
        """
        __kernel void rare_kcur(__global uint *a, __global uint *o, uint n) {
            uint i = get_global_id(0);
            uint lo = 0, hi = n;
            while (lo < hi) {
                uint m = (lo + hi) >> 1;
                if (a[m] < i)
                    lo = m + 1;
                else
                    hi = m;
            }
            o[i] = lo;
        }
        """,
        o=items,
    ),
    case(
        """
        __kernel void rare_nonpow(__global float *a, uint n) {
            uint i = get_global_id(0);
            a[i & (n - 1)] = 1;
        }
        """,
    ),
    case(
        """
        __kernel void rare_tworeturns(__global float *a, int n, int m) {
            int i = get_global_id(0);
            if (i >= n) return;
            if (i >= m) return;
            a[i] = 1;
        }
        """,
        a=lambda s: min(s.g0, s.n, s.m),
    ),
)
