// Matrix-vector product, one matrix row per row of the 2-D NDRange: the row's work-items stride
// over the columns; each work-group adds its share in local memory and writes one partial sum.
// In the set because its output is sized by the number of work-groups; any local size works.
__kernel void matvec_split(__global const float *matrix, __global const float *vec,
                           __global float *partial, __local float *scratch, int cols)
{
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int row = get_global_id(1);
    int step = get_global_size(0);
    float sum = 0.0f;
    for (int col = get_global_id(0); col < cols; col += step)
        sum += matrix[row * cols + col] * vec[col];

    __local float *mine = scratch + get_local_id(1) * lanes;
    mine[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int gap = 1; gap < lanes; gap *= 2) {
        if (lane % (2 * gap) == 0 && lane + gap < lanes)
            mine[lane] += mine[lane + gap];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0)
        partial[row * get_num_groups(0) + get_group_id(0)] = mine[0];
}
