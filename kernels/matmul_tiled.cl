// C = A * B through 16 x 16 tiles in static local memory; the same shapes as matmul_naive.
// In the set beside it: equal arithmetic, other traffic, two barriers a tile, a fixed local size.
#define TILE 16
#define MAX_DEPTH 128

__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1)))
void matmul_tiled(__global const float *a, __global const float *b, __global float *c, int k)
{
    __local float tile_a[TILE][TILE];
    __local float tile_b[TILE][TILE];
    int col = get_global_id(0), row = get_global_id(1);
    int lx = get_local_id(0), ly = get_local_id(1);
    int width = get_global_size(0);
    int depth = min(k, MAX_DEPTH);
    float sum = 0.0f;
    for (int start = 0; start < depth; start += TILE) {
        int ka = start + lx;
        int kb = start + ly;
        tile_a[ly][lx] = ka < depth ? a[row * depth + ka] : 0.0f;
        tile_b[ly][lx] = kb < depth ? b[kb * width + col] : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < TILE; ++i)
            sum += tile_a[ly][i] * tile_b[i][lx];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * width + col] = sum;
}
