// Tridiagonal matrix times a vector, the three diagonals stored apart.
// In the set because buffers of one kernel differ in extent by one element: the upper diagonal is
// not read in the last row, the vector one past the NDRange.
__kernel void tridiagonal(__global const float *lower, __global const float *diagonal,
                          __global const float *upper, __global const float *x,
                          __global float *y, int n)
{
    int i = get_global_id(0);
    if (i >= n)
        return;
    float sum = diagonal[i] * x[i];
    if (i > 0)
        sum += lower[i] * x[i - 1];
    if (i + 1 < n)
        sum += upper[i] * x[i + 1];
    y[i] = sum;
}
