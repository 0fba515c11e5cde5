// Maximum-intensity projection of a volume along its slowest dimension, by atomics on the image.
// In the set as a 3-D NDRange that writes a 2-D buffer: neighbours in depth meet in one word.
__kernel void project_max(__global const uint *volume, __global uint *image)
{
    size_t x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    size_t width = get_global_size(0), height = get_global_size(1);
    __global uint *pixel = image + y * width + x;
    atomic_max(pixel, 3u * volume[(z * height + y) * width + x]);
}
