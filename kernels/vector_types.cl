// Maps on vector types: float4 (rotation about z), float8 (pairwise blend), int4 (bit mixing).
// In the set because a pointee element is 16 or 32 bytes: extents count vectors, not floats.
__kernel void rotate_float4(__global const float4 *in, __global float4 *out, float angle)
{
    size_t i = get_global_id(0);
    float c = cos(angle), s = sin(angle);
    float4 p = in[i];
    out[i] = (float4)(c * p.x - s * p.y, s * p.x + c * p.y, p.zw);
}

__kernel void blend_float8(__global const float8 *a, __global const float8 *b,
                           __global float8 *out, int n)
{
    int i = get_global_id(0);
    if (i < n) {
        float8 low = fmin(a[i], b[i]);
        float8 high = fmax(a[i], b[i]);
        out[i] = mix(low, high.s76543210, 0.25f);
    }
}

__kernel void mix_int4(__global const int4 *in, __global int4 *out, int n)
{
    int i = get_global_id(0);
    if (i < n) {
        int4 v = in[i];
        v ^= v.yzwx << 7;
        v += rotate(v, (int4)(1, 3, 5, 9));
        out[i] = v & (int4)(0x7fffffff);
    }
}
