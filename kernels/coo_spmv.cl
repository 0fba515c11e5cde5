// Sparse matrix-vector product, COO, one stored entry a work-item, added up in fixed point.
// In the set for scattered atomics beside three streams; integers keep the sum independent of the
// order of the entries.
#define ONE 1024.0f

__kernel void coo_spmv(__global const int *rows, __global const int *cols,
                       __global const float *vals, __global const float *x, __global int *y,
                       int num_entries, int num_rows)
{
    int k = get_global_id(0);
    if (k >= num_entries)
        return;
    int row = rows[k];
    int col = cols[k];
    float val = vals[k];
    if (row < num_rows && col < num_rows)
        atomic_add(&y[row], convert_int_rte(val * x[col] * ONE));
}
