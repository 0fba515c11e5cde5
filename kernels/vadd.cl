// Element-wise sum of two arrays behind the usual `if (i < n)` guard.
// In the set as the smallest kernel there is: pure streaming, extents of min(global size, n).
__kernel void vadd(__global const float *a, __global const float *b, __global float *c, int n)
{
    int i = get_global_id(0);
    if (i < n)
        c[i] = a[i] + b[i];
}
