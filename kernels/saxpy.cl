// y = alpha * x + y in place, with no guard: the launch itself is the length.
// In the set because y is read and written, so inputs must be restored between launches.
__kernel void saxpy(float alpha, __global const float *x, __global float *y)
{
    size_t i = get_global_id(0);
    y[i] = fma(alpha, x[i], y[i]);
}
