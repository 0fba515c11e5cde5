// Transpose between two matrices with row pitches of their own; columns past the output's pitch
// are dropped. In the set for a guard on the other dimension than the fast one: the cap stands on
// both buffers, with products of a scalar and a size.
__kernel void transpose_pitched(__global const float *in, __global float *out, int in_pitch,
                                int out_pitch)
{
    int x = get_global_id(0);
    int y = get_global_id(1);
    if (y >= out_pitch)
        return;
    out[x * out_pitch + y] = in[y * in_pitch + x];
}
