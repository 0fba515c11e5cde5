"""Kernels written to mislead: what small launches show is not what large ones do, or nearly no size is special."""

from __future__ import annotations

from tests.extents.case import Sizes, case, guarded, items, one, plane, steered


def _power_of_two(s: Sizes) -> int:
    return 1 << (s.g0 - 1).bit_length()


def _last_stepped(s: Sizes) -> int:
    """The largest index below ``n`` that starts at a work-item and goes on by ``step``."""
    if s.g0 >= s.step or s.g0 >= s.n:
        return s.n
    return s.n - 1 - max(0, (s.n - 1) % s.step - (s.g0 - 1)) + 1


CASES = (
    case(
        """
        __kernel void guard_of_sum(__global float *a, int n, int m) {
            int i = get_global_id(0);
            if (i < n + m) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, s.n + s.m),
    ),
    case(
        """
        __kernel void guard_of_difference(__global float *a, int n, int m) {
            int i = get_global_id(0);
            if (i + m < n) a[i + m] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0 + s.m, s.n) if s.n > s.m else 0,
    ),
    case(
        """
        __kernel void step_is_scalar(__global float *a, int n, int step) {
            for (int i = get_global_id(0); i < n; i += step) a[i] = 1.0f;
        }
        """,
        a=_last_stepped,
    ),
    case(
        """
        __kernel void larger_of_scalars(__global float *a, int n, int m) {
            int i = get_global_id(0);
            a[i % max(n, m)] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, max(s.n, s.m)),
    ),
    case(
        """
        __kernel void threshold_in_helper(__global float *a, int n) {
            int i = get_global_id(0), far = n * n > 4000000 ? n : 0;
            a[i + far] = 1.0f;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.n * s.n > 4000000 else 0),
    ),
    case(
        """
        __kernel void wraps_as_short(__global float *a, __global float *o) {
            short i = (short)get_global_id(0);
            o[get_global_id(0)] = a[i < 0 ? 0 : i];
        }
        """,
        a=lambda s: min(s.g0, 32768),
        o=items,
    ),
    case(
        """
        __kernel void narrow_product(__global float *a, uchar n) {
            uchar m = n * 3;
            a[get_global_id(0) + m] = 1.0f;
        }
        """,
        a=lambda s: s.g0 + s.n * 3 % 256,
    ),
    case(
        """
        __kernel void rare_work_item(__global float *a) {
            size_t i = get_global_id(0);
            a[i == 70000 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: max(s.g0, 140001) if s.g0 > 70000 else s.g0,
    ),
    case(
        """
        __kernel void triangle_rows(__global float *rows, __global float *o) {
            int i = get_global_id(0);
            int row = (int)((sqrt(8.0f * i + 1.0f) - 1.0f) * 0.5f);
            rows[row] = i;
            o[i] = row;
        }
        """,
        o=items,
    ),
    case(
        """
        __kernel void next_power(__global float *a) {
            uint p = 1;
            while (p < get_global_size(0)) p <<= 1;
            a[p - 1] = 1.0f;
        }
        """,
        a=_power_of_two,
    ),
    case(
        """
        __kernel void levels_of_tree(__global float *a, __global float *o, int n) {
            int levels = 0;
            for (int m = n; m > 1; m >>= 1) levels++;
            a[levels] = 1.0f;
            o[get_global_id(0)] = levels;
        }
        """,
        a=lambda s: s.n.bit_length(),
        o=items,
    ),
    case(
        """
        __kernel void large_local_size(__global float *a) {
            int i = get_global_id(0);
            a[get_local_size(0) > 512 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: 2 * s.g0 - 1 if s.l0 > 512 else s.g0,
    ),
    case(
        """
        __kernel void many_groups(__global float *a, __global float *o) {
            o[get_global_id(0)] = 1.0f;
            if (get_num_groups(0) > 3000) a[get_group_id(0)] = 1.0f;
            else if (get_group_id(0) == 0) a[0] = 1.0f;
        }
        """,
        a=lambda s: s.n0 if s.n0 > 3000 else 1,
        o=items,
    ),
    case(
        """
        __kernel void divides_evenly(__global float *a, int n) {
            int i = get_global_id(0);
            a[get_global_size(0) % n == 0 ? i : i + n] = 1.0f;
        }
        """,
        a=lambda s: s.g0 + (s.n if s.g0 % s.n else 0),
    ),
    case(
        """
        __kernel void scalars_in_order(__global float *a, int lo, int mid, int hi) {
            int i = get_global_id(0);
            a[lo < mid && mid < hi ? i + hi : i] = 1.0f;
        }
        """,
        a=lambda s: s.g0 + (s.hi if s.lo < s.mid < s.hi else 0),
    ),
    case(
        """
        __kernel void cubic_guard(__global float *a, int n) {
            size_t i = get_global_id(0);
            if (i < (size_t)n * n * n) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, s.n**3),
    ),
    case(
        """
        __kernel void capped_by_constant(__global float *a, __global float *o, int n) {
            int m = min(n, 300);
            for (int k = 0; k < m; ++k) a[k] = k;
            o[get_global_id(0)] = m;
        }
        """,
        a=lambda s: min(s.n, 300),
        o=items,
    ),
    case(
        """
        __kernel void in_column_major(__global float *a, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x * h + y < get_global_size(0) * 16) a[x * h + y] = 1.0f;
        }
        """,
    ),
    case(
        """
        __kernel void last_of_three(__global float *a, int n, int m, int k) {
            int i = get_global_id(0), stop = min(n, min(m, k));
            if (i < stop) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, s.n, s.m, s.k),
    ),
    case(
        """
        __kernel void negative_start(__global float *a, int n) {
            int i = (int)get_global_id(0) - n;
            if (i >= 0) a[i] = 1.0f;
        }
        """,
        a=lambda s: max(0, s.g0 - s.n),
    ),
    case(
        """
        __kernel void cursor_in_loop(__global float *a, int n) {
            int at = get_global_id(0);
            for (int k = 0; k < n; ++k) at += k & 1 ? 3 : -1;
            a[at < 0 ? 0 : at] = 1.0f;
        }
        """,
        a=lambda s: max(1, s.g0 + 2 * (s.n // 2) - s.n % 2),
    ),
    steered(
        """
        __kernel void value_times_stride(__global const int *index, __global float *a, int stride) {
            int i = get_global_id(0);
            a[index[i] * stride + i] = 1.0f;
        }
        """,
        index=items,
    ),
    steered(
        """
        __kernel void while_unsorted(__global const float *keys, __global float *out, int n) {
            int i = get_global_id(0), turns = 0;
            while (turns < n && keys[turns] < keys[i]) turns++;
            out[i] = turns;
        }
        """,
        out=items,
    ),
    case(
        """
        __kernel void two_d_as_guard(__global float *a, __global float *first, int n) {
            int i = get_global_id(1) * get_global_size(0) + get_global_id(0);
            if (i < n) a[i] = 1.0f;
            if (i == 0) first[0] = n;
        }
        """,
        a=lambda s: min(plane(s), s.n),
        first=one,
    ),
    case(
        """
        __kernel void guard_is_ulong(__global float *a, ulong n, ulong base) {
            ulong i = get_global_id(0);
            if (i < n) a[base + i] = 1.0f;
        }
        """,
        a=lambda s: s.base + guarded(s),
    ),
    case(
        """
        __kernel void group_of_64(__global float *a, __global float *o) {
            o[get_global_id(0)] = a[get_local_id(0) & 63];
        }
        """,
        a=lambda s: min(s.l0, 64),
        o=items,
    ),
)
