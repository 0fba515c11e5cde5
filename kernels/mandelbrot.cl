// Escape times of the Mandelbrot set, one pixel per work-item; no input buffer at all.
// In the set for divergence that the coordinates alone decide, and for a kernel that only writes.
#define MAX_STEPS 100

__kernel void mandelbrot(__global int *steps, float zoom)
{
    int px = get_global_id(0), py = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    float cx = -0.75f + zoom * (3.0f * px / width - 1.5f);
    float cy = zoom * (2.5f * py / height - 1.25f);
    float x = 0.0f, y = 0.0f;
    int step = 0;
    while (step < MAX_STEPS && x * x + y * y <= 4.0f) {
        float next_x = x * x - y * y + cx;
        y = 2.0f * x * y + cy;
        x = next_x;
        ++step;
    }
    steps[py * width + px] = step;
}
