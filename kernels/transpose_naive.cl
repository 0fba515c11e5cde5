// Transposes a matrix the shape of the NDRange: reads along rows, writes along columns.
// In the set for its uncoalesced stores, the classic contrast to transpose_tiled.
__kernel void transpose_naive(__global const float *in, __global float *out)
{
    size_t x = get_global_id(0), y = get_global_id(1);
    size_t width = get_global_size(0), height = get_global_size(1);
    out[x * height + y] = in[y * width + x];
}
