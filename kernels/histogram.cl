// Counts keys into bins with integer atomics: straight into global memory, and through a private
// copy in local memory that each work-group adds to the global bins once.
// In the set for contended atomics; the bin depends on the data and the mask keeps it in range.
#define NUM_BINS 16

__kernel void histogram_global(__global const int *keys, __global int *bins, int n)
{
    int i = get_global_id(0);
    if (i < n)
        atomic_inc(&bins[keys[i] & (NUM_BINS - 1)]);
}

__kernel void histogram_local(__global const int *keys, __global int *bins, int n)
{
    __local int counts[NUM_BINS];
    int i = get_global_id(0);
    int lane = get_local_id(0);
    int lanes = get_local_size(0);
    for (int bin = lane; bin < NUM_BINS; bin += lanes)
        counts[bin] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < n)
        atomic_inc(&counts[keys[i] & (NUM_BINS - 1)]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int bin = lane; bin < NUM_BINS; bin += lanes)
        atomic_add(&bins[bin], counts[bin]);
}
