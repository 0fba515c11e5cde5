// Sparse matrix-vector product, CSR, one work-item a row; num_offsets is the length of row_offsets.
// In the set because loop bounds and gather indices both come from buffers: row lengths differ, so
// neighbouring work-items diverge, and the NDRange says little about the run time.
__kernel void csr_spmv(__global const int *row_offsets, __global const int *cols,
                       __global const float *vals, __global const float *x, __global float *y,
                       int num_offsets)
{
    int row = get_global_id(0);
    if (row + 1 < num_offsets) {
        int end = row_offsets[row + 1];
        float sum = 0.0f;
        for (int k = row_offsets[row]; k < end; ++k)
            sum += vals[k] * x[cols[k]];
        y[row] = sum;
    }
}
