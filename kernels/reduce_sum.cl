// Sum of an array to one partial sum a work-group, in a tree over a __local pointer argument.
// In the set for that argument and its barriers; halving rounds up, so any local size works.
__kernel void reduce_sum(__global const float *in, __global float *partial, __local float *scratch,
                         int n)
{
    int i = get_global_id(0);
    int lane = get_local_id(0);
    scratch[lane] = i < n ? in[i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    int active = get_local_size(0);
    while (active > 1) {
        int half_up = (active + 1) / 2;
        if (lane + half_up < active)
            scratch[lane] += scratch[lane + half_up];
        barrier(CLK_LOCAL_MEM_FENCE);
        active = half_up;
    }
    if (lane == 0)
        partial[get_group_id(0)] = scratch[0];
}
