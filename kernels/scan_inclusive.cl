// Inclusive prefix sum inside each work-group (Hillis-Steele), and each work-group's total.
// In the set for two barriers a step and a logarithmic number of steps; any local size works.
__kernel void scan_inclusive(__global const int *in, __global int *out, __global int *totals,
                             __local int *scratch, int n)
{
    int i = get_global_id(0);
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    scratch[lane] = i < n ? in[i] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int gap = 1; gap < lanes; gap *= 2) {
        int add = lane >= gap ? scratch[lane - gap] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        scratch[lane] += add;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (i < n)
        out[i] = scratch[lane];
    if (lane == lanes - 1)
        totals[get_group_id(0)] = scratch[lane];
}
