// STREAM-like triad a = b + scalar * c as a loop that strides by the global size.
// In the set because its extent is n alone: the NDRange decides who works, not how much is touched.
__kernel void triad(__global float *a, __global const float *b, __global const float *c,
                    float scalar, int n)
{
    int step = get_global_size(0);
    for (int i = get_global_id(0); i < n; i += step)
        a[i] = b[i] + scalar * c[i];
}
