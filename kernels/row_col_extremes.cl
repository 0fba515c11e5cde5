// Largest value of each row and smallest of each column of a matrix the shape of the NDRange.
// In the set for atomics on buffers sized by one dimension, one through a sum of pointer and
// index, one through the address of an element.
__kernel void row_col_extremes(__global const int *matrix, __global int *row_max,
                               __global int *col_min)
{
    int x = get_global_id(0);
    int y = get_global_id(1);
    int value = matrix[y * get_global_size(0) + x];
    atomic_max(row_max + y, value);
    atomic_min(&col_min[x], value);
}
