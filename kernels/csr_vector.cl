// Sparse matrix-vector product, CSR, one work-group a row: its work-items stride over the row and
// add up in local memory. In the set beside csr_spmv: loads run along the row, short rows leave
// work-items idle, and the output is as long as there are work-groups.
__kernel void csr_vector(__global const int *row_offsets, __global const int *cols,
                         __global const float *vals, __global const float *x, __global float *y,
                         __local float *scratch, int num_offsets)
{
    int row = get_group_id(0);
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    bool has_row = row + 1 < num_offsets;
    float sum = 0.0f;
    if (has_row) {
        int end = row_offsets[row + 1];
        for (int k = row_offsets[row] + lane; k < end; k += lanes)
            sum += vals[k] * x[cols[k]];
    }
    scratch[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int gap = 1; gap < lanes; gap *= 2) {
        if (lane % (2 * gap) == 0 && lane + gap < lanes)
            scratch[lane] += scratch[lane + gap];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0 && has_row)
        y[row] = scratch[0];
}
