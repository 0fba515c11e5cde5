// Degree-11 sine polynomial in double precision by Horner's rule.
// In the set for fp64, whose rate against fp32 differs sixty-fold between devices.
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

__kernel void poly_fp64(__global const double *x, __global double *y, double scale, int n)
{
    int i = get_global_id(0);
    if (i >= n)
        return;
    double v = x[i];
    double v2 = v * v;
    double p = -1.0 / 39916800.0;
    p = fma(p, v2, 1.0 / 362880.0);
    p = fma(p, v2, -1.0 / 5040.0);
    p = fma(p, v2, 1.0 / 120.0);
    p = fma(p, v2, -1.0 / 6.0);
    p = fma(p, v2, 1.0);
    y[i] = scale * p * v;
}
