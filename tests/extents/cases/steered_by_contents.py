"""Contents that index, bound loops or choose a branch, beside plain buffers."""

from __future__ import annotations

from tests.extents.case import case, guarded, items, one, steered

CASES = (
    steered(
        """
        __kernel void mixed_twosrc(__global float *a, __global int *b, __global int *c) {
            int i = get_global_id(0);
            a[b[i] + c[i]] = 1;
        }
        """,
        b=items,
        c=items,
    ),
    steered(
        """
        __kernel void mixed_2d(__global float *a, __global int *r, __global int *c, int w) {
            int i = get_global_id(0);
            a[r[i] * w + c[i]] = 1;
        }
        """,
        r=items,
        c=items,
    ),
    steered(
        """
        __kernel void mixed_spmv(__global float *v, __global int *cols, __global int *rp, __global float *x,
                                 __global float *y, int n) {
            int i = get_global_id(0);
            if (i < n) {
                float s = 0;
                for (int j = rp[i]; j < rp[i + 1]; j++) s += v[j] * x[cols[j]];
                y[i] = s;
            }
        }
        """,
        rp=lambda s: min(s.g0, s.n) + 1,
        y=guarded,
    ),
    steered(
        """
        __kernel void mixed_uchar(__global uchar *b, __global int *h) {
            atomic_inc(&h[b[get_global_id(0)]]);
        }
        """,
        b=items,
    ),
    steered(
        """
        __kernel void mixed_two(__global int *b, __global int *c, __global float *a) {
            int i = get_global_id(0);
            a[c[b[i]]] = 1;
        }
        """,
        b=items,
    ),
    steered(
        """
        typedef struct {
            int l;
            int r;
            float w;
        } T;
        __kernel void mixed_struct(__global T *t, __global float *o) {
            int i = get_global_id(0), k = 0;
            for (int d = 0; d < 5; d++) k = t[k].w > 0.5f ? t[k].l : t[k].r;
            o[i] = k;
        }
        """,
        o=items,
    ),
    steered(
        """
        __kernel void mixed_len(__global int *st, __global int *len, __global float *a) {
            int i = get_global_id(0);
            for (int j = st[i]; j < st[i] + len[i]; j++) a[j] = 1;
        }
        """,
        st=items,
        len=items,
    ),
    steered(
        """
        __kernel void mixed_shr(__global uint *d, __global int *h) {
            int i = get_global_id(0);
            atomic_inc(&h[d[i] >> 4]);
        }
        """,
        d=items,
    ),
    steered(
        """
        __kernel void mixed_thr(__global int *idx, __global float *x, __global float *y, int n) {
            int i = get_global_id(0);
            x[idx[i]] = 1;
            y[idx[i] > 1000 ? i + n : i] = 1;
        }
        """,
        idx=items,
    ),
    steered(
        """
        __kernel void mixed_counter(__global int *cnt, __global float *a, __global float *x) {
            int i = get_global_id(0);
            if (x[i] > 0.5f) {
                int p = atomic_inc(cnt);
                a[p] = i;
            }
        }
        """,
        cnt=one,
        x=items,
    ),
    steered(
        """
        __kernel void mixed_modn(__global uint *b, __global float *a, uint n) {
            int i = get_global_id(0);
            a[b[i] % n] = 1;
        }
        """,
        b=items,
    ),
    case(
        """
        __kernel void mixed_loopptr(__global int *a, int n) {
            for (__global int *p = a + get_global_id(0); p < a + n; p += 2) *p = 1;
        }
        """,
        a=lambda s: s.n,
    ),
    case(
        """
        __global float *row(__global float *a, int r, int n) {
            return a + r * n;
        }
        __kernel void mixed_rowptr(__global float *a, int n) {
            row(a, get_global_id(1), n)[get_global_id(0)] = 1;
        }
        """,
        a=lambda s: (s.g1 - 1) * s.n + s.g0,
    ),
    case(
        """
        __kernel void mixed_ptrarr(__global float *a, __global float *b) {
            __global float *ps[2] = {a, b};
            int i = get_global_id(0);
            ps[i & 1][i] = 1;
        }
        """,
        a=lambda s: s.g0 - 1,
        b=items,
    ),
    case(
        """
        __kernel void mixed_vecidx(__global uchar4 *a, int w) {
            int2 q = (int2)(get_global_id(0), get_global_id(1));
            a[mad24(q.y, w, q.x)].xyz = (uchar3)(1);
        }
        """,
        a=lambda s: (s.g1 - 1) * s.w + s.g0,
    ),
    case(
        """
        typedef struct {
            float4 p;
            int q[3];
        } T;
        __kernel void mixed_structassign(__global T *s, __global T *t) {
            int i = get_global_id(0);
            s[i + 1] = t[2 * i];
            atomic_add(&s[i].q[1], 1);
        }
        """,
        s=lambda s: s.g0 + 1,
        t=lambda s: 2 * s.g0 - 1,
    ),
    case(
        """
        __kernel void mixed_do(__global int *a, int n) {
            int j = get_global_id(0);
            do {
                j += 2;
                if (j & 1) continue;
                a[j] = 1;
            } while (j < n);
        }
        """,
    ),
    case(
        """
        __kernel void mixed_lval(__global int *a, __global int *b, int n) {
            int i = get_global_id(0);
            *(n > 10 ? a + i : b + i) = a[i + 1] = b[i + 2] = 0;
        }
        """,
        a=lambda s: s.g0 + 1,
        b=lambda s: s.g0 + 2,
    ),
    case(
        """
        __kernel void mixed_vconst(__constant float *c, __global float *o) {
            int i = get_global_id(0);
            float16 v = vload16(2, c + 3);
            o[i] = v.sf;
        }
        """,
        c=lambda s: 3 + 48,
        o=items,
    ),
    case(
        """
        __kernel void mixed_goto(__global int *a, int n) {
            int j = 0;
        again:
            a[j * 2] = 1;
            j++;
            if (j < n) goto again;
        }
        """,
        a=lambda s: 2 * (s.n - 1) + 1,
    ),
)
