// Sparse matrix times several vectors, ELLPACK: slot-major, so neighbouring rows load neighbouring
// words. Dimension 0 is the row, dimension 1 the right-hand side; a column past the end is padding.
// In the set for regular loads beside irregular gathers, with a loop bound from a scalar.
#define MAX_WIDTH 32

__kernel void ell_spmv(__global const int *cols, __global const float *vals,
                       __global const float *x, __global float *y, int width)
{
    int row = get_global_id(0);
    int num_rows = get_global_size(0);
    int rhs = get_global_id(1);
    __global const float *my_x = x + rhs * num_rows;
    int slots = min(width, MAX_WIDTH);
    float sum = 0.0f;
    for (int slot = 0; slot < slots; ++slot) {
        int col = cols[slot * num_rows + row];
        float factor = col < num_rows ? my_x[col] : 0.0f;
        sum += vals[slot * num_rows + row] * factor;
    }
    y[rhs * num_rows + row] = sum;
}
