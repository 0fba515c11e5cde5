// Product of two arrays of complex numbers; three pointers move on by the global size each turn.
// In the set for pointers that walk through a loop: no subscript anywhere, and an extent that the
// scalar decides, not the NDRange.
__kernel void complex_multiply(__global const float2 *a, __global const float2 *b,
                               __global float2 *product, int n)
{
    int first = get_global_id(0);
    int step = get_global_size(0);
    __global const float2 *p = a + first;
    __global const float2 *q = b + first;
    __global float2 *to = product + first;
    for (int left = n - first; left > 0; left -= step) {
        float2 x = *p;
        float2 y = *q;
        *to = (float2)(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
        p += step;
        q += step;
        to += step;
    }
}
