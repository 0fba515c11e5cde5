// Wide vector maths: a runtime that mistakes the CPU passes scalar kernels and crashes on these.
__kernel void trial_wide(__global const float *in, __global float *out)
{
    size_t i = get_global_id(0);
    float16 x = vload16(i, in);
    float16 y = exp(x) + sin(x) + pow(x, (float16)(1.5f)) + fma(x, x, (float16)(2.0f));
    vstore16(y, i, out);
}

__kernel void trial_half_wide(__global const float *in, __global float *out)
{
    __local float tile[8 * 8];
    size_t l = get_local_id(0);
    vstore8(vload8(get_global_id(0), in), l, tile);
    barrier(CLK_LOCAL_MEM_FENCE);
    float8 x = vload8(l, tile);
    vstore8(exp(x) * cos(x) + pow(x, (float8)(2.5f)), get_global_id(0), out);
}
