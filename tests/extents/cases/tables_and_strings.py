"""Tables, strings, histograms, nearest neighbours: hashed ids, patterns, bins, alignments."""

from __future__ import annotations

import numpy as np

from tests.extents.case import Sizes, case, groups, guarded, items, lanes, pitched, steered


def _slots(s: Sizes) -> int:
    """The hashed slots of all work-items: they repeat after as many items as there are buckets."""
    keys = np.arange(min(s.g0, s.buckets), dtype=np.int64)
    return int(np.max((keys * 31 + 7) % s.buckets)) + 1


def _diagonal(s: Sizes) -> int:
    """Needleman-Wunsch: the lowest cell of anti-diagonal ``k`` of the matrix."""
    row = min(s.g0, s.k - 1, s.rows - 1)
    return row * s.cols + s.k - row + 1 if row >= max(1, s.k - s.cols + 1) else 0


CASES = (
    case(
        """
        __kernel void needleman_diagonal(__global int *score, __global const int *reference, int rows, int cols,
                                         int k, int penalty) {
            int i = get_global_id(0) + 1, j = k - i;
            if (j >= 1 && i < rows && j < cols) {
                int up_left = score[(i - 1) * cols + j - 1] + reference[i * cols + j];
                int best = max(score[(i - 1) * cols + j], score[i * cols + j - 1]) - penalty;
                score[i * cols + j] = max(best, up_left);
            }
        }
        """,
        score=_diagonal,
        reference=_diagonal,
    ),
    steered(
        """
        uint slot_of(uint key, uint buckets) { return key * 2654435761u % buckets; }
        __kernel void hash_insert(__global const uint *keys, __global int *table, uint buckets, uint n) {
            uint i = get_global_id(0);
            if (i >= n) return;
            atomic_inc(table + slot_of(keys[i], buckets));
        }
        """,
        keys=guarded,
    ),
    case(
        """
        __kernel void bucket_of_id(__global int *counts, __global float *sums, int buckets) {
            int i = get_global_id(0);
            atomic_inc(&counts[i % buckets]);
            sums[(i * 31 + 7) % buckets] = i;
        }
        """,
        counts=lambda s: min(s.g0, s.buckets),
        sums=_slots,
    ),
    case(
        """
        __kernel void search_naive(__global const uchar *text, __constant uchar *pattern, __global int *found,
                                   const int length, const int m) {
            int i = get_global_id(0);
            if (i > length - m) return;
            int same = 0;
            for (int j = 0; j < m; ++j) same += text[i + j] == pattern[j];
            found[i] = same == m;
        }
        """,
        text=lambda s: min(s.g0, s.length - s.m + 1) + s.m - 1 if s.length >= s.m else 0,
        pattern=lambda s: s.m if s.length >= s.m else 0,
        found=lambda s: max(0, min(s.g0, s.length - s.m + 1)),
    ),
    steered(
        """
        __kernel void search_early_out(__global const char *text, __global const char *pattern,
                                       __global int *where, int m) {
            int i = get_global_id(0), j = 0;
            while (j < m && text[i + j] == pattern[j]) j++;
            where[i] = j == m;
        }
        """,
        where=items,
    ),
    case(
        """
        __kernel void kmeans_assign(__global const float *feature, __global const float *clusters,
                                    __global int *membership, int npoints, int nclusters, int nfeatures) {
            uint point = get_global_id(0);
            if (point < npoints) {
                int best = 0;
                float least = FLT_MAX;
                for (int i = 0; i < nclusters; i++) {
                    float ans = 0;
                    for (int l = 0; l < nfeatures; l++) {
                        float d = feature[l * npoints + point] - clusters[i * nfeatures + l];
                        ans += d * d;
                    }
                    if (ans < least) { least = ans; best = i; }
                }
                membership[point] = best;
            }
        }
        """,
        feature=lambda s: pitched(s.nfeatures, min(s.g0, s.npoints), s.npoints),
        clusters=lambda s: s.nclusters * s.nfeatures,
        membership=lambda s: min(s.g0, s.npoints),
    ),
    case(
        """
        typedef struct { float lat; float lng; } LatLong;
        __kernel void nearest_distance(__global const LatLong *d_locations, __global float *d_distances,
                                       const int n, const float lat, const float lng) {
            int id = get_global_id(0);
            if (id < n) {
                __global const LatLong *at = d_locations + id;
                __global float *dist = d_distances + id;
                *dist = sqrt((lat - at->lat) * (lat - at->lat) + (lng - at->lng) * (lng - at->lng));
            }
        }
        """,
        d_locations=guarded,
        d_distances=guarded,
    ),
    case(
        """
        __kernel void local_histogram(__global const uint *data, __global uint *bins, __local uint *shared,
                                      const uint num_bins, const uint n) {
            for (uint b = get_local_id(0); b < num_bins; b += get_local_size(0)) shared[b] = 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint i = get_global_id(0); i < n; i += get_global_size(0))
                atomic_add(&shared[get_local_id(0) % num_bins], data[i]);
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint b = get_local_id(0); b < num_bins; b += get_local_size(0))
                bins[get_group_id(0) * num_bins + b] = shared[b];
        }
        """,
        data=lambda s: s.n,
        bins=lambda s: s.n0 * s.num_bins,
        shared=lambda s: s.num_bins,
    ),
    case(
        """
        __kernel void merge_histograms(__global const uint *partial, __global uint *bins, uint parts,
                                       __local uint *sums) {
            uint l = get_local_id(0), sum = 0;
            for (uint i = l; i < parts; i += get_local_size(0))
                sum += partial[get_group_id(0) + i * get_num_groups(0)];
            sums[l] = sum;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (uint stride = get_local_size(0) / 2; stride > 0; stride >>= 1) {
                if (l < stride) sums[l] += sums[l + stride];
                barrier(CLK_LOCAL_MEM_FENCE);
            }
            if (l == 0) bins[get_group_id(0)] = sums[0];
        }
        """,
        partial=lambda s: s.n0 * s.parts,
        bins=groups,
        sums=lanes,
    ),
    steered(
        """
        __kernel void tree_lookup(__global const int *left, __global const int *right, __global const float *split,
                                  __global const float *queries, __global int *leaf, int depth, int features) {
            int q = get_global_id(0), node = 0;
            for (int d = 0; d < depth; ++d)
                node = queries[q * features + d % features] < split[node] ? left[node] : right[node];
            leaf[q] = node;
        }
        """,
        queries=lambda s: (s.g0 - 1) * s.features + min(s.depth, s.features),
        leaf=items,
    ),
)
