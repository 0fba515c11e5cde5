"""Thresholds beyond what a probe can afford, spelled so that no constant in the text says where they lie."""

from __future__ import annotations

import numpy as np

from tests.extents.case import Sizes, case, items, plane, volume


def _doubled(is_far: bool, elements: int) -> int:
    """One element a work-item, or every other one where the condition holds for all of them."""
    return 2 * elements - 1 if is_far else elements


def _within(s: Sizes, side: int) -> int:
    """The furthest cell below ``side`` squared, in rows of ``side`` that may run into the next ones."""
    return min((min(s.g1, side) - 1) * side + s.g0, side * side)


CASES = (
    case(
        """
        __kernel void product_of_literals(__global float *a) {
            int i = get_global_id(0);
            if (i < 512 * 512) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 2**18),
    ),
    case(
        """
        __kernel void shifted_one(__global float *a) {
            int i = get_global_id(0);
            if (i < 1 << 18) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 2**18),
    ),
    case(
        """
        int is_near(int i) { return i < (1 << 9) * (1 << 9); }
        __kernel void product_in_helper(__global float *a) {
            int i = get_global_id(0);
            if (is_near(i)) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 2**18),
    ),
    case(
        """
        __kernel void divided_twice(__global float *a, __global float *o) {
            int i = get_global_id(0);
            o[i] = a[i / 512 / 512];
        }
        """,
        a=lambda s: (s.g0 - 1) // 2**18 + 1,
        o=items,
    ),
    case(
        """
        __kernel void divided_by_product(__global float *a, __global float *o) {
            int i = get_global_id(0), frame = 600 * 600;
            o[i] = a[i / frame];
        }
        """,
        a=lambda s: (s.g0 - 1) // 360_000 + 1,
        o=items,
    ),
    case(
        """
        __kernel void shifted_twice(__global float *a, __global float *o) {
            uint i = get_global_id(0), row = i >> 9;
            o[i] = a[row >> 9];
        }
        """,
        a=lambda s: ((s.g0 - 1) >> 18) + 1,
        o=items,
    ),
    case(
        """
        __kernel void leading_zeros(__global float *a) {
            uint i = get_global_id(0);
            if (clz(i) >= 14) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 2**18),
    ),
    case(
        """
        __kernel void saturated_row(__global float *a, __global float *o) {
            uint i = get_global_id(0);
            o[i] = a[convert_uchar_sat(i >> 10)];
        }
        """,
        a=lambda s: min(255, (s.g0 - 1) >> 10) + 1,
        o=items,
    ),
    case(
        """
        __kernel void wrapped_row(__global float *a, __global float *o) {
            uint i = get_global_id(0);
            o[i] = a[(uchar)(i >> 10)];
        }
        """,
        a=lambda s: min(255, (s.g0 - 1) >> 10) + 1,
        o=items,
    ),
    case(
        """
        __kernel void rounded_to_float(__global float *a, __global float *o) {
            uint i = get_global_id(0);
            float x = (float)i;
            o[i] = a[(uint)x];
        }
        """,
        a=lambda s: int(np.float32(s.g0 - 1)) + 1,
        o=items,
    ),
    case(
        """
        __kernel void wraps_at_32_bits(__global char *a, __global char *o) {
            uint i = get_global_id(0);
            o[i] = a[i * 100u / 100u];
        }
        """,
        a=lambda s: min(s.g0, (2**32 - 1) // 100 + 1),
        o=items,
    ),
    case(
        """
        __kernel void root_of_id(__global float *a) {
            int i = get_global_id(0);
            if (sqrt((float)i) < 512.0f) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 2**18),
    ),
    case(
        """
        __kernel void limit_of_type(__global float *a) {
            int i = get_global_id(0);
            if (i <= SHRT_MAX * 8) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 32767 * 8 + 1),
    ),
    case(
        """
        __constant float LIMITS[2] = {3.0e5f, 1.0f};
        __kernel void limit_in_table(__global float *a) {
            int i = get_global_id(0);
            if (i * LIMITS[1] < LIMITS[0]) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 300_000),
    ),
    case(
        """
        enum { SIDE = 550, AREA = SIDE * SIDE };
        __kernel void limit_by_enumerator(__global float *a) {
            int i = get_global_id(0);
            if (i < AREA) a[i] = 1.0f;
        }
        """,
        a=lambda s: min(s.g0, 302_500),
    ),
    case(
        """
        int is_late(size_t group) { return group > 20000; }
        __kernel void late_groups(__global float *a) {
            size_t i = get_global_id(0);
            a[is_late(get_num_groups(0)) ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.n0 > 20000, s.g0),
    ),
    case(
        """
        __kernel void product_of_groups(__global float *a) {
            size_t i = get_global_id(0);
            a[get_num_groups(0) > 150 * 150 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.n0 > 22_500, s.g0),
    ),
    case(
        """
        __kernel void three_warps(__global float *a) {
            size_t i = get_global_id(0);
            a[get_local_size(0) / 32 == 3 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.l0 // 32 == 3, s.g0),
    ),
    case(
        """
        __kernel void odd_warps(__global float *a) {
            size_t i = get_global_id(0);
            a[(get_local_size(0) & 0x1ff) == 0x120 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.l0 & 0x1FF == 0x120, s.g0),
    ),
    case(
        """
        __kernel void flat_groups(__global float *a) {
            size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
            a[get_local_size(1) == 1 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.l1 == 1, plane(s)),
    ),
    case(
        """
        __kernel void wide_groups(__global float *a) {
            size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
            a[get_local_size(0) == 32 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.l0 == 32, plane(s)),
    ),
    case(
        """
        __kernel void flat_boxes(__global float *a) {
            size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0)
                     + get_global_id(0);
            a[get_local_size(2) == 1 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.l2 == 1, volume(s)),
    ),
    case(
        """
        __kernel void wide_plane(__global float *a) {
            size_t x = get_global_id(0), y = get_global_id(1);
            if (y * 700 + x < 700 * 700) a[y * 700 + x] = 1.0f;
        }
        """,
        a=lambda s: _within(s, 700),
    ),
    case(
        """
        __kernel void area_of_scalar(__global float *a, int n) {
            int i = get_global_id(0);
            if (i < n) a[(ulong)n * n > 100000ul * 100000ul ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.n > 100_000, min(s.g0, s.n)),
    ),
    case(
        """
        __kernel void squared_scalar(__global float *a, int n) {
            int i = get_global_id(0);
            if (i < n) a[log2((float)n) > 17.5f ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.n > 2**17.5, min(s.g0, s.n)),
    ),
    case(
        """
        __kernel void equal_to_range(__global float *a, int n) {
            int i = get_global_id(0);
            if (i < n) a[n == get_global_size(0) && n / 400 > 400 ? 2 * i : i] = 1.0f;
        }
        """,
        a=lambda s: _doubled(s.n == s.g0 and s.n // 400 > 400, min(s.g0, s.n)),
    ),
)
