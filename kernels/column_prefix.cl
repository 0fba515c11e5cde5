// Sum of the column above each element of a pitched matrix, at most 64 rows up.
// In the set for a pointer that moves backwards by a scalar: a negative stride, with the far end of
// the extent touched first.
#define MAX_ROWS 64

__kernel void column_prefix(__global const float *in, __global float *out, int pitch)
{
    int col = get_global_id(0);
    int row = get_global_id(1);
    int above = min(row, MAX_ROWS - 1);
    __global const float *p = in + row * pitch + col;
    float sum = *p;
    while (above-- > 0) {
        p -= pitch;
        sum += *p;
    }
    out[row * get_global_size(0) + col] = sum;
}
