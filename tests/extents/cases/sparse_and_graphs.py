"""Sparse matrices and graphs: contents decide some of the buffers, sizes the others."""

from __future__ import annotations

from tests.extents.case import case, guarded, one, steered

CASES = (
    steered(
        """
        __kernel void csr_scalar(const int num_rows, __global const int *row_offsets, __global const int *columns,
                                 __global const float *values, __global const float *x, __global float *y) {
            int row = get_global_id(0);
            if (row < num_rows) {
                float sum = 0.0f;
                int begin = row_offsets[row], end = row_offsets[row + 1];
                for (int j = begin; j < end; j++) sum = fma(values[j], x[columns[j]], sum);
                y[row] = sum;
            }
        }
        """,
        row_offsets=lambda s: min(s.g0, s.num_rows) + 1,
        y=lambda s: min(s.g0, s.num_rows),
    ),
    steered(
        """
        __kernel void ell_pitched(__global const int *cols, __global const float *vals, __global const float *x,
                                  __global float *y, int n, int width, int pitch) {
            int row = get_global_id(0);
            if (row >= n) return;
            float sum = 0.0f;
            for (int k = 0; k < width; ++k) {
                int col = cols[k * pitch + row];
                if (col >= 0) sum += vals[k * pitch + row] * x[col];
            }
            y[row] = sum;
        }
        """,
        cols=lambda s: (s.width - 1) * s.pitch + guarded(s),
        y=guarded,
    ),
    steered(
        """
        __kernel void dia_spmv(__global const int *offsets, __global const float *data, __global const float *x,
                               __global float *y, int n, int num_diagonals, int stride) {
            int row = get_global_id(0);
            if (row < n) {
                float sum = 0.0f;
                for (int d = 0; d < num_diagonals; d++) {
                    int col = row + offsets[d];
                    float value = data[stride * d + row];
                    if (col >= 0 && col < n) sum += value * x[col];
                }
                y[row] = sum;
            }
        }
        """,
        offsets=lambda s: s.num_diagonals,
        data=lambda s: (s.num_diagonals - 1) * s.stride + guarded(s),
        y=guarded,
    ),
    steered(
        """
        __kernel void coo_atomic(__global const int *rows, __global const int *cols, __global const int *vals,
                                 __global const int *x, __global int *y, uint n) {
            for (uint i = get_global_id(0); i < n; i += get_global_size(0))
                atomic_add(&y[rows[i]], vals[i] * x[cols[i]]);
        }
        """,
        rows=lambda s: s.n,
        cols=lambda s: s.n,
        vals=lambda s: s.n,
    ),
    steered(
        """
        typedef struct { int starting; int num_edges; } Node;
        __kernel void bfs_rodinia(__global const Node *nodes, __global const int *edges, __global char *mask,
                                  __global char *updating, __global const char *visited, __global int *cost,
                                  const int n) {
            int tid = get_global_id(0);
            if (tid < n && mask[tid]) {
                mask[tid] = false;
                for (int i = nodes[tid].starting; i < nodes[tid].num_edges + nodes[tid].starting; i++) {
                    int id = edges[i];
                    if (!visited[id]) {
                        cost[id] = cost[tid] + 1;
                        updating[id] = true;
                    }
                }
            }
        }
        """,
        mask=guarded,
    ),
    steered(
        """
        __kernel void bfs_finish(__global char *mask, __global char *updating, __global char *visited,
                                 __global char *over, const int n) {
            int tid = get_global_id(0);
            if (tid < n)
                if (updating[tid] == 1) {
                    mask[tid] = 1;
                    visited[tid] = 1;
                    *over = 1;
                    updating[tid] = 0;
                }
        }
        """,
        updating=guarded,
    ),
    steered(
        """
        __kernel void compact_frontier(__global const uint *flags, __global uint *queue, __global uint *tail,
                                       uint n) {
            uint i = get_global_id(0);
            if (i < n && flags[i] != 0) queue[atomic_inc(tail)] = i;
        }
        """,
        flags=guarded,
    ),
    case(
        """
        __kernel void pathfinder_row(__global const int *wall, __global const int *src, __global int *dst,
                                     int cols, int row) {
            int x = get_global_id(0);
            if (x < cols) {
                int best = src[x];
                best = min(best, src[max(x - 1, 0)]);
                best = min(best, src[min(x + 1, cols - 1)]);
                dst[x] = best + wall[row * cols + x];
            }
        }
        """,
        wall=lambda s: s.row * s.cols + min(s.g0, s.cols),
        src=lambda s: min(s.g0 + 1, s.cols),
        dst=lambda s: min(s.g0, s.cols),
    ),
    steered(
        """
        __kernel void floyd_warshall(__global uint *distances, __global uint *path, const uint n,
                                     const uint k) {
            uint x = get_global_id(0), y = get_global_id(1);
            uint direct = distances[y * n + x];
            uint detour = distances[y * n + k] + distances[k * n + x];
            if (detour < direct) {
                distances[y * n + x] = detour;
                path[y * n + x] = k;
            }
        }
        """,
        distances=lambda s: max((s.g1 - 1) * s.n + max(s.g0 - 1, s.k), s.k * s.n + s.g0 - 1) + 1,
    ),
    steered(
        """
        __kernel void pagerank_pull(__global const uint *rows, __global const uint *sources,
                                    __global const float *rank, __global float *next, __global float *change,
                                    uint n, float damping) {
            uint v = get_global_id(0);
            if (v == 0) change[0] = 0.0f;
            if (v < n) {
                float sum = 0.0f;
                for (uint e = rows[v]; e < rows[v + 1]; ++e) sum += rank[sources[e]];
                next[v] = (1.0f - damping) / n + damping * sum;
            }
        }
        """,
        rows=lambda s: guarded(s) + 1,
        next=guarded,
        change=one,
    ),
)
