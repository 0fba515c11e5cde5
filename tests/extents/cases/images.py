"""Image filters: borders clamped, mirrored, skipped; planar and interleaved channels; resampling; transposes."""

from __future__ import annotations

from tests.extents.case import Sizes, case, items, pitched, plane


def _reached(s: Sizes) -> int:
    return pitched(min(s.g1, s.h), min(s.g0, s.w), s.w)


def _with_next_row_and_column(s: Sizes) -> int:
    """The pixels of the range and their neighbours below and to the right, where the image has them."""
    return pitched(min(s.g1 + 1, s.h), min(s.g0 + 1, s.w), s.w)


def _skipping_border(s: Sizes) -> int:
    x, y = min(s.g0, s.w - 1), min(s.g1, s.h - 1)
    return pitched(y, x, s.w) if x > 1 and y > 1 else 0


CASES = (
    case(
        """
        __kernel void sobel_amd(__global const uchar4 *in_image, __global uchar4 *out_image) {
            uint x = get_global_id(0), y = get_global_id(1);
            uint width = get_global_size(0), height = get_global_size(1);
            int c = x + y * width;
            if (x >= 1 && x < (width - 1) && y >= 1 && y < height - 1) {
                float4 up = convert_float4(in_image[c - 1 - width]), down = convert_float4(in_image[c + 1 + width]);
                out_image[c] = convert_uchar4(hypot(up, down) / (float4)(2));
            }
        }
        """,
        in_image=lambda s: plane(s) if s.g0 > 2 and s.g1 > 2 else 0,
        out_image=lambda s: (s.g1 - 1) * s.g0 - 1 if s.g0 > 2 and s.g1 > 2 else 0,
    ),
    case(
        """
        __kernel void sobel_skip_border(__global const float *in, __global float *out, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x == 0 || y == 0 || x >= w - 1 || y >= h - 1) return;
            float gx = in[(y - 1) * w + x + 1] - in[(y - 1) * w + x - 1];
            float gy = in[(y + 1) * w + x + 1] - in[(y + 1) * w + x - 1];
            out[y * w + x] = gx * gx + gy * gy;
        }
        """,
        **{
            "in": lambda s: _skipping_border(s) + s.w + 1 if _skipping_border(s) else 0,
            "out": _skipping_border,
        },
    ),
    case(
        """
        __kernel void box_clamped(__global const float *in, __global float *out, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            float sum = 0.0f;
            for (int dy = -1; dy <= 1; ++dy)
                for (int dx = -1; dx <= 1; ++dx)
                    sum += in[clamp(y + dy, 0, h - 1) * w + clamp(x + dx, 0, w - 1)];
            if (x < w && y < h) out[y * w + x] = sum / 9.0f;
        }
        """,
        **{"in": _with_next_row_and_column, "out": _reached},
    ),
    case(
        """
        #define RADIUS 8
        __constant float TAPS[2 * RADIUS + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2, 1};
        __kernel void convolve_columns(__global const float *src, __global float *dst, int pitch) {
            int x = get_global_id(0), y = get_global_id(1);
            float sum = 0.0f;
            for (int k = -RADIUS; k <= RADIUS; k++) sum += src[(y + RADIUS + k) * pitch + x] * TAPS[RADIUS - k];
            dst[y * pitch + x] = sum;
        }
        """,
        src=lambda s: (s.g1 - 1 + 16) * s.pitch + s.g0,
        dst=lambda s: (s.g1 - 1) * s.pitch + s.g0,
    ),
    case(
        """
        __kernel void convolve_rows(__global const float *src, __global float *dst, __constant float *taps,
                                    int radius, int pitch) {
            int x = get_global_id(0), y = get_global_id(1);
            float sum = 0.0f;
            for (int k = -radius; k <= radius; k++) sum += src[y * pitch + x + radius + k] * taps[radius - k];
            dst[y * pitch + x] = sum;
        }
        """,
        src=lambda s: (s.g1 - 1) * s.pitch + s.g0 + 2 * s.radius,
        dst=lambda s: (s.g1 - 1) * s.pitch + s.g0,
        taps=lambda s: 2 * s.radius + 1,
    ),
    case(
        """
        __kernel void convolve_valid(__global const float *in, __constant float *mask, __global float *out,
                                     const int in_width, const int mask_width) {
            const int x = get_global_id(0), y = get_global_id(1);
            float sum = 0;
            for (int r = 0; r < mask_width; r++) {
                const int at = (y + r) * in_width + x;
                for (int c = 0; c < mask_width; c++) sum += mask[r * mask_width + c] * in[at + c];
            }
            out[y * get_global_size(0) + x] = sum;
        }
        """,
        **{
            "in": lambda s: (s.g1 + s.mask_width - 2) * s.in_width + s.g0 + s.mask_width - 1,
            "mask": lambda s: s.mask_width * s.mask_width,
            "out": plane,
        },
    ),
    case(
        """
        __kernel void rgb_to_grey(__global const uchar *rgb, __global uchar *grey, int n) {
            int i = get_global_id(0);
            if (i < n) grey[i] = (rgb[3 * i] * 77 + rgb[3 * i + 1] * 150 + rgb[3 * i + 2] * 29) >> 8;
        }
        """,
        rgb=lambda s: 3 * min(s.g0, s.n),
        grey=lambda s: min(s.g0, s.n),
    ),
    case(
        """
        __kernel void planar_to_packed(__global const float *planes, __global float4 *packed, int plane_size) {
            int i = get_global_id(0);
            packed[i] = (float4)(planes[i], planes[plane_size + i], planes[2 * plane_size + i], 1.0f);
        }
        """,
        planes=lambda s: 2 * s.plane_size + s.g0,
        packed=items,
    ),
    case(
        """
        __kernel void nv12_to_rgb(__global const uchar *luma, __global const uchar2 *chroma, __global uchar4 *rgb,
                                  int pitch) {
            int x = get_global_id(0), y = get_global_id(1);
            uchar2 uv = chroma[(y >> 1) * (pitch >> 1) + (x >> 1)];
            rgb[y * pitch + x] = (uchar4)(luma[y * pitch + x], uv.x, uv.y, 255);
        }
        """,
        luma=lambda s: (s.g1 - 1) * s.pitch + s.g0,
        chroma=lambda s: ((s.g1 - 1) >> 1) * (s.pitch >> 1) + ((s.g0 - 1) >> 1) + 1,
        rgb=lambda s: (s.g1 - 1) * s.pitch + s.g0,
    ),
    case(
        """
        __kernel void downsample_2x2(__global const uchar4 *src, __global uchar4 *dst, int src_w, int dst_w,
                                     int dst_h) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x >= dst_w || y >= dst_h) return;
            uint4 sum = convert_uint4(src[2 * y * src_w + 2 * x]) + convert_uint4(src[2 * y * src_w + 2 * x + 1])
                      + convert_uint4(src[(2 * y + 1) * src_w + 2 * x])
                      + convert_uint4(src[(2 * y + 1) * src_w + 2 * x + 1]);
            dst[y * dst_w + x] = convert_uchar4(sum >> 2u);
        }
        """,
        src=lambda s: pitched(2 * min(s.g1, s.dst_h), 2 * min(s.g0, s.dst_w), s.src_w),
        dst=lambda s: pitched(min(s.g1, s.dst_h), min(s.g0, s.dst_w), s.dst_w),
    ),
    case(
        """
        __kernel void upsample_nearest(__global const float *src, __global float *dst) {
            int x = get_global_id(0), y = get_global_id(1), w = get_global_size(0);
            dst[y * w + x] = src[(y / 2) * (w / 2) + x / 2];
        }
        """,
        src=lambda s: (s.g1 - 1) // 2 * (s.g0 // 2) + (s.g0 - 1) // 2 + 1,
        dst=plane,
    ),
    case(
        """
        __kernel void transpose_padded(__global const float *in, __global float *out, __local float *block,
                                       uint width, uint height, uint tile) {
            uint x = get_global_id(0), y = get_global_id(1), lx = get_local_id(0), ly = get_local_id(1);
            if (x < width && y < height) block[ly * (get_local_size(0) + 1) + lx] = in[y * width + x];
            barrier(CLK_LOCAL_MEM_FENCE);
            if (x < width && y < height) out[x * height + y] = block[ly * (get_local_size(0) + 1) + lx];
        }
        """,
        **{
            "in": lambda s: pitched(min(s.g1, s.height), min(s.g0, s.width), s.width),
            "out": lambda s: pitched(min(s.g0, s.width), min(s.g1, s.height), s.height),
            "block": lambda s: pitched(min(s.l1, s.height), min(s.l0, s.width), s.l0 + 1),
        },
    ),
    case(
        """
        #define TILE_DIM 16
        __kernel __attribute__((reqd_work_group_size(TILE_DIM, TILE_DIM, 1)))
        void transpose_sdk(__global float *odata, int offset, __global float *idata, int width, int height) {
            __local float block[TILE_DIM * (TILE_DIM + 1)];
            unsigned int x = get_group_id(0) * TILE_DIM + get_local_id(0);
            unsigned int y = get_group_id(1) * TILE_DIM + get_local_id(1);
            block[get_local_id(1) * (TILE_DIM + 1) + get_local_id(0)] = idata[y * width + x + offset];
            barrier(CLK_LOCAL_MEM_FENCE);
            x = get_group_id(1) * TILE_DIM + get_local_id(0);
            y = get_group_id(0) * TILE_DIM + get_local_id(1);
            odata[y * height + x] = block[get_local_id(0) * (TILE_DIM + 1) + get_local_id(1)];
        }
        """,
        odata=lambda s: (s.g0 - 1) * s.height + s.g1,
        idata=lambda s: (s.g1 - 1) * s.width + s.g0 + s.offset,
    ),
    case(
        """
        int mirrored(int i, int n) { return i < 0 ? -i : i >= n ? 2 * n - 2 - i : i; }
        __kernel void gradient_mirrored(__global const float *in, __global float *out, int w) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x < w) out[y * w + x] = in[y * w + mirrored(x + 1, w)] - in[y * w + mirrored(x - 1, w)];
        }
        """,
        **{
            "in": lambda s: pitched(s.g1, min(s.g0 + 1, s.w), s.w) if s.w > 1 else s.g1,
            "out": lambda s: pitched(s.g1, min(s.g0, s.w), s.w),
        },
    ),
    case(
        """
        __kernel void integral_rows(__global const uchar *image, __global uint *sums, int w, int h) {
            int y = get_global_id(0);
            if (y >= h) return;
            uint sum = 0;
            for (int x = 0; x < w; ++x) {
                sum += image[y * w + x];
                sums[(y + 1) * (w + 1) + x + 1] = sum;
            }
        }
        """,
        image=lambda s: min(s.g0, s.h) * s.w,
        sums=lambda s: (min(s.g0, s.h) + 1) * (s.w + 1),
    ),
    case(
        """
        __kernel void blend_region(__global uchar4 *base, int base_pitch, int at_x, int at_y,
                                   __global const uchar4 *over, int over_pitch) {
            int x = get_global_id(0), y = get_global_id(1);
            base[(at_y + y) * base_pitch + at_x + x] = over[y * over_pitch + x];
        }
        """,
        base=lambda s: (s.at_y + s.g1 - 1) * s.base_pitch + s.at_x + s.g0,
        over=lambda s: (s.g1 - 1) * s.over_pitch + s.g0,
    ),
    case(
        """
        __kernel void dct_8x8(__global const float *in, __global float *out, __constant float *dct, int width) {
            int x = get_global_id(0), y = get_global_id(1), i = x & 7, block = x & ~7;
            float sum = 0.0f;
            for (int k = 0; k < 8; k++) sum += dct[i * 8 + k] * in[y * width + block + k];
            out[y * width + x] = sum;
        }
        """,
        **{
            "in": lambda s: (s.g1 - 1) * s.width + -(-s.g0 // 8) * 8,
            "out": lambda s: (s.g1 - 1) * s.width + s.g0,
            "dct": lambda s: 8 * min(s.g0, 8),
        },
    ),
)
