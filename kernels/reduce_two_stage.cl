// Sum of n numbers in two stages: each work-item strides over the array before its work-group's
// tree, then one work-group adds the partial sums, at most 4,096 of them.
// In the set as the reduction libraries ship: n is independent of the NDRange, and in the second
// stage a single work-group of the NDRange works.
#define MAX_PARTIALS 4096

float tree_sum(__local float *scratch, int lane, int lanes)
{
    for (int active = lanes; active > 1;) {
        int half_up = (active + 1) / 2;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane + half_up < active)
            scratch[lane] += scratch[lane + half_up];
        active = half_up;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return scratch[0];
}

__kernel void reduce_stage1(__global const float *in, __global float *partial,
                            __local float *scratch, int n)
{
    int lane = get_local_id(0);
    float sum = 0.0f;
    for (int i = get_global_id(0); i < n; i += get_global_size(0))
        sum += in[i];
    scratch[lane] = sum;
    float total = tree_sum(scratch, lane, get_local_size(0));
    if (lane == 0)
        partial[get_group_id(0)] = total;
}

__kernel void reduce_stage2(__global const float *partial, __global float *total,
                            __local float *scratch, int num_partials)
{
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int count = get_group_id(0) == 0 ? min(num_partials, MAX_PARTIALS) : 0;
    float sum = 0.0f;
    for (int k = lane; k < count; k += lanes)
        sum += partial[k];
    scratch[lane] = sum;
    float all = tree_sum(scratch, lane, lanes);
    if (get_global_id(0) == 0)
        *total = all;
}
