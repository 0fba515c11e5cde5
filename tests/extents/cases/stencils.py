"""Stencils in one to three dimensions: halos, ghost cells, red-black order, grids of half the size, lattices."""

from __future__ import annotations

from tests.extents.case import Sizes, boxed, case, items, lanes, pitched, plane, volume


def _inner(total: int, side: int) -> int:
    """The inner points 1 to side - 2 of a side that ``total`` work-items reach; the index after the last."""
    last = min(total, side - 1)
    return last if last > 1 else 0


def _inner_cells(s: Sizes) -> int:
    rows, columns = _inner(s.g1, s.h), _inner(s.g0, s.w)
    return pitched(rows, columns, s.w)


def _around_inner_cells(s: Sizes) -> int:
    """With the neighbour in the next row."""
    return _inner_cells(s) + s.w if _inner_cells(s) else 0


def _red(s: Sizes) -> int:
    """The lowest point whose coordinates have the parity of ``colour``, or 0."""
    rows, columns = _inner(s.g1, s.h), _inner(s.g0, s.w)
    for y in (rows - 1, rows - 2):
        for x in (columns - 1, columns - 2):
            if y >= 1 and x >= 1 and (x + y) % 2 == s.colour % 2:
                return y * s.w + x + 1
    return 0


CASES = (
    case(
        """
        __kernel void jacobi_1d(__global const float *A, __global float *B, int n) {
            int i = get_global_id(0);
            if ((i > 0) && (i < (n - 1))) B[i] = 0.33333f * (A[i - 1] + A[i] + A[i + 1]);
        }
        """,
        A=lambda s: _inner(s.g0, s.n) + 1 if _inner(s.g0, s.n) else 0,
        B=lambda s: _inner(s.g0, s.n),
    ),
    case(
        """
        __kernel void jacobi_2d(__global const float *A, __global float *B, int w, int h) {
            int x = get_global_id(0), y = get_global_id(1);
            if (y >= 1 && y < h - 1 && x >= 1 && x < w - 1)
                B[y * w + x] = 0.2f * (A[y * w + x] + A[y * w + x - 1] + A[y * w + x + 1] + A[(y + 1) * w + x]
                                       + A[(y - 1) * w + x]);
        }
        """,
        A=_around_inner_cells,
        B=_inner_cells,
    ),
    case(
        """
        __kernel void ghost_1d(__global const float *in, __global float *out) {
            int i = get_global_id(0) + 1;
            out[i] = in[i - 1] - 2.0f * in[i] + in[i + 1];
        }
        """,
        **{"in": lambda s: s.g0 + 2, "out": lambda s: s.g0 + 1},
    ),
    case(
        """
        __kernel void ghost_2d(__global const float *u, __global float *v, int halo) {
            int x = get_global_id(0), y = get_global_id(1), pitch = get_global_size(0) + 2 * halo;
            float sum = 0.0f;
            for (int d = -halo; d <= halo; ++d)
                sum += u[(y + halo + d) * pitch + x + halo] + u[(y + halo) * pitch + x + halo + d];
            v[(y + halo) * pitch + x + halo] = sum;
        }
        """,
        u=lambda s: max(
            (s.g1 - 1 + 2 * s.halo) * (s.g0 + 2 * s.halo) + s.g0 + s.halo,
            (s.g1 - 1 + s.halo) * (s.g0 + 2 * s.halo) + s.g0 + 2 * s.halo,
        ),
        v=lambda s: (s.g1 - 1 + s.halo) * (s.g0 + 2 * s.halo) + s.g0 + s.halo,
    ),
    case(
        """
        __kernel void halo_tile_1d(__global const float *in, __global float *out, __local float *tile,
                                   int radius) {
            int g = get_global_id(0), l = get_local_id(0);
            tile[l + radius] = in[g + radius];
            if (l < radius) {
                tile[l] = in[g];
                tile[l + radius + get_local_size(0)] = in[g + radius + get_local_size(0)];
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            float sum = 0.0f;
            for (int k = 0; k <= 2 * radius; ++k) sum += tile[l + k];
            out[g] = sum;
        }
        """,
        **{
            "in": lambda s: s.g0 + s.radius + min(s.l0, s.radius),
            "out": items,
            "tile": lambda s: s.l0 + 2 * s.radius,
        },
    ),
    case(
        """
        #define INDEX(nx, ny, x, y, z) ((x) + (nx) * ((y) + (z) * (ny)))
        __kernel void parboil_stencil(float c0, float c1, __global const float *A0, __global float *Anext, int nx,
                                      int ny, int nz) {
            int i = get_global_id(0) + 1, j = get_global_id(1) + 1, k = get_global_id(2) + 1;
            if (i < nx - 1)
                Anext[INDEX(nx, ny, i, j, k)] =
                    (A0[INDEX(nx, ny, i, j, k + 1)] + A0[INDEX(nx, ny, i, j, k - 1)] + A0[INDEX(nx, ny, i, j + 1, k)]
                     + A0[INDEX(nx, ny, i, j - 1, k)] + A0[INDEX(nx, ny, i + 1, j, k)]
                     + A0[INDEX(nx, ny, i - 1, j, k)]) * c1 - A0[INDEX(nx, ny, i, j, k)] * c0;
        }
        """,
        A0=lambda s: (
            max(
                boxed(s.g2 + 2, s.g1 + 1, min(s.g0 + 1, s.nx - 1), s.nx, s.nx * s.ny),
                boxed(s.g2 + 1, s.g1 + 2, min(s.g0 + 1, s.nx - 1), s.nx, s.nx * s.ny),
            )
            if s.nx > 2
            else 0
        ),
        Anext=lambda s: (
            boxed(s.g2 + 1, s.g1 + 1, min(s.g0 + 1, s.nx - 1), s.nx, s.nx * s.ny) if s.nx > 2 else 0
        ),
    ),
    case(
        """
        __kernel void laplace_3d_slabs(__global const float *u, __global float *v, int nz, int pitch, int slab) {
            int x = get_global_id(0) + 1, y = get_global_id(1) + 1;
            for (int z = 1; z < nz - 1; ++z) {
                __global const float *p = u + z * slab + y * pitch + x;
                v[z * slab + y * pitch + x] = p[-slab] + p[slab] - 2.0f * p[0];
            }
        }
        """,
        u=lambda s: (s.nz - 1) * s.slab + s.g1 * s.pitch + s.g0 + 1 if s.nz > 2 else 0,
        v=lambda s: (s.nz - 2) * s.slab + s.g1 * s.pitch + s.g0 + 1 if s.nz > 2 else 0,
    ),
    case(
        """
        __kernel void red_black(__global float *u, int w, int h, int colour) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x >= 1 && x < w - 1 && y >= 1 && y < h - 1 && (x + y) % 2 == colour % 2)
                u[y * w + x] *= 0.25f;
        }
        """,
        u=_red,
    ),
    case(
        """
        __kernel void red_black_dense(__global float *u, __global const float *f, int pitch) {
            int y = get_global_id(1) + 1, x = 2 * get_global_id(0) + 1 + (y & 1);
            u[y * pitch + x] = 0.25f * (u[y * pitch + x + 1] + u[y * pitch + x - 1] - f[y * pitch + x]);
        }
        """,
        f=lambda s: max(y * s.pitch + 2 * s.g0 - 1 + y % 2 + 1 for y in (s.g1, s.g1 - 1) if y >= 1),
        u=lambda s: max(y * s.pitch + 2 * s.g0 - 1 + y % 2 + 2 for y in (s.g1, s.g1 - 1) if y >= 1),
    ),
    case(
        """
        __kernel void restrict_full_weight(__global const float *fine, __global float *coarse, int pitch) {
            int x = get_global_id(0), y = get_global_id(1);
            __global const float *p = &fine[2 * y * pitch + 2 * x];
            coarse[y * get_global_size(0) + x] = 0.25f * (p[0] + p[1] + p[pitch] + p[pitch + 1]);
        }
        """,
        fine=lambda s: (2 * s.g1 - 1) * s.pitch + 2 * s.g0,
        coarse=plane,
    ),
    case(
        """
        __kernel void prolong_linear(__global const float *coarse, __global float *fine) {
            int i = get_global_id(0);
            fine[i] = i % 2 ? 0.5f * (coarse[i / 2] + coarse[i / 2 + 1]) : coarse[i / 2];
        }
        """,
        coarse=lambda s: (s.g0 - 1) // 2 + (s.g0 - 1) % 2 + 1,
        fine=items,
    ),
    case(
        """
        __kernel void inject_into_fine(__global const float *coarse, __global float *fine, int n) {
            int i = get_global_id(0);
            if (i < n / 2) fine[2 * i] = coarse[i];
        }
        """,
        coarse=lambda s: min(s.g0, s.n // 2),
        fine=lambda s: max(0, 2 * min(s.g0, s.n // 2) - 1),
    ),
    case(
        """
        __kernel void lbm_collide(__global const float *f_in, __global float *f_out, int nx, int ny) {
            int x = get_global_id(0), y = get_global_id(1);
            if (x >= nx || y >= ny) return;
            int cell = y * nx + x, cells = nx * ny;
            float rho = 0.0f;
            for (int d = 0; d < 9; ++d) rho += f_in[d * cells + cell];
            for (int d = 0; d < 9; ++d) f_out[d * cells + cell] = rho / 9.0f;
        }
        """,
        f_in=lambda s: 8 * s.nx * s.ny + pitched(min(s.g1, s.ny), min(s.g0, s.nx), s.nx),
        f_out=lambda s: 8 * s.nx * s.ny + pitched(min(s.g1, s.ny), min(s.g0, s.nx), s.nx),
    ),
    case(
        """
        __constant int CX[9] = {0, 1, 0, -1, 0, 1, -1, -1, 1};
        __constant int CY[9] = {0, 0, 1, 0, -1, 1, 1, -1, -1};
        __kernel void lbm_stream_periodic(__global const float *f_in, __global float *f_out) {
            int x = get_global_id(0), y = get_global_id(1), nx = get_global_size(0), ny = get_global_size(1);
            for (int d = 0; d < 9; ++d) {
                int from_x = (x - CX[d] + nx) % nx, from_y = (y - CY[d] + ny) % ny;
                f_out[(d * ny + y) * nx + x] = f_in[(d * ny + from_y) * nx + from_x];
            }
        }
        """,
        f_in=lambda s: 9 * plane(s),
        f_out=lambda s: 9 * plane(s),
    ),
    case(
        """
        __kernel void lbm_cells(__global const float *src, __global float *dst, int margin) {
            int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
            int nx = get_global_size(0), ny = get_global_size(1);
            int cell = 20 * (margin + x + nx * (y + ny * z));
            for (int d = 0; d < 19; ++d) dst[cell + d] = src[cell + d];
        }
        """,
        src=lambda s: 20 * (s.margin + volume(s) - 1) + 19,
        dst=lambda s: 20 * (s.margin + volume(s) - 1) + 19,
    ),
    case(
        """
        __kernel void fdtd_ex(__global const float *hz, __global float *ex, int nx, int ny) {
            int j = get_global_id(0), i = get_global_id(1);
            if ((i < nx) && (j < ny) && (j > 0))
                ex[i * (ny + 1) + j] -= 0.5f * (hz[i * ny + j] - hz[i * ny + (j - 1)]);
        }
        """,
        ex=lambda s: pitched(min(s.g1, s.nx), min(s.g0, s.ny), s.ny + 1) if s.ny > 1 else 0,
        hz=lambda s: pitched(min(s.g1, s.nx), min(s.g0, s.ny), s.ny) if s.ny > 1 else 0,
    ),
    case(
        """
        __kernel void srad_wrapped(__global const float *image, __global float *dn, int rows, int cols) {
            int x = get_global_id(0), y = get_global_id(1);
            int north = y == 0 ? 0 : y - 1, south = y == rows - 1 ? rows - 1 : y + 1;
            if (x < cols && y < rows)
                dn[x * rows + y] = image[x * rows + north] + image[x * rows + south] - image[x * rows + y];
        }
        """,
        image=lambda s: pitched(min(s.g0, s.cols), min(s.g1 + 1, s.rows), s.rows),
        dn=lambda s: pitched(min(s.g0, s.cols), min(s.g1, s.rows), s.rows),
    ),
    case(
        """
        __kernel void wave_equation(__global const float *u, __global float *next, __local float *line) {
            int g = get_global_id(0), l = get_local_id(0), size = get_local_size(0);
            line[l + 1] = u[g];
            if (l == 0) line[0] = g > 0 ? u[g - 1] : 0.0f;
            if (l == size - 1) line[size + 1] = g + 1 < get_global_size(0) ? u[g + 1] : 0.0f;
            barrier(CLK_LOCAL_MEM_FENCE);
            next[g] = line[l] + line[l + 2] - 2.0f * line[l + 1];
        }
        """,
        u=items,
        next=items,
        line=lambda s: lanes(s) + 2,
    ),
    case(
        """
        __kernel void conv3d_polybench(__global const float *A, __global float *B, int ni, int nj, int nk, int i) {
            int k = get_global_id(0), j = get_global_id(1);
            if ((i < ni - 1) && (j < nj - 1) && (k < nk - 1) && (i > 0) && (j > 0) && (k > 0))
                B[i * (nk * nj) + j * nk + k] =
                    2 * A[(i - 1) * (nk * nj) + (j - 1) * nk + (k - 1)] + 4 * A[(i + 1) * (nk * nj) + (j + 1) * nk + k + 1];
        }
        """,
        A=lambda s: (
            boxed(s.i + 2, _inner(s.g1, s.nj) + 1, _inner(s.g0, s.nk) + 1, s.nk, s.nj * s.nk)
            if 0 < s.i < s.ni - 1 and _inner(s.g1, s.nj) and _inner(s.g0, s.nk)
            else 0
        ),
        B=lambda s: (
            boxed(s.i + 1, _inner(s.g1, s.nj), _inner(s.g0, s.nk), s.nk, s.nj * s.nk)
            if 0 < s.i < s.ni - 1
            else 0
        ),
    ),
)
