// Sobel edges of a byte image, edges repeated, guarded in both dimensions.
// In the set because each access hides in a macro, and for the double guard of image code: with
// the NDRange at least as wide as the image, the rows alone decide the extent.
#define PIXEL(dx, dy)                                                                      \
    ((int)image[clamp(y + (dy), 0, height - 1) * width + clamp(x + (dx), 0, width - 1)])
#define STORE(buffer, value) buffer[y * width + x] = (value)

__kernel void sobel_macro(__global const uchar *image, __global ushort *edges, int width,
                          int height)
{
    int x = get_global_id(0);
    int y = get_global_id(1);
    if (x < width && y < height) {
        int gx = PIXEL(1, -1) + 2 * PIXEL(1, 0) + PIXEL(1, 1) - PIXEL(-1, -1) - 2 * PIXEL(-1, 0) -
                 PIXEL(-1, 1);
        int gy = PIXEL(-1, 1) + 2 * PIXEL(0, 1) + PIXEL(1, 1) - PIXEL(-1, -1) - 2 * PIXEL(0, -1) -
                 PIXEL(1, -1);
        STORE(edges, (ushort)(abs(gx) + abs(gy)));
    }
}
