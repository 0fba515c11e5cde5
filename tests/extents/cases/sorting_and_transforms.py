"""Sorting networks, radix passes, FFT butterflies, wavelets and Walsh transforms: strides that double."""

from __future__ import annotations

from tests.extents.case import Sizes, case, groups, guarded, items, lanes, plane, steered


def _upper_partners(total: int, stride: int) -> int:
    """The pairs of all items, when each ``stride`` of them share a block of twice as many elements."""
    last = total - 1
    return last // stride * 2 * stride + last % stride + stride + 1


def _odd_even(s: Sizes) -> int:
    first = s.phase % 2
    return min(2 * (s.g0 - 1), (s.n - 2 - first) // 2 * 2) + first + 2 if s.n >= 2 + first else 0


CASES = (
    case(
        """
        __kernel void bitonic_amd(__global uint *array, const uint stage, const uint pass, const uint ascending) {
            uint id = get_global_id(0), distance = 1 << (stage - pass), width = 2 * distance;
            uint left = (id % distance) + (id / distance) * width, right = left + distance;
            uint a = array[left], b = array[right];
            array[left] = ascending ? min(a, b) : max(a, b);
            array[right] = ascending ? max(a, b) : min(a, b);
        }
        """,
    ),
    case(
        """
        __kernel void bitonic_xor(__global int *data, int j, int k) {
            int i = get_global_id(0), partner = i ^ 1;
            if (partner > i && (i & k) == 0 && j > 0) {
                int low = min(data[i], data[partner]), high = max(data[i], data[partner]);
                data[i] = low;
                data[partner] = high;
            }
        }
        """,
    ),
    case(
        """
        __kernel void compare_exchange_stride(__global float *data, int stride) {
            int i = get_global_id(0), left = i / stride * 2 * stride + i % stride;
            float a = data[left], b = data[left + stride];
            data[left] = fmin(a, b);
            data[left + stride] = fmax(a, b);
        }
        """,
        data=lambda s: _upper_partners(s.g0, s.stride),
    ),
    case(
        """
        __kernel void odd_even_step(__global int *a, int n, int phase) {
            int i = 2 * get_global_id(0) + (phase & 1);
            if (i + 1 < n) {
                int low = min(a[i], a[i + 1]), high = max(a[i], a[i + 1]);
                a[i] = low;
                a[i + 1] = high;
            }
        }
        """,
        a=_odd_even,
    ),
    steered(
        """
        __kernel void bitonic_local(__global uint *keys, __local uint *shared) {
            uint l = get_local_id(0), base = get_group_id(0) * get_local_size(0) * 2, size = get_local_size(0);
            shared[l] = keys[base + l];
            shared[l + size] = keys[base + l + size];
            for (uint stride = size; stride > 0; stride >>= 1) {
                barrier(CLK_LOCAL_MEM_FENCE);
                uint at = 2 * l - (l & (stride - 1));
                if (at + stride < 2 * size && shared[at] > shared[at + stride]) {
                    uint swap = shared[at];
                    shared[at] = shared[at + stride];
                    shared[at + stride] = swap;
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            keys[base + l] = shared[l];
            keys[base + l + size] = shared[l + size];
        }
        """,
        keys=lambda s: 2 * s.g0,
        shared=lambda s: 2 * s.l0,
    ),
    steered(
        """
        __kernel void radix_count(__global const uint *keys, __global uint *counts, __local uint *local_counts,
                                  const uint shift, const uint n) {
            uint l = get_local_id(0);
            if (l < 16) local_counts[l] = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint i = get_global_id(0); i < n; i += get_global_size(0))
                atomic_inc(&local_counts[(keys[i] >> (shift & 31)) & 15]);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (l < 16) counts[l * get_num_groups(0) + get_group_id(0)] = local_counts[l];
        }
        """,
        keys=lambda s: s.n,
        counts=lambda s: min(16, s.l0) * s.n0,
    ),
    case(
        """
        __kernel void radix_scan_top(__global uint *counts, __local uint *temp, const int num_blocks) {
            int l = get_local_id(0);
            uint carry = 0;
            for (int d = 0; d < 16; d++) {
                uint value = l < num_blocks ? counts[d * num_blocks + l] : 0;
                temp[l] = value;
                barrier(CLK_LOCAL_MEM_FENCE);
                for (int k = 0; k < l; ++k) value += temp[k];
                if (l < num_blocks) counts[d * num_blocks + l] = value + carry;
                carry += temp[get_local_size(0) - 1];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
        }
        """,
        counts=lambda s: 15 * s.num_blocks + min(s.l0, s.num_blocks),
        temp=lanes,
    ),
    case(
        """
        float2 twiddled(float2 a, float2 w) { return (float2)(a.x * w.x - a.y * w.y, a.x * w.y + a.y * w.x); }
        __kernel void fft_radix2(__global const float2 *x, __global float2 *y, int p) {
            int t = get_global_size(0), i = get_global_id(0), k = i % p, j = (i - k) * 2 + k;
            float angle = -3.14159265f * k / p;
            float2 a = x[i], b = twiddled(x[i + t], (float2)(cos(angle), sin(angle)));
            y[j] = a + b;
            y[j + p] = a - b;
        }
        """,
        x=lambda s: 2 * s.g0,
        y=lambda s: _upper_partners(s.g0, s.p),
    ),
    case(
        """
        __kernel void fft_four_step(__global float2 *data, __global const float2 *twiddles, int n) {
            int i = get_global_id(0), batch = get_global_id(1);
            __global float2 *row = data + batch * 4 * n;
            float2 a = row[i], b = row[i + n], c = row[i + 2 * n], d = row[i + 3 * n];
            row[i] = a + b + c + d;
            row[i + 2 * n] = (a - b + c - d) * twiddles[2 * i];
            row[i + 3 * n] = (a - c) * twiddles[3 * i];
        }
        """,
        data=lambda s: (s.g1 - 1) * 4 * s.n + 3 * s.n + s.g0,
        twiddles=lambda s: 3 * (s.g0 - 1) + 1,
    ),
    case(
        """
        __kernel void fft512_shoc(__global float2 *work) {
            int l = get_local_id(0), block = get_group_id(0) * 512 + l;
            float2 data[8];
            work = work + block;
            for (int i = 0; i < 8; i++) data[i] = work[i * 64];
            for (int i = 0; i < 8; i++) work[i * 64] = data[7 - i];
        }
        """,
        work=lambda s: (s.n0 - 1) * 512 + s.l0 + 448,
    ),
    case(
        """
        __kernel void bit_reversed_16(__global const float *in, __global float *out) {
            int i = get_global_id(0), low = i & 15;
            int flipped = ((low & 1) << 3) | ((low & 2) << 1) | ((low & 4) >> 1) | ((low & 8) >> 3);
            out[(i & ~15) | flipped] = in[i];
        }
        """,
        **{"in": items},
    ),
    case(
        """
        __kernel void walsh_step(__global float *array, const int step) {
            int tid = get_global_id(0), group = tid % step, pair = 2 * step * (tid / step) + group;
            float a = array[pair], b = array[pair + step];
            array[pair] = a + b;
            array[pair + step] = a - b;
        }
        """,
        array=lambda s: _upper_partners(s.g0, s.step),
    ),
    case(
        """
        __kernel void haar_step(__global const float *in, __global float *out, int n) {
            int i = get_global_id(0);
            if (i < n) {
                out[i] = (in[2 * i] + in[2 * i + 1]) * M_SQRT1_2_F;
                out[n + i] = (in[2 * i] - in[2 * i + 1]) * M_SQRT1_2_F;
            }
        }
        """,
        **{"in": lambda s: 2 * guarded(s), "out": lambda s: s.n + guarded(s)},
    ),
    case(
        """
        __kernel void wavelet_lift(__global float *x, int half_count, int start) {
            int i = get_global_id(0);
            __global float *even = x + start, *odd = even + half_count;
            if (i < half_count - 1) odd[i] -= 0.5f * (even[i] + even[i + 1]);
        }
        """,
        x=lambda s: s.start + s.half_count + min(s.g0, s.half_count - 1) if s.half_count > 1 else 0,
    ),
    case(
        """
        __kernel void transpose_in_groups(__global const float *in, __global float *out, __local float *tile) {
            int l = get_local_id(0), size = get_local_size(0), base = get_group_id(0) * size;
            tile[l] = in[base + l];
            barrier(CLK_LOCAL_MEM_FENCE);
            out[base + size - 1 - l] = tile[size - 1 - l];
        }
        """,
        **{"in": items, "out": items},
        tile=lanes,
    ),
    steered(
        """
        __kernel void merge_rank(__global const int *a, __global const int *b, __global int *out, int n, int m) {
            int i = get_global_id(0);
            if (i >= n) return;
            int low = 0, high = m;
            while (low < high) {
                int middle = (low + high) / 2;
                if (b[middle] < a[i]) low = middle + 1;
                else high = middle;
            }
            out[i + low] = a[i];
        }
        """,
        a=guarded,
    ),
    case(
        """
        __kernel void merge_ranges(__global const int *in, __global int *out, int n, int width) {
            long begin = (long)get_global_id(0) * 2 * width;
            long middle = min(begin + width, (long)n), end = min(begin + 2 * width, (long)n);
            for (long i = begin; i < end; ++i) out[i] = in[i < middle ? end - 1 - (i - begin) : i];
        }
        """,
        out=lambda s: min(2 * s.width * s.g0, s.n),
    ),
    case(
        """
        __kernel void dft_naive(__global const float2 *in, __global float2 *out, int n) {
            int k = get_global_id(0), row = get_global_id(1);
            float2 sum = (float2)(0.0f);
            for (int i = 0; i < n; ++i) {
                float angle = -6.2831853f * i * k / n;
                sum += in[row * n + i].xy * (float2)(cos(angle), sin(angle));
            }
            out[row * get_global_size(0) + k] = sum;
        }
        """,
        **{"in": lambda s: s.g1 * s.n, "out": plane},
    ),
    case(
        """
        __kernel void stockham_blocks(__global const float *re, __global const float *im, __global float *out,
                                      uint block) {
            uint g = get_group_id(0), l = get_local_id(0);
            for (uint i = l; i < block; i += get_local_size(0)) {
                out[2 * (g * block + i)] = re[g * block + i];
                out[2 * (g * block + i) + 1] = im[g * block + i];
            }
        }
        """,
        re=lambda s: groups(s) * s.block,
        im=lambda s: groups(s) * s.block,
        out=lambda s: 2 * groups(s) * s.block,
    ),
)
