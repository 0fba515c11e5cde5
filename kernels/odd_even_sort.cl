// Sixteen rounds of odd-even transposition sort of each work-group's keys, in local memory.
// In the set for a barrier a round with half the work-items idle; any local size works, and longer
// work-groups end partly sorted.
#define ROUNDS 16

void order_pair(__local uint *left)
{
    uint low = min(left[0], left[1]);
    uint high = max(left[0], left[1]);
    left[0] = low;
    left[1] = high;
}

__kernel void odd_even_sort(__global uint *keys, __local uint *tile)
{
    size_t i = get_global_id(0);
    uint lane = get_local_id(0);
    uint lanes = get_local_size(0);
    tile[lane] = keys[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint round = 0; round < ROUNDS; ++round) {
        if (((lane ^ round) & 1u) == 0u && lane + 1u < lanes)
            order_pair(tile + lane);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    keys[i] = tile[lane];
}
