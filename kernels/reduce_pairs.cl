// Sum of an integer array, one result a work-group; every work-item loads two elements first.
// In the set for its group arithmetic: a work-group owns 2 * local size elements, so the array is
// twice as long as the NDRange.
__kernel void reduce_pairs(__global const int *in, __global int *partial, __local int *scratch,
                           int n)
{
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    int first = get_group_id(0) * get_local_size(0) * 2 + lane;
    int second = first + lanes;
    int value = 0;
    if (first < n)
        value = in[first];
    if (second < n)
        value += in[second];
    scratch[lane] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int gap = 1; gap < lanes; gap *= 2) {
        if (lane % (2 * gap) == 0 && lane + gap < lanes)
            scratch[lane] += scratch[lane + gap];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (lane == 0)
        partial[get_group_id(0)] = scratch[0];
}
