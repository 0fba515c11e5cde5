// Greyscale of a pitched RGBA image, four bytes in and one byte out a pixel.
// In the set for uchar4 with conversions, and for row pointers as image code builds them.
__kernel void grey_rgba(__global const uchar4 *rgba, __global uchar *grey, int pitch)
{
    int x = get_global_id(0);
    int y = get_global_id(1);
    __global const uchar4 *row = rgba + y * pitch;
    __global uchar *to = grey + y * pitch;
    if (x < pitch) {
        float4 colour = convert_float4(row[x]);
        to[x] = convert_uchar_sat_rte(0.299f * colour.x + 0.587f * colour.y + 0.114f * colour.z);
    }
}
