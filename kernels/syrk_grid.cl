// Lower triangle of A times A transposed for the first eight columns of an n x n matrix; both
// dimensions stride over the result. In the set for extents of n * n whatever the NDRange, and for
// a triangle that leaves half of the turns empty.
#define MAX_DEPTH 8

__kernel void syrk_grid(__global const float *a, __global float *c, int n)
{
    int depth = min(n, MAX_DEPTH);
    for (int row = get_global_id(1); row < n; row += get_global_size(1)) {
        for (int col = get_global_id(0); col < n; col += get_global_size(0)) {
            if (col > row)
                break;
            float sum = 0.0f;
            for (int k = 0; k < depth; ++k)
                sum += a[row * n + k] * a[col * n + k];
            c[row * n + col] = sum;
        }
    }
}
