// Copies an array back to front: a permutation written without scattering.
// In the set because the read extent is n whatever the global size, the write extent is not.
__kernel void reverse_copy(__global const int *in, __global int *out, int n)
{
    int i = get_global_id(0);
    if (i < n)
        out[i] = in[n - 1 - i];
}
