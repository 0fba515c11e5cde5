"""Ways to write an address: vector tails, offsets of the NDRange, group ids, helpers with results by pointer."""

from __future__ import annotations

from tests.extents.case import case, groups, guarded, items, lanes, plane, volume

CASES = (
    case(
        """
        __kernel void vector_with_tail(__global const float *a, __global float *b, uint n) {
            uint i = get_global_id(0);
            if (4 * i + 3 < n) vstore4(vload4(i, a) * 2.0f, i, b);
            else
                for (uint k = 4 * i; k < n; ++k) b[k] = a[k] * 2.0f;
        }
        """,
        a=lambda s: min(4 * s.g0, s.n),
        b=lambda s: min(4 * s.g0, s.n),
    ),
    case(
        """
        __kernel void shifted_vectors(__global const float *a, __global float *b, int shift) {
            int i = get_global_id(0);
            vstore8(vload8(i, a + shift), i + 1, b - 4);
        }
        """,
        a=lambda s: 8 * s.g0 + s.shift,
        b=lambda s: 8 * s.g0 + 4,
    ),
    case(
        """
        __kernel void offset_of_range(__global float *a, __global float *b) {
            size_t i = get_global_id(0) - get_global_offset(0);
            a[i] = get_global_offset(0);
            b[get_global_offset(0) + get_group_id(0) * get_local_size(0) + get_local_id(0) + 2] = 1.0f;
        }
        """,
        a=items,
        b=lambda s: s.g0 + 2,
    ),
    case(
        """
        __kernel void linear_ids(__global float *a, __global float *b) {
            size_t id = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0)
                      + get_global_id(0);
            size_t group = (get_group_id(2) * get_num_groups(1) + get_group_id(1)) * get_num_groups(0)
                         + get_group_id(0);
            a[id] = group;
            b[group] = id;
        }
        """,
        a=volume,
        b=lambda s: s.n0 * s.n1 * s.n2,
    ),
    case(
        """
        void bounds_of(int group, int chunk, int n, int *begin, int *end) {
            *begin = group * chunk;
            *end = min(*begin + chunk, n);
        }
        __kernel void chunk_per_group(__global const float *in, __global float *out, int chunk, int n) {
            int begin, end;
            bounds_of(get_group_id(0), chunk, n, &begin, &end);
            float sum = 0.0f;
            for (int i = begin + get_local_id(0); i < end; i += get_local_size(0)) sum += in[i];
            out[get_group_id(0) * get_local_size(0) + get_local_id(0)] = sum;
        }
        """,
        **{"in": lambda s: min(s.n0 * s.chunk, s.n), "out": items},
    ),
    case(
        """
        int2 split(int i, int width) { return (int2)(i % width, i / width); }
        void put(__global float *out, int2 at, int pitch, float v) { out[at.y * pitch + at.x] = v; }
        __kernel void split_and_put(__global float *out, int pitch) {
            put(out + 1, split(get_global_id(0), 32), pitch, 1.0f);
        }
        """,
        out=lambda s: (s.g0 - 1) // 32 * s.pitch + (s.g0 - 1) % 32 + 2,
    ),
    case(
        """
        __kernel void items_per_thread(__global const float *in, __global float *out, int per_item) {
            __global const float *from = in + get_global_id(0) * per_item;
            __global float *to = &out[get_global_id(0) * per_item];
            while (per_item-- > 0) *to++ = *from++;
        }
        """,
        **{"in": lambda s: s.g0 * s.per_item, "out": lambda s: s.g0 * s.per_item},
    ),
    case(
        """
        __kernel void group_interleaved(__global const float *in, __global float *out) {
            size_t at = get_local_id(0) * get_num_groups(0) + get_group_id(0);
            out[get_global_id(0)] = in[at];
        }
        """,
        **{"in": items, "out": items},
    ),
    case(
        """
        __kernel void reversed_rows(__global const int *in, __global int *out, int w) {
            int x = get_global_id(0), y = get_global_id(1), h = get_global_size(1);
            if (x < w) out[(h - 1 - y) * w + (w - 1 - x)] = in[y * w + x];
        }
        """,
        **{"in": lambda s: (s.g1 - 1) * s.w + min(s.g0, s.w), "out": lambda s: s.g1 * s.w},
    ),
    case(
        """
        __kernel void swizzled_tiles(__global float *out) {
            int x = get_global_id(0), y = get_global_id(1);
            int tile = (y / 8) * (get_global_size(0) / 8) + x / 8;
            out[tile * 64 + (y % 8) * 8 + x % 8] = 1.0f;
        }
        """,
    ),
    case(
        """
        __kernel void copy_tile_async(__global const float *in, __global float *out, __local float *tile,
                                      int rows, int pitch) {
            size_t width = get_local_size(0);
            for (int r = 0; r < rows; ++r) {
                event_t done = async_work_group_copy(tile, in + r * pitch + get_group_id(0) * width, width, 0);
                wait_group_events(1, &done);
                out[r * get_global_size(0) + get_global_id(0)] = tile[get_local_id(0)];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
        }
        """,
        **{
            "in": lambda s: (s.rows - 1) * s.pitch + s.g0,
            "out": lambda s: s.rows * s.g0,
            "tile": lanes,
        },
    ),
    case(
        """
        typedef struct { int first, count; float weights[6]; } Bin;
        __kernel void struct_by_value(__global Bin *bins, __global float *out, int stride) {
            Bin mine = bins[get_global_id(0) * stride];
            mine.count += 1;
            bins[get_global_id(0) * stride + 1] = mine;
            out[get_global_id(0)] = mine.weights[5];
        }
        """,
        bins=lambda s: (s.g0 - 1) * s.stride + 2,
        out=items,
    ),
    case(
        """
        __kernel void mixed_widths(__global uchar *bytes, __global const double *wide) {
            size_t i = get_global_id(0);
            ((__global uint *)bytes)[2 * i + 1] = (uint)wide[i];
            *(__global ushort *)(bytes + 8 * i) = 7;
        }
        """,
        bytes=lambda s: 8 * s.g0,
        wide=items,
    ),
    case(
        """
        __kernel void ping_pong(__global float *a, __global float *b, int steps) {
            __global float *from = a, *to = b;
            int i = get_global_id(0);
            for (int k = 0; k < steps; ++k) {
                to[i] = from[i + 1];
                __global float *swap = from;
                from = to;
                to = swap;
            }
        }
        """,
        a=lambda s: s.g0 + 1 if s.steps > 0 else 0,
        b=lambda s: s.g0 + 1 if s.steps > 1 else s.g0 if s.steps > 0 else 0,
    ),
    case(
        """
        #define SELECT(flag, p, q) ((flag) ? (p) : (q))
        __kernel void choose_buffer(__global float *a, __global float *b, int n) {
            int i = get_global_id(0);
            SELECT(i < n, a, b)[i] = 1.0f;
        }
        """,
        a=guarded,
        b=lambda s: s.g0 if s.g0 > s.n else 0,
    ),
    case(
        """
        __kernel void halves_of_group(__global float *out, __global float *sums) {
            int l = get_local_id(0), half_size = get_local_size(0) / 2;
            if (l < half_size) out[get_group_id(0) * half_size + l] = 1.0f;
            if (l == half_size) sums[get_group_id(0)] = 2.0f;
        }
        """,
        out=lambda s: s.n0 * (s.l0 // 2),
        sums=groups,
    ),
    case(
        """
        __kernel void strided_columns(__global const float *in, __global float *out, int column, int num_columns) {
            int i = get_global_id(0);
            out[i] = in[i * num_columns + column];
        }
        """,
        **{"in": lambda s: (s.g0 - 1) * s.num_columns + s.column + 1, "out": items},
    ),
    case(
        """
        __kernel void two_d_of_one(__global float *out, uint w, uint h) {
            for (uint i = get_global_id(0); i < w * h; i += get_global_size(0)) {
                uint x = i % w, y = i / w;
                out[x * h + y] = i;
            }
        }
        """,
        out=lambda s: s.w * s.h,
    ),
    case(
        """
        __kernel void matrix_of_groups(__global float *out, __global float *corner) {
            size_t gx = get_group_id(0), gy = get_group_id(1);
            out[(gy * get_num_groups(0) + gx) * get_local_size(0) * get_local_size(1)
                + get_local_id(1) * get_local_size(0) + get_local_id(0)] = 1.0f;
            if (get_local_id(0) == 0 && get_local_id(1) == 0) corner[gy * get_num_groups(0) + gx] = 1.0f;
        }
        """,
        out=plane,
        corner=lambda s: s.n0 * s.n1,
    ),
)
