"""Reductions of one and two stages, scans with and without padding against bank conflicts, histograms."""

from __future__ import annotations

from tests.extents.case import Sizes, case, groups, guarded, items, lanes, one, steered


def _padded(s: Sizes) -> int:
    """Two elements a work-item, and one more after each sixteen."""
    last = 2 * s.l0 - 1
    return last + (last >> 4) + 1


CASES = (
    case(
        """
        __kernel void reduce_two_loads(__global const float *in, __global float *out, __local float *sdata, uint n) {
            uint l = get_local_id(0), i = get_group_id(0) * (get_local_size(0) * 2) + get_local_id(0);
            sdata[l] = i < n ? in[i] : 0;
            if (i + get_local_size(0) < n) sdata[l] += in[i + get_local_size(0)];
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint k = get_local_size(0) / 2; k > 0; k >>= 1) {
                if (l < k) sdata[l] += sdata[l + k];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            if (l == 0) out[get_group_id(0)] = sdata[0];
        }
        """,
        **{"in": lambda s: min(2 * s.g0, s.n), "out": groups, "sdata": lanes},
    ),
    case(
        """
        __kernel void reduce_persistent(__global const int4 *in, __global int *out, __local int *scratch,
                                        uint per_item) {
            uint l = get_local_id(0);
            int4 sum = (int4)(0);
            for (uint k = 0; k < per_item; ++k) sum += in[get_global_id(0) + k * get_global_size(0)];
            scratch[l] = sum.x + sum.y + sum.z + sum.w;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (l == 0) {
                int total = 0;
                for (uint k = 0; k < get_local_size(0); ++k) total += scratch[k];
                out[get_group_id(0)] = total;
            }
        }
        """,
        **{"in": lambda s: s.per_item * s.g0, "out": groups, "scratch": lanes},
    ),
    case(
        """
        __kernel void reduce_adjacent(__global float *data, uint n, uint stride) {
            ulong i = get_global_id(0) * 2 * stride;
            if (i + stride < n) data[i] += data[i + stride];
        }
        """,
        data=lambda s: (
            min((s.g0 - 1) * 2 * s.stride, (s.n - s.stride - 1) // (2 * s.stride) * 2 * s.stride)
            + s.stride
            + 1
            if s.n > s.stride
            else 0
        ),
    ),
    steered(
        """
        __kernel void reduce_rows_max(__global const float *matrix, __global float2 *best, int columns, int pitch) {
            __global const float *row = matrix + get_group_id(0) * pitch;
            __local float values[1024];
            __local int places[1024];
            int l = get_local_id(0);
            float value = -FLT_MAX;
            int place = 0;
            for (int c = l; c < columns; c += get_local_size(0))
                if (row[c] > value) { value = row[c]; place = c; }
            values[l] = value;
            places[l] = place;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (l == 0) best[get_group_id(0)] = (float2)(values[0], places[0]);
        }
        """,
        matrix=lambda s: (s.n0 - 1) * s.pitch + s.columns,
        best=groups,
    ),
    case(
        """
        __kernel void scan_blelloch(__global float *out, __global const float *in, __local float *temp) {
            int l = get_local_id(0), base = 2 * get_group_id(0) * get_local_size(0), offset = 1;
            temp[2 * l] = in[base + 2 * l];
            temp[2 * l + 1] = in[base + 2 * l + 1];
            for (int d = get_local_size(0); d > 0; d >>= 1) {
                barrier(CLK_LOCAL_MEM_FENCE);
                if (l < d) temp[offset * (2 * l + 2) - 1] += temp[offset * (2 * l + 1) - 1];
                offset *= 2;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            out[base + 2 * l] = temp[2 * l];
            out[base + 2 * l + 1] = temp[2 * l + 1];
        }
        """,
        **{"out": lambda s: 2 * s.g0, "in": lambda s: 2 * s.g0},
        temp=lambda s: 2 * s.l0,
    ),
    case(
        """
        #define CONFLICT_FREE(i) ((i) + ((i) >> 4))
        __kernel void scan_bank_padding(__global float *out, __global const float *in, __local float *temp) {
            int l = get_local_id(0), n = get_local_size(0), base = 2 * get_group_id(0) * n;
            temp[CONFLICT_FREE(l)] = in[base + l];
            temp[CONFLICT_FREE(l + n)] = in[base + l + n];
            barrier(CLK_LOCAL_MEM_FENCE);
            out[base + l] = temp[CONFLICT_FREE(l)];
            out[base + l + n] = temp[CONFLICT_FREE(l + n)];
        }
        """,
        **{"out": lambda s: 2 * s.g0, "in": lambda s: 2 * s.g0},
        temp=_padded,
    ),
    case(
        """
        __kernel void scan_hillis_steele(__global const int *in, __global int *out, __local int *a, __local int *b,
                                         int n) {
            int g = get_global_id(0), l = get_local_id(0), size = get_local_size(0);
            a[l] = b[l] = g < n ? in[g] : 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int s = 1; s < size; s <<= 1) {
                b[l] = l > s - 1 ? a[l] + a[l - s] : a[l];
                barrier(CLK_LOCAL_MEM_FENCE);
                __local int *swap = a;
                a = b;
                b = swap;
            }
            if (g < n) out[g] = a[l];
        }
        """,
        **{"in": guarded, "out": guarded, "a": lanes, "b": lanes},
    ),
    case(
        """
        __kernel void scan_block_sums(__global const uint *in, __global uint *out, __global uint *sums,
                                      __local uint *temp, uint per_block) {
            uint block = get_group_id(0), l = get_local_id(0);
            temp[l] = in[block * per_block + l];
            barrier(CLK_LOCAL_MEM_FENCE);
            uint sum = 0;
            for (uint k = 0; k <= l; ++k) sum += temp[k];
            out[block * per_block + l] = sum;
            if (l == get_local_size(0) - 1) sums[block] = sum;
        }
        """,
        **{
            "in": lambda s: (s.n0 - 1) * s.per_block + s.l0,
            "out": lambda s: (s.n0 - 1) * s.per_block + s.l0,
        },
        sums=groups,
        temp=lanes,
    ),
    case(
        """
        __kernel void scan_add_offsets(__global uint *out, __global const uint *sums, uint n) {
            uint g = get_global_id(0), block = get_group_id(0);
            if (block > 0 && g < n) out[g] += sums[block - 1];
        }
        """,
        out=lambda s: min(s.g0, s.n) if s.n > s.l0 and s.n0 > 1 else 0,
        sums=lambda s: -(-min(s.g0, s.n) // s.l0) - 1 if s.n > s.l0 and s.n0 > 1 else 0,
    ),
    case(
        """
        __kernel void segmented_flags(__global const int *keys, __global int *flags, int n) {
            int i = get_global_id(0);
            if (i < n) flags[i] = i == 0 || keys[i] != keys[i - 1];
        }
        """,
        keys=guarded,
        flags=guarded,
    ),
    steered(
        """
        __kernel void histogram_private(__global const uint *data, __global uint *bins, __local uchar *counts,
                                        int per_item) {
            int l = get_local_id(0), size = get_local_size(0);
            for (int b = 0; b < 64; ++b) counts[b * size + l] = 0;
            for (int k = 0; k < per_item; ++k) {
                uint value = data[get_group_id(0) * size * per_item + k * size + l] & 63u;
                counts[value * size + l]++;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int b = l; b < 64; b += size) {
                uint sum = 0;
                for (int k = 0; k < size; ++k) sum += counts[b * size + k];
                bins[get_group_id(0) * 64 + b] = sum;
            }
        }
        """,
        data=lambda s: s.g0 * s.per_item,
        bins=lambda s: 64 * s.n0,
        counts=lambda s: 64 * s.l0,
    ),
    steered(
        """
        __kernel void histogram_atomic(__global const uchar4 *image, __global uint *bins, uint n) {
            __local uint local_bins[256];
            for (uint b = get_local_id(0); b < 256; b += get_local_size(0)) local_bins[b] = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint i = get_global_id(0); i < n; i += get_global_size(0)) {
                uchar4 pixel = image[i];
                atomic_inc(&local_bins[pixel.x]);
                atomic_inc(&local_bins[pixel.y]);
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint b = get_local_id(0); b < 256; b += get_local_size(0)) atomic_add(&bins[b], local_bins[b]);
        }
        """,
        image=lambda s: s.n,
        bins=lambda _: 256,
    ),
    case(
        """
        __kernel void mean_and_variance(__global const float *x, __global float2 *moments, int n, int stride,
                                        int batch_stride) {
            int channel = get_global_id(0), batch = get_global_id(1);
            float sum = 0.0f, squares = 0.0f;
            for (int i = 0; i < n; ++i) {
                float v = x[batch * batch_stride + i * stride + channel];
                sum += v;
                squares += v * v;
            }
            moments[batch * get_global_size(0) + channel] = (float2)(sum / n, squares / n);
        }
        """,
        x=lambda s: (s.g1 - 1) * s.batch_stride + (s.n - 1) * s.stride + s.g0,
        moments=lambda s: s.g0 * s.g1,
    ),
    case(
        """
        __kernel void softmax_rows(__global const float *x, __global float *y, int columns) {
            int row = get_global_id(0);
            __global const float *in = x + (size_t)row * columns;
            __global float *out = y + (size_t)row * columns;
            float most = in[0], sum = 0.0f;
            for (int c = 1; c < columns; ++c) most = fmax(most, in[c]);
            for (int c = 0; c < columns; ++c) sum += out[c] = exp(in[c] - most);
            for (int c = 0; c < columns; ++c) out[c] /= sum;
        }
        """,
        x=lambda s: s.g0 * s.columns,
        y=lambda s: s.g0 * s.columns,
    ),
    case(
        """
        __kernel void count_ones(__global const uint *words, __global uint *total, uint n) {
            __local uint count;
            if (get_local_id(0) == 0) count = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (get_global_id(0) < n) atomic_add(&count, popcount(words[get_global_id(0)]));
            barrier(CLK_LOCAL_MEM_FENCE);
            if (get_local_id(0) == 0) atomic_add(total, count);
        }
        """,
        words=guarded,
        total=one,
    ),
    case(
        """
        __kernel void triad_shoc(__global const float *a, __global const float *b, __global float *c,
                                 const float scale) {
            int gid = get_global_id(0);
            c[gid] = a[gid] + scale * b[gid];
        }
        """,
        a=items,
        b=items,
        c=items,
    ),
)
