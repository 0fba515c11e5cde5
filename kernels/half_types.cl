// Half-precision storage with single-precision arithmetic: one value a work-item, and four.
// In the set for vload_half/vstore_half, which need no half arithmetic: half the bytes of a float
// map; the quads end with a scalar rest, so every element below n is handled.
__kernel void half_affine(__global const half *in, __global half *out, float factor, int n)
{
    int i = get_global_id(0);
    if (i < n)
        vstore_half(factor * vload_half(i, in) + 0.5f, i, out);
}

__kernel void half_quads(__global const half *in, __global half *out, int n)
{
    int quad = get_global_id(0);
    int first = 4 * quad;
    if (first + 4 <= n) {
        float4 v = vload_half4(quad, in);
        vstore_half4(v * v, quad, out);
    } else {
        for (int i = first; i < n; ++i) {
            float v = vload_half(i, in);
            vstore_half(v * v, i, out);
        }
    }
}
