// Three-point smoothing in one dimension; the neighbours of the two ends are clamped to the array.
// In the set because the read extent passes the write extent by one: min(global size + 1, n).
__kernel void stencil1d_3(__global const float *in, __global float *out, int n)
{
    int i = get_global_id(0);
    if (i < n) {
        int left = max(i - 1, 0);
        int right = min(i + 1, n - 1);
        out[i] = 0.25f * in[left] + 0.5f * in[i] + 0.25f * in[right];
    }
}
