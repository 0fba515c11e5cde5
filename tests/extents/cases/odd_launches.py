"""Square guards, groups in two dimensions, sizes rounded up, device macros."""

from __future__ import annotations

from tests.extents.case import Sizes, case, items, pitched, plane


def _square(s: Sizes) -> int:
    """The part of an ``n`` by ``n`` matrix that the work-items reach."""
    return pitched(min(s.g1, s.n), min(s.g0, s.n), s.n)


CASES = (
    case(
        """
        void st(__local float *s, int l, float v) {
            s[l] = v;
        }
        __kernel void odd_ovfptr(__global float *a, __global float *o, int n) {
            __local float s[64];
            __local int guard[4];
            int l = get_local_id(0);
            if (l < 4) guard[l] = 3;
            barrier(CLK_LOCAL_MEM_FENCE);
            st(s, l, 1000000.f);
            barrier(CLK_LOCAL_MEM_FENCE);
            o[get_global_id(0)] = a[guard[l & 3]];
        }
        """,
        a=lambda s: 4,
        o=items,
    ),
    case(
        """
        __kernel void odd_float_scalar(__global float *a, float w) {
            int i = get_global_id(0);
            a[i * (int)w] = 1;
        }
        """,
        a=items,
    ),
    case(
        """
        __kernel void odd_float_n(__global float *a, float thr) {
            int i = get_global_id(0);
            a[thr < 0.5f ? i + 100 : i] = 1;
        }
        """,
        a=items,
    ),
    case(
        """
        __kernel void odd_uint3(__global float *a, uint4 dim) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < dim.x && y < dim.y) a[y * dim.x + x] = 1;
        }
        """,
        a=lambda s: (min(s.g1, s.dim) - 1) * s.dim + min(s.g0, s.dim),
    ),
    case(
        """
        __kernel void odd_2dgroup(__global float *a) {
            int gx = get_group_id(0), gy = get_group_id(1);
            a[(gy * get_num_groups(0) + gx) * get_local_size(1) + get_local_id(1)] = 1;
        }
        """,
        a=lambda s: s.n0 * s.n1 * s.l1,
    ),
    case(
        """
        __kernel void odd_divlocal(__global float *a, __global float *b) {
            int w = get_global_id(0) / 32;
            if ((get_global_id(0) & 31) == 0) a[w] = 1;
            b[get_global_id(0) / 512] = 1;
        }
        """,
        a=lambda s: (s.g0 - 1) // 32 + 1,
        b=lambda s: (s.g0 - 1) // 512 + 1,
    ),
    case(
        """
        __kernel void odd_lt2loop(__global float *a, int order) {
            int i = get_global_id(0);
            if (order >= 2)
                a[i] = 1;
            else
                a[i * 4] = 1;
        }
        """,
        a=lambda s: s.g0 if s.order >= 2 else 4 * (s.g0 - 1) + 1,
    ),
    case(
        """
        __kernel void odd_nested_noid(__global float *a, __global float *o) {
            __local float t[32];
            __local int c;
            c = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            int me = atomic_inc(&c);
            if (me < 32) t[me] = 1;
            barrier(CLK_LOCAL_MEM_FENCE);
            o[get_global_id(0)] = a[me + 1];
        }
        """,
        a=lambda s: s.l0 + 1,
        o=items,
    ),
    case(
        """
        __kernel void odd_half(__global float *a, uint n) {
            uint i = get_global_id(0);
            uint h = n >> 11;
            a[i + h] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n >> 11),
    ),
    case(
        """
        __kernel void odd_pow2pad(__global float *a, __global float *o, uint n) {
            uint i = get_global_id(0);
            uint p = ((n + 4095) / 4096) * 4096;
            o[i] = a[p - 1];
        }
        """,
        o=items,
        a=lambda s: (s.n + 4095) // 4096 * 4096,
    ),
    case(
        """
        __kernel void odd_align(__global float *a, uint n) {
            uint i = get_global_id(0);
            uint p = (n + 31) & ~31u;
            a[i + p] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n + 31 & ~31),
    ),
    case(
        """
        __kernel void odd_sq(__global float *a) {
            int x = get_global_id(0), y = get_global_id(1);
            if (get_global_size(0) == get_global_size(1))
                a[x * get_global_size(1) * 2 + y] = 1;
            else
                a[x] = 1;
        }
        """,
    ),
    case(
        """
        __kernel void odd_g_eq_n(__global float *a, int n) {
            int i = get_global_id(0);
            if (get_global_size(0) == n * 4) a[i + n] = 1;
            a[i] = 1;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.g0 == 4 * s.n else 0),
    ),
    case(
        """
        __kernel void odd_bits(__global float *a, int flags) {
            int i = get_global_id(0);
            if (flags & (1 << 13))
                a[2 * i] = 1;
            else
                a[i] = 1;
        }
        """,
        a=lambda s: 2 * (s.g0 - 1) + 1 if s.flags & 8192 else s.g0,
    ),
    case(
        """
        __kernel void odd_2dthr(__global float *a, __global float *t) {
            int x = get_global_id(0), y = get_global_id(1);
            a[y * get_global_size(0) + x] = t[(x >> 6) + (y >> 6) * 4];
        }
        """,
        a=plane,
        t=lambda s: (s.g0 - 1 >> 6) + (s.g1 - 1 >> 6) * 4 + 1,
    ),
    case(
        """
        #if __OPENCL_VERSION__ >= 200
        #define M 3
        #else
        #define M 1
        #endif
        __kernel void odd_ifdefgpu(__global float *a) {
            a[get_global_id(0) * M] = 1;
        }
        """,
    ),
    case(
        """
        __kernel void square_nn(__global float *a, __global float *o, int n) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < n && y < n) o[y * n + x] = a[x * n + y];
        }
        """,
        o=_square,
        a=lambda s: (min(s.g0, s.n) - 1) * s.n + min(s.g1, s.n),
    ),
    case(
        """
        __kernel void square_matmul(__global float *A, __global float *B, __global float *C, int n) {
            int c = get_global_id(0), r = get_global_id(1);
            if (r >= n || c >= n) return;
            float s = 0;
            for (int j = 0; j < n; j++) s += A[r * n + j] * B[j * n + c];
            C[r * n + c] = s;
        }
        """,
        C=_square,
        A=lambda s: min(s.g1, s.n) * s.n,
        B=lambda s: (s.n - 1) * s.n + min(s.g0, s.n),
    ),
    case(
        """
        __kernel void square_between(__global float *a, int n) {
            int x = get_global_id(0), y = get_global_id(1);
            int i = y * get_global_size(0) + x;
            a[(get_global_size(0) < n) && (get_global_size(1) > n) ? i + n : i] = 1;
        }
        """,
        a=lambda s: s.g0 * s.g1 + (s.n if s.g0 < s.n < s.g1 else 0),
    ),
    case(
        """
        __kernel void square_3d(__global float *a, int n) {
            int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
            if (x < n && y < n && z < n) a[(z * n + y) * n + x] = 1;
        }
        """,
        a=lambda s: ((min(s.g2, s.n) - 1) * s.n + min(s.g1, s.n) - 1) * s.n + min(s.g0, s.n),
    ),
    case(
        """
        __kernel void square_lgs(__global float *a, int n) {
            int l = get_local_id(0);
            if (get_group_id(0) < n && l < n) a[get_group_id(0) * n + l] = 1;
        }
        """,
        a=lambda s: (min(s.n0, s.n) - 1) * s.n + min(s.l0, s.n),
    ),
)
