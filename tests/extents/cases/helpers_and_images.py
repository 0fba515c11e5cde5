"""Helpers that choose an index, local arrays behind pointers, images of fixed shape."""

from __future__ import annotations

from tests.extents.case import case, groups, guarded, items, plane, steered

CASES = (
    case(
        """
        __kernel void inner(__global int *a, int n) {
            a[get_global_id(0) + n] = 1;
        }
        __kernel void mixed_kk(__global int *a, int n) {
            inner(a, 2 * n);
        }
        """,
        a=lambda s: s.g0 + 2 * s.n,
    ),
    case(
        """
        #define W 1920
        #define H 1080
        __kernel void mixed_img1080(__global float *a) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < W && y < H) a[y * W + x] = 1;
        }
        """,
        a=lambda s: (min(s.g1, 1080) - 1) * 1920 + min(s.g0, 1920),
    ),
    case(
        """
        #define W 640
        __kernel void mixed_imgdiv(__global float *a, __global float *b) {
            int i = get_global_id(0);
            int y = i / W, x = i % W;
            a[y * W + x] = b[y];
        }
        """,
        a=items,
        b=lambda s: (s.g0 - 1) // 640 + 1,
    ),
    case(
        """
        __kernel void mixed_batch(__global float *x, __global const float *bias, __global float *o) {
            int i = get_global_id(0);
            o[i] = x[i] + bias[(i / 784) % 32];
        }
        """,
        x=items,
        o=items,
        bias=lambda s: min(32, (s.g0 - 1) // 784 + 1),
    ),
    case(
        """
        __kernel void mixed_warp(__global float *a, __global float *o) {
            __local float w[32];
            int l = get_local_id(0);
            if ((l & 31) == 0) w[l >> 5] = 1;
            barrier(CLK_LOCAL_MEM_FENCE);
            o[get_global_id(0)] = w[0];
            if (l >= 512) a[l] = 1;
        }
        """,
        o=items,
    ),
    case(
        """
        void red(__local float *s, int l) {
            for (int k = get_local_size(0) / 2; k > 0; k >>= 1) {
                if (l < k) s[l] += s[l + k];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
        }
        __kernel void mixed_reduce(__global float *a, __global float *o, int n) {
            __local float s[256];
            int l = get_local_id(0), i = get_global_id(0);
            s[l] = i < n ? a[i] : 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            red(s, l);
            if (l == 0) o[get_group_id(0)] = s[0];
        }
        """,
        a=guarded,
        o=groups,
    ),
    case(
        """
        void st(__local float *s, int l, float v) {
            *(s + l) = v;
        }
        __kernel void mixed_reduceptr(__global float *a, __global float *o) {
            __local float s[256];
            int l = get_local_id(0);
            __local float *p = s;
            st(p, l, a[get_global_id(0)]);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (l == 0) o[get_group_id(0)] = p[0];
        }
        """,
        a=items,
        o=groups,
    ),
    case(
        """
        __kernel void mixed_privptr(__global float *a, int n) {
            float t[16];
            float *p = t;
            for (int j = 0; j < n; j++) p[j] = j;
            a[get_global_id(0)] = p[n - 1];
        }
        """,
        a=items,
    ),
    case(
        """
        float2 tw(int inv, float x) {
            return inv ? (float2)(x, 1) : (float2)(1, x);
        }
        int off(int inv, int h) {
            if (inv) return h;
            return 0;
        }
        __kernel void mixed_inv(__global float2 *a, int inv) {
            int i = get_global_id(0);
            a[i + off(inv == 0, (int)get_global_size(0))] = tw(inv, 1.f);
        }
        """,
        a=items,
    ),
    case(
        """
        int idx(int i, int d) {
            switch (d) {
            case 1: return 2 * i;
            case 2: return 3 * i;
            }
            return i;
        }
        __kernel void mixed_dirhelper(__global float *a, int d) {
            a[idx(get_global_id(0), d)] = 1;
        }
        """,
        a=lambda s: {1: 2 * (s.g0 - 1) + 1, 2: 3 * (s.g0 - 1) + 1}.get(s.d, s.g0),
    ),
    case(
        """
        __kernel void mixed_neighbor(__global float *a, __global float *o, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < 1 || y < 1 || x >= w - 1 || y >= h - 1) return;
            o[y * w + x] = a[(y - 1) * w + x] + a[(y + 1) * w + x] + a[y * w + x - 1] + a[y * w + x + 1];
        }
        """,
    ),
    steered(
        """
        __kernel void mixed_histlocal(__global uint *d, __global uint *h) {
            __local uint t[256];
            int l = get_local_id(0);
            for (int j = l; j < 256; j += get_local_size(0)) t[j] = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            atomic_inc(&t[d[get_global_id(0)] & 255]);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int j = l; j < 256; j += get_local_size(0)) h[get_group_id(0) * 256 + j] = t[j];
        }
        """,
        d=items,
        h=lambda s: 256 * s.n0,
    ),
    steered(
        """
        __kernel void mixed_ddlocal(__global int *d, __global float *o) {
            __local int t[64];
            __local int *p = t;
            int i = get_global_id(0);
            p[d[i] & 63] = 1;
            barrier(CLK_LOCAL_MEM_FENCE);
            o[i] = p[i & 63];
        }
        """,
        d=items,
        o=items,
    ),
    steered(
        """
        __kernel void mixed_ddloop(__global int *d, __global float *o) {
            int i = get_global_id(0);
            int v = d[i], c = 0;
            while (v) {
                v &= v - 1;
                c++;
            }
            o[i] = c;
        }
        """,
        d=items,
        o=items,
    ),
    steered(
        """
        __kernel void mixed_ddmag(__global int *d, __global float *o) {
            int i = get_global_id(0);
            float s = 0;
            int m = d[i] == 7 ? 50 : 1;
            for (int j = 0; j < m; j++) s += j;
            o[i] = s;
        }
        """,
        d=items,
        o=items,
    ),
    case(
        """
        __kernel __attribute__((reqd_work_group_size(64, 1, 1))) void mixed_reqd(__global float *a,
                                                                                 __global float *b, int n) {
            a[get_group_id(0) * n + get_local_id(0)] = 1;
            b[get_local_size(0) * get_num_groups(0) - 1] = 2;
        }
        """,
        a=lambda s: (s.n0 - 1) * s.n + 64,
        b=items,
    ),
    case(
        """
        __kernel void mixed_localcnt2(__global int *in, __global int *o) {
            __local int c;
            if (get_global_id(0) % 2 == 0) c = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            int p = atomic_add(&c, 1);
            o[p * 2] = in[get_global_id(0)];
        }
        """,
    ),
    case(
        """
        #define TS 16
        __kernel void mixed_tile(__global float *A, __global float *B, __global float *C, int n) {
            __local float a[TS][TS], b[TS][TS];
            int x = get_global_id(0), y = get_global_id(1), lx = get_local_id(0), ly = get_local_id(1);
            float s = 0;
            for (int t = 0; t < n / TS; t++) {
                a[ly][lx] = A[y * n + t * TS + lx];
                b[ly][lx] = B[(t * TS + ly) * n + x];
                barrier(CLK_LOCAL_MEM_FENCE);
                for (int k = 0; k < TS; k++) s += a[ly][k] * b[k][lx];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            C[y * n + x] = s;
        }
        """,
        C=lambda s: (s.g1 - 1) * s.n + s.g0,
    ),
    case(
        """
        __kernel void mixed_ml(__global float *a, __global float *m, int n) {
            int i = get_global_id(0);
            a[i] -= m[i / (64 * 64)];
        }
        """,
        a=items,
        m=lambda s: (s.g0 - 1) // 4096 + 1,
    ),
    case(
        """
        __kernel void mixed_2dlid(__global float *part, __global float *a) {
            int lx = get_local_id(0), ly = get_local_id(1);
            int i = get_global_id(1) * get_global_size(0) + get_global_id(0);
            a[i] = 1;
            part[(lx / 32) * 2 + 1] = 1;
        }
        """,
        a=plane,
        part=lambda s: (s.l0 - 1) // 32 * 2 + 2,
    ),
)
