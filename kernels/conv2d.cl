// 5 x 5 Gaussian blur of an image the shape of the NDRange; edges repeat, and the filter is a
// program-scope __constant table.
// In the set for 25 overlapping reads an element, fed by caches and constant memory.
#define RADIUS 2
#define TAPS (2 * RADIUS + 1)

__constant float filter[TAPS * TAPS] = {
    1.0f / 256, 4.0f / 256,  6.0f / 256,  4.0f / 256,  1.0f / 256,
    4.0f / 256, 16.0f / 256, 24.0f / 256, 16.0f / 256, 4.0f / 256,
    6.0f / 256, 24.0f / 256, 36.0f / 256, 24.0f / 256, 6.0f / 256,
    4.0f / 256, 16.0f / 256, 24.0f / 256, 16.0f / 256, 4.0f / 256,
    1.0f / 256, 4.0f / 256,  6.0f / 256,  4.0f / 256,  1.0f / 256,
};

__kernel void conv2d(__global const float *image, __global float *blurred)
{
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    float sum = 0.0f;
    for (int dy = -RADIUS; dy <= RADIUS; ++dy) {
        int row = clamp(y + dy, 0, height - 1);
        for (int dx = -RADIUS; dx <= RADIUS; ++dx) {
            int col = clamp(x + dx, 0, width - 1);
            sum += filter[(dy + RADIUS) * TAPS + dx + RADIUS] * image[row * width + col];
        }
    }
    blurred[y * width + x] = sum;
}
