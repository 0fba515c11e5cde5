// C = A * B with one work-item per element of C and no local memory. C has the shape of the
// NDRange; the inner dimension is the scalar, cut at MAX_DEPTH to bound a launch.
// In the set as the dense kernel whose run time the scalar, not the NDRange, decides.
#define MAX_DEPTH 128

__kernel void matmul_naive(__global const float *a, __global const float *b, __global float *c,
                           int k)
{
    int col = get_global_id(0);
    int row = get_global_id(1);
    int width = get_global_size(0);
    int depth = min(k, MAX_DEPTH);
    float sum = 0.0f;
    for (int i = 0; i < depth; ++i)
        sum += a[row * depth + i] * b[i * width + col];
    c[row * width + col] = sum;
}
