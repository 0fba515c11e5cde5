// The two passes of a separable convolution, along rows and along columns, edges repeated; the
// taps are a __constant argument. In the set for that argument, whose extent follows from a scalar
// alone, and for equal arithmetic with two access patterns.
#define MAX_RADIUS 8

__kernel void conv_rows(__global const float *image, __global float *blurred,
                        __constant float *taps, int radius)
{
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0);
    int reach = min(radius, MAX_RADIUS);
    float sum = 0.0f;
    for (int k = -reach; k <= reach; ++k)
        sum += taps[k + reach] * image[y * width + clamp(x + k, 0, width - 1)];
    blurred[y * width + x] = sum;
}

__kernel void conv_cols(__global const float *image, __global float *blurred,
                        __constant float *taps, int radius)
{
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    int reach = min(radius, MAX_RADIUS);
    float sum = 0.0f;
    for (int k = -reach; k <= reach; ++k)
        sum += taps[k + reach] * image[clamp(y + k, 0, height - 1) * width + x];
    blurred[y * width + x] = sum;
}
