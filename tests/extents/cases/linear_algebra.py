"""Dense linear algebra as PolyBench, clBLAS and Rodinia write it: leading dimensions, offsets, increments."""

from __future__ import annotations

from tests.extents.case import Sizes, case, groups, guarded, lanes, one, pitched


def _below(s: Sizes) -> int:
    """The rows below the diagonal that a step of an elimination reaches, as the index after the last one."""
    return min(s.g0 + s.t + 1, s.n) if s.t + 1 < s.n else 0


def _right(s: Sizes) -> int:
    return min(s.g1 + s.t, s.n) if s.t < s.n else 0


def _band(s: Sizes) -> int:
    rows = min(s.g0, s.n)
    below = min(s.kl, rows - 1)
    return (s.ku + below) * s.n + rows - below


CASES = (
    case(
        """
        __kernel void gemm_leading(int k, __global const float *a, int lda, __global const float *b, int ldb,
                                   __global float *c, int ldc) {
            int row = get_global_id(1), col = get_global_id(0);
            float sum = 0.0f;
            for (int i = 0; i < k; ++i) sum += a[row * lda + i] * b[i * ldb + col];
            c[row * ldc + col] = sum;
        }
        """,
        a=lambda s: (s.g1 - 1) * s.lda + s.k,
        b=lambda s: (s.k - 1) * s.ldb + s.g0,
        c=lambda s: (s.g1 - 1) * s.ldc + s.g0,
    ),
    case(
        """
        __kernel void gemm_offsets(uint k, __global const float *a, uint off_a, uint lda,
                                   __global const float *b, uint off_b, uint ldb, __global float *c, uint off_c,
                                   uint ldc, float alpha, float beta) {
            const uint row = get_global_id(0), col = get_global_id(1);
            a += off_a;
            b += off_b + col * ldb;
            float sum = 0.0f;
            for (uint i = 0; i < k; i++) {
                sum = mad(a[i * lda + row], *b, sum);
                b++;
            }
            __global float *out = c + off_c + col * ldc + row;
            *out = alpha * sum + beta * *out;
        }
        """,
        a=lambda s: s.off_a + (s.k - 1) * s.lda + s.g0,
        b=lambda s: s.off_b + (s.g1 - 1) * s.ldb + s.k,
        c=lambda s: s.off_c + (s.g1 - 1) * s.ldc + s.g0,
    ),
    case(
        """
        __kernel void axpy_increments(uint n, float alpha, __global const float *x, uint off_x, uint inc_x,
                                      __global float *y, uint off_y, uint inc_y) {
            uint i = get_global_id(0);
            if (i < n) y[off_y + i * inc_y] += alpha * x[off_x + i * inc_x];
        }
        """,
        x=lambda s: s.off_x + (guarded(s) - 1) * s.inc_x + 1,
        y=lambda s: s.off_y + (guarded(s) - 1) * s.inc_y + 1,
    ),
    case(
        """
        __kernel void dot_partial(__global const float *x, __global const float *y, __global float *partial,
                                  __local float *scratch, int n) {
            int l = get_local_id(0);
            float sum = 0.0f;
            for (int i = get_global_id(0); i < n; i += get_global_size(0)) sum += x[i] * y[i];
            scratch[l] = sum;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
                if (l < half_size) scratch[l] += scratch[l + half_size];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            if (l == 0) partial[get_group_id(0)] = scratch[0];
        }
        """,
        x=lambda s: s.n,
        y=lambda s: s.n,
        partial=groups,
        scratch=lanes,
    ),
    case(
        """
        __kernel void dot_final(__global const float *partial, __global float *result, __local float *scratch,
                                const uint parts) {
            uint l = get_local_id(0);
            float sum = 0.0f;
            for (uint i = l; i < parts; i += get_local_size(0)) sum += partial[i];
            scratch[l] = sum;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (l == 0) {
                for (uint i = 1; i < get_local_size(0); i++) sum += scratch[i];
                result[0] = sum;
            }
        }
        """,
        partial=lambda s: s.parts,
        result=one,
        scratch=lanes,
    ),
    case(
        """
        __kernel void atax_rows(__global const float *A, __global const float *x, __global float *tmp, int nx,
                                int ny) {
            int i = get_global_id(0);
            if (i < nx) {
                tmp[i] = 0;
                for (int j = 0; j < ny; j++) tmp[i] += A[i * ny + j] * x[j];
            }
        }
        """,
        A=lambda s: min(s.g0, s.nx) * s.ny,
        x=lambda s: s.ny,
        tmp=lambda s: min(s.g0, s.nx),
    ),
    case(
        """
        __kernel void atax_columns(__global const float *A, __global float *y, __global const float *tmp,
                                   int nx, int ny) {
            int j = get_global_id(0);
            if (j < ny) {
                y[j] = 0;
                for (int i = 0; i < nx; i++) y[j] += A[i * ny + j] * tmp[i];
            }
        }
        """,
        A=lambda s: (s.nx - 1) * s.ny + min(s.g0, s.ny),
        y=lambda s: min(s.g0, s.ny),
        tmp=lambda s: s.nx,
    ),
    case(
        """
        __kernel void ger_update(__global float *A, const int lda, __global const float *x, const int incx,
                                 __global const float *y, const int incy, const int m, const int n) {
            int i = get_global_id(0), j = get_global_id(1);
            if (i >= m || j >= n) return;
            A[j * lda + i] += x[i * incx] * y[j * incy];
        }
        """,
        A=lambda s: pitched(min(s.g1, s.n), min(s.g0, s.m), s.lda),
        x=lambda s: (min(s.g0, s.m) - 1) * s.incx + 1,
        y=lambda s: (min(s.g1, s.n) - 1) * s.incy + 1,
    ),
    case(
        """
        __kernel void syrk_lower(__global const float *a, __global float *c, int n, int m) {
            int i = get_global_id(1), j = get_global_id(0);
            if (i < n && j <= i)
                for (int k = 0; k < m; k++) c[i * n + j] += a[i * m + k] * a[j * m + k];
        }
        """,
        a=lambda s: min(s.g1, s.n) * s.m,
        c=lambda s: (min(s.g1, s.n) - 1) * s.n + min(s.g0, s.g1, s.n),
    ),
    case(
        """
        __kernel void packed_symmetric(__global float *ap, __global const float *x, uint n) {
            uint row = get_global_id(1), col = get_global_id(0);
            if (row < n && col <= row) ap[row * (row + 1) / 2 + col] += x[row] * x[col];
        }
        """,
        ap=lambda s: (min(s.g1, s.n) - 1) * min(s.g1, s.n) // 2 + min(s.g0, s.g1, s.n),
        x=lambda s: min(s.g1, s.n),
    ),
    case(
        """
        __kernel void trmv_upper(__global const float *a, int lda, __global const float *x, __global float *y,
                                 int n) {
            int i = get_global_id(0);
            if (i < n) {
                float sum = 0.0f;
                for (int j = i; j < n; ++j) sum += a[i * lda + j] * x[j];
                y[i] = sum;
            }
        }
        """,
        a=lambda s: (guarded(s) - 1) * s.lda + s.n,
        x=lambda s: s.n,
        y=guarded,
    ),
    case(
        """
        __kernel void trsv_step(__global const float *a, __global float *b, int n, int t) {
            int row = get_global_id(0) + t + 1;
            if (row < n) b[row] -= a[row * n + t] * b[t];
        }
        """,
        a=lambda s: pitched(_below(s), s.t + 1, s.n),
        b=_below,
    ),
    case(
        """
        __kernel void gaussian_fan1(__global float *m, __global const float *a, const int n, const int t) {
            int i = get_global_id(0);
            if (i < n - 1 - t) *(m + n * (i + t + 1) + t) = *(a + n * (i + t + 1) + t) / *(a + n * t + t);
        }
        """,
        m=lambda s: pitched(_below(s), s.t + 1, s.n),
        a=lambda s: pitched(_below(s), s.t + 1, s.n),
    ),
    case(
        """
        __kernel void gaussian_fan2(__global const float *m, __global float *a, __global float *b, const int n,
                                    const int t) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < n - 1 - t && y < n - t) {
                a[n * (x + 1 + t) + (y + t)] -= m[n * (x + 1 + t) + t] * a[n * t + (y + t)];
                if (y == 0) b[x + 1 + t] -= m[n * (x + 1 + t) + (y + t)] * b[t];
            }
        }
        """,
        m=lambda s: pitched(_below(s), s.t + 1, s.n),
        a=lambda s: pitched(_below(s), _right(s), s.n),
        b=_below,
    ),
    case(
        """
        __kernel void batched_4x4(__global const float *a, __global const float *b, __global float *c) {
            int i = get_global_id(0), batch = i / 16, row = i / 4 % 4, col = i % 4;
            float sum = 0.0f;
            for (int k = 0; k < 4; ++k) sum += a[batch * 16 + row * 4 + k] * b[batch * 16 + k * 4 + col];
            c[i] = sum;
        }
        """,
        a=lambda s: -(-s.g0 // 4) * 4,
        b=lambda s: (s.g0 - 1) // 16 * 16 + 12 + min(4, (s.g0 - 1) % 16 + 1),
        c=lambda s: s.g0,
    ),
    case(
        """
        __kernel void batched_strided(int k, __global const float *a, int lda, long stride_a,
                                      __global const float *b, int ldb, long stride_b, __global float *c, int ldc,
                                      long stride_c) {
            int col = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
            __global const float *pa = a + batch * stride_a, *pb = b + batch * stride_b;
            float sum = 0.0f;
            for (int i = 0; i < k; ++i) sum += pa[row * lda + i] * pb[i * ldb + col];
            (c + batch * stride_c)[row * ldc + col] = sum;
        }
        """,
        a=lambda s: (s.g2 - 1) * s.stride_a + (s.g1 - 1) * s.lda + s.k,
        b=lambda s: (s.g2 - 1) * s.stride_b + (s.k - 1) * s.ldb + s.g0,
        c=lambda s: (s.g2 - 1) * s.stride_c + (s.g1 - 1) * s.ldc + s.g0,
    ),
    case(
        """
        __kernel void correlation_upper(__global float *corr, __global const float *data, int m, int n) {
            int j1 = get_global_id(0);
            if (j1 < m - 1) {
                corr[j1 * m + j1] = 1.0f;
                for (int j2 = j1 + 1; j2 < m; j2++) {
                    corr[j1 * m + j2] = 0.0f;
                    for (int i = 0; i < n; i++) corr[j1 * m + j2] += data[i * m + j1] * data[i * m + j2];
                    corr[j2 * m + j1] = corr[j1 * m + j2];
                }
            }
        }
        """,
        corr=lambda s: pitched(s.m, min(s.g0, s.m - 1), s.m),
        data=lambda s: s.n * s.m if s.m > 1 else 0,
    ),
    case(
        """
        __kernel void complex_scale(__global float *x, const float re, const float im, const int n) {
            int i = get_global_id(0);
            if (i < n) {
                float a = x[2 * i], b = x[2 * i + 1];
                x[2 * i] = a * re - b * im;
                x[2 * i + 1] = a * im + b * re;
            }
        }
        """,
        x=lambda s: 2 * guarded(s),
    ),
    case(
        """
        __kernel void band_matvec(__global const float *ab, __global const float *x, __global float *y, int n,
                                  int kl, int ku) {
            int i = get_global_id(0);
            if (i >= n) return;
            float sum = 0.0f;
            for (int j = max(0, i - kl); j <= min(n - 1, i + ku); ++j) sum += ab[(ku + i - j) * n + j] * x[j];
            y[i] = sum;
        }
        """,
        ab=_band,
        x=lambda s: min(guarded(s) + s.ku, s.n),
        y=guarded,
    ),
)
